"""Turns that follow a grammar: which of their tokens are trained, and which engines and recipes can have one.

`tests/mutants` plants the faults that these tests must notice.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_swe.errors import UserError
from slime_swe.launch.cli import run
from slime_swe.launch.doctor.served import GRAMMAR, probed
from slime_swe.launch.engines import violations
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from slime_swe.launch.slime_cpu import sglang_cpu
from slime_swe.rollout.agents.base import AGENTS, agent_class
from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.engine import require_grammar
from slime_swe.rollout.episode import Session, StopReason
from slime_swe.rollout.grammar import Grammar, changed
from slime_swe.rollout.loop_scope import close_loop_scope
from slime_swe.rollout.replies import EngineError
from slime_swe.rollout.scripted import serve
from slime_swe.rollout.slime_plugin import generate
from tests.recipes.changes import variant
from tests.rollout.guided import STOP, GuidedEngine
from tests.rollout.support import PARAMS, make_args, make_sample, said

CALL = '<tool_call>\n{"name": "submit", "arguments": {}}\n</tool_call>'
SEED = checkpoint_folder(EMBEDDED_SEED)
TOLERANCE = 0.05
PROMPT = [7, 8, 9]
ONE_TURN = {"max_new_tokens": 60, "temperature": 1.0, "stop_token_ids": [], "seed": 0}


@asynccontextmanager
async def guided(tokenizer, **changes):
    """An engine, and a client of it."""
    engine = GuidedEngine(tokenizer, **changes)
    async with serve(engine.handle) as url, EngineClient(url, pause=0.001) as client:
        engine.url = url
        yield engine, client


def ask(client, *texts, tolerance: float | None = TOLERANCE, **params):
    return client.generate(PROMPT, {**ONE_TURN, "regex": "|".join(texts), **params}, tolerance=tolerance)


def not_whole(engine, texts, tokens):
    """Places at which the grammar took more than the tolerance, by the policy's distribution."""
    return {at for at in range(len(tokens)) if engine.kept(texts, tokens[:at]) < 1 - TOLERANCE}


# --- what a grammar has changed --------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.001, 1.0), min_size=2, max_size=30), st.data())
def test_the_share_that_is_kept_is_known_from_any_sampled_token(weights, data):
    whole = [weight / math.fsum(weights) for weight in weights]
    allowed = data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, unique=True))
    kept = math.fsum(whole[one] for one in allowed)
    tolerance = data.draw(st.floats(0.0, 0.9).filter(lambda value: abs(value - (1 - kept)) > 1e-6))
    distance = math.fsum(abs(whole[one] - (whole[one] / kept if one in allowed else 0.0)) for one in range(len(whole)))
    assert distance / 2 == pytest.approx(1 - kept, abs=1e-9), "total variation"
    sampled, own = [math.log(whole[one] / kept) for one in allowed], [math.log(whole[one]) for one in allowed]
    assert changed(sampled, own, tolerance) == (frozenset() if 1 - kept < tolerance else {*range(len(allowed))})


def test_the_gradient_of_what_is_cut_has_no_mean_of_0():
    """Of two logits and a third that the grammar excludes: the mean of the gradient of log p over what is sampled is
    that of the log of what is kept, and 0 only where all is kept."""
    for third, most in ((0.0, 0.6), (-30.0, 1e-12)):
        weights = [math.exp(value) for value in (0.5, -0.2, third)]
        p = [weight / sum(weights) for weight in weights]
        kept = p[0] + p[1]
        mean = [sum(p[a] / kept * ((a == one) - p[one]) for a in (0, 1)) for one in range(3)]
        of_log_kept = [(p[one] if one < 2 else 0.0) / kept - p[one] for one in range(3)]
        assert mean == pytest.approx(of_log_kept)
        assert (max(map(abs, mean)) < most) and (third < -1 or max(map(abs, mean)) > 0.2)


def test_what_is_not_known_is_changed():
    assert changed([-1.0, 0.0, -0.5], [math.nan, -math.inf, 400.0], 0.5) == {0, 1, 2}
    assert changed([], [], 0.0) == frozenset()


# --- one turn --------------------------------------------------------------------------------------------------------


async def test_a_policy_that_follows_the_grammar_by_itself_is_trained_where_it_does(tokenizer):
    async with guided(tokenizer, wanted=CALL) as (engine, client):
        said = await ask(client, CALL)
    assert engine.tokenizer.decode(said.tokens[:-1]) == CALL and said.finish_reason == "stop"
    assert said.untrained == frozenset(), "the policy would have said it all"


async def test_forced_tokens_are_not_trained(tokenizer):
    """The policy would say something else, and is forced."""
    async with guided(tokenizer, wanted="Hello") as (engine, client):
        said = await ask(client, CALL)
    assert engine.tokenizer.decode(said.tokens[:-1]) == CALL
    assert max(said.log_probs) <= 0 and said.untrained == {*range(len(said.tokens))}


async def test_each_place_is_judged_by_what_the_grammar_left_there(tokenizer):
    """Two answers, one of which the policy wants: it is free until it has been led astray."""
    seen = set()
    texts = [CALL, CALL.replace("submit", "bash")]
    async with guided(tokenizer, wanted=CALL) as (engine, client):
        for _ in range(12):
            said = await ask(client, *texts, "no")
            assert said.untrained == not_whole(engine, [*texts, "no"], said.tokens)
            seen.add((engine.tokenizer.decode(said.tokens[:-1]), len(said.untrained)))
    assert (CALL, 0) in seen


async def test_a_tolerance_of_0_trains_what_the_grammar_left_alone(tokenizer):
    async with guided(tokenizer, wanted=CALL) as (_, client):
        said = await ask(client, CALL, tolerance=0.0)
    assert said.untrained == {*range(len(said.tokens))}, "the policy gives some share to every other token"


async def test_where_nothing_is_trained_nobody_asks(tokenizer):
    async with guided(tokenizer) as (engine, client):
        said = await ask(client, CALL, tolerance=None)
    assert (len(engine.requests), said.untrained) == (1, frozenset())


async def test_the_policy_alone_is_asked_once_a_turn_for_the_turn_s_tokens(tokenizer):
    async with guided(tokenizer) as (engine, client):
        client.adapter = "mine"
        said = await ask(client, CALL)
    _, second = engine.requests
    assert second["input_ids"] == [*PROMPT, *said.tokens] and second["logprob_start_len"] == len(PROMPT) - 1
    assert second["sampling_params"] == {"temperature": 1.0, "max_new_tokens": 0}
    assert second["return_logprob"] and second["lora_path"] == "mine"


async def test_other_weights_say_nothing_of_what_was_sampled(tokenizer):
    async with guided(tokenizer, wanted=CALL, scored_by="4") as (_, client):
        said = await ask(client, CALL)
    assert said.untrained == {*range(len(said.tokens))}


async def test_an_aborted_turn_begins_anew(tokenizer):
    """Its rest would be asked for behind what was said, and the grammar would begin there."""
    async with guided(tokenizer, wanted=CALL, aborts=[3, 2]) as (engine, client):
        said = await ask(client, CALL)
    assert engine.tokenizer.decode(said.tokens[:-1]) == CALL
    assert [len(asked["input_ids"]) for asked in engine.requests[:3]] == [len(PROMPT)] * 3
    assert said.retries == {"aborted": 2} and said.version_spans == (("3", len(said.tokens)),)
    async with guided(tokenizer, wanted=CALL, aborts=[3] * 5) as (_, client):
        with pytest.raises(EngineError, match="aborted"):
            await ask(client, CALL)


async def test_an_engine_that_leaves_the_scores_out_fails(tokenizer):
    async with guided(tokenizer, scores=False) as (_, client):
        with pytest.raises(EngineError, match=r"input_token_logprobs are of 0 tokens, and not of the \d+"):
            await ask(client, CALL)


async def test_passing_trouble_is_borne(tokenizer):
    async with guided(tokenizer, wanted=CALL, failures=[503]) as (engine, client):
        said = await ask(client, CALL)
        engine.failures = [500, 500]
        assert said.retries == {"http_503": 1}
        engine.handled = len(engine.requests)
        assert (await ask(client, CALL)).retries == {"http_500": 2}


# --- the engine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({}, ""),
        ({"wanted": "A"}, ""),
        ({"refused": 400}, "can't sample by it as grammar_kind=regex.*Grammar-based generation is not supported"),
        ({"scores": False}, "what the policy alone would do.*input_token_logprobs"),
        ({"masked": False}, "returns the policy's own log-probabilities"),
        ({"masked": False, "wanted": "A"}, "returns the policy's own log-probabilities"),
        ({"obeys": False, "wanted": "A"}, "it follows none"),
    ],
    ids=str,
)
async def test_an_engine_that_can_t_is_refused(tokenizer, fault, said):
    async with guided(tokenizer, **fault) as (engine, client):
        if not said:
            await require_grammar(client, Grammar("regex", CALL, TOLERANCE))
            assert engine.requests[-2]["sampling_params"]["regex"] == CALL
            return
        with pytest.raises(UserError, match=said):
            await require_grammar(client, Grammar("regex", CALL, TOLERANCE))


async def test_the_doctor_asks_for_it(tokenizer):
    grammar = Grammar("regex", CALL, TOLERANCE)
    for fault in ({}, {"masked": False}):
        async with guided(tokenizer, **fault) as (engine, _):
            results = await probed(engine.url, vocabulary=400, grammar=grammar)
        assert results[-1].name == GRAMMAR and results[-1].ok == (not fault), results[-1].message


# --- an episode ------------------------------------------------------------------------------------------------------


@pytest.fixture
def play(checkpoint, tokenizer, tmp_path):
    """One episode's sample, and the engine."""

    async def played(evaluation=False, grammar=CALL, **changes):
        async with guided(tokenizer, **changes) as (engine, _):
            args = make_args(checkpoint, engine.url, tmp_path, swe_grammar=grammar, swe_grammar_tolerance=TOLERANCE)
            sample = await generate(args, make_sample(), PARAMS, evaluation)
            await close_loop_scope()
        return sample, engine

    return played


async def test_an_episode_under_a_grammar(play, tokenizer):
    """What is forced has mask 0, no log-probability and no version; what is not is trained as ever."""
    sample, _ = await play(wanted="Hello")
    assert sample.metadata["episode"]["stop_reason"] == StopReason.SUBMITTED
    assert tokenizer.decode(sample.tokens[-sample.response_length :]).startswith(CALL)
    assert sample.loss_mask == [0] * sample.response_length and sample.remove_sample
    assert sample.rollout_log_probs == [0.0] * sample.response_length and sample.weight_versions == []
    assert sample.metadata["version_spans"] == [[None, sample.response_length]]
    assert sample.metadata["episode"]["counters"]["untrained_tokens"] == sample.response_length
    free, _ = await play(wanted=CALL)
    assert free.loss_mask == [1] * free.response_length and not free.remove_sample
    assert free.metadata["episode"]["counters"]["untrained_tokens"] == 0


async def test_a_turn_of_which_a_part_is_forced(play, tokenizer):
    """The policy's own words, but for the last ones."""
    sample, engine = await play(wanted=CALL.replace("</tool_call>", "!"))
    forced = not_whole(engine, [CALL], sample.tokens[-sample.response_length :])
    assert tokenizer.decode(sample.tokens[-sample.response_length :]) == CALL + STOP
    assert 0 < sum(sample.loss_mask) < sample.response_length
    assert sample.loss_mask == [int(at not in forced) for at in range(sample.response_length)]
    pairs = zip(sample.rollout_log_probs, sample.loss_mask, strict=True)
    assert all(value > math.log(1 - TOLERANCE) if mask else value == 0.0 for value, mask in pairs)
    assert sample.weight_versions == ["3"]


async def test_an_evaluation_follows_the_grammar_and_compares_nothing(play):
    sample, engine = await play(evaluation=True, wanted="Hello")
    prompt = len(sample.tokens) - sample.response_length
    assert [len(asked["input_ids"]) >= prompt for asked in engine.requests] == [False] * 4 + [True], "but for the start"
    assert engine.requests[-1]["sampling_params"]["regex"] == CALL and all(sample.loss_mask)


async def test_without_a_grammar_nothing_is_asked(play):
    _, engine = await play(grammar="", wanted=CALL)
    assert len(engine.requests) == 1 and not {"regex", "ebnf"} & engine.requests[0]["sampling_params"].keys()


async def test_an_engine_that_is_not_there_is_not_a_grammar_s_fault():
    async with EngineClient("http://127.0.0.1:9", pause=0.001) as client:
        with pytest.raises(EngineError, match="unreachable"):
            await require_grammar(client, Grammar("regex", CALL, TOLERANCE))


async def test_a_run_does_not_begin_at_an_engine_that_can_t(play):
    with pytest.raises(UserError, match=r"rollout\.grammar"):
        await play(refused=400)


def test_a_segment_of_forced_tokens_is_kept_for_people():
    session = Session()
    session.add_context([1, 2])
    session.add_sampled(said([3, 4, 5], [-0.1, -0.2, -0.3], version="7", untrained=frozenset({1})))
    session.add_context([6])
    session.add_sampled(said([7], [0.0], version="7", untrained=frozenset({0})))
    (segment,) = session.segments()
    assert (segment.tokens, segment.loss_mask) == ([1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 0, 1, 0, 0])
    assert segment.log_probs == [0, 0, -0.1, 0, -0.3, 0, 0]
    assert segment.version_spans == ((None, 2), ("7", 1), (None, 1), ("7", 1), (None, 2))
    session.fork(session.roots[0])
    session.add_sampled(said([8], [0.0], version="8", untrained=frozenset({0})))
    assert [one.loss_mask for one in session.segments()] == [segment.loss_mask, [0, 0, 0]]


def test_the_grammar_is_in_each_turn_s_parameters():
    for kind in ("regex", "ebnf"):
        params = Sampling(PARAMS, grammar=Grammar(kind, "a b")).for_turn(0, 50, [3])
        assert params[kind] == "a b" and not {"regex", "ebnf"} - {kind} & params.keys()
    assert not {"regex", "ebnf"} & Sampling(PARAMS).for_turn(0, 50, [3]).keys()


# --- recipes ---------------------------------------------------------------------------------------------------------

ON_GPUS = partial(variant, "qwen25_coder_7b", rollout__grammar="a+")


def broken(recipe):
    return {violation.field: str(violation) for violation in violations(recipe)}


def test_engines_with_sglang_take_a_grammar():
    assert broken(ON_GPUS()) == broken(ON_GPUS(rollout__grammar_kind="ebnf")) == {}
    assert broken(variant("tiny_cpu", rollout__grammar="a+", engine="slime_cpu", serving__server="sglang",
                          serving__deterministic=False)) == {}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"rollout__grammar_kind": "json"}, "rollout.grammar_kind", "one of regex, ebnf"),
        ({"rollout__grammar_tolerance": 1.0}, "rollout.grammar_tolerance", "less than 1"),
        ({"rollout__temperature": 0.9}, "rollout.temperature", "use 1"),
        ({"rollout__schedule": "carry"}, "rollout.schedule", "would begin anew: use sync or async"),
        ({"rollout__generate": "my_module.generate"}, "rollout.generate", "not known to ask for rollout.grammar"),
        *(({"rollout__agent": name}, "rollout.agent", "no single rollout.grammar fits: use native")
          for name in AGENTS if name != "native"),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_go_with_a_grammar(changes, field, said):
    assert said in broken(ON_GPUS(**changes))[field]


def test_an_agent_that_nobody_has_is_not_this_rule_s():
    assert broken(ON_GPUS(rollout__agent="nobody")) == {}


@pytest.mark.parametrize("changes", [{}, {"engine": "slime_cpu"}], ids=str)
def test_the_embedded_server_takes_none(changes):
    assert (
        "samples by none; SGLang does"
        in broken(variant("tiny_cpu", rollout__grammar="a+", **changes))["rollout.grammar"]
    )


@pytest.mark.parametrize("changes", [{"swe_agent": "qwen_code"}, {"swe_endpoint": "http://localhost:1/v1"}], ids=str)
async def test_neither_programs_nor_endpoints_are_played_by_a_grammar(checkpoint, tmp_path, changes):
    args = make_args(checkpoint, "http://127.0.0.1:9", tmp_path, swe_grammar="a+", **changes)
    with pytest.raises(UserError, match=r"rollout\.grammar: .* takes none"):
        await generate(args, make_sample(), PARAMS)
    await close_loop_scope()


@pytest.mark.parametrize("target", [["http://localhost:1/v1", "--model", "m"], [str(SEED)]], ids=["endpoint", "model"])
def test_what_evaluate_plays_follows_none(target, capsys):
    assert run(["evaluate", *target, "rollout.grammar=a+"]) == 2
    said = capsys.readouterr().err
    assert "rollout.grammar" in said and "embedded server" in said and " samples by " in said


def test_only_the_native_agent_says_that_it_takes_one():
    assert [name for name in AGENTS if agent_class(name).takes_grammar] == ["native"]


def test_sglang_on_a_cpu_is_started_with_a_grammar_s_backend_where_there_is_one():
    plain = variant("tiny_cpu", engine="slime_cpu", serving__server="sglang")
    guided = variant("tiny_cpu", engine="slime_cpu", serving__server="sglang", rollout__grammar="a+")
    assert sglang_cpu.serving(plain)["sglang_grammar_backend"] == "none"
    assert sglang_cpu.serving(guided)["sglang_grammar_backend"] == "llguidance"
