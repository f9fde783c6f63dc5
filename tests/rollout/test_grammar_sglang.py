"""Real SGLang under a grammar: which log-probabilities it returns, and what the policy alone gives."""

from __future__ import annotations

import asyncio
import math
import subprocess

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from slime_swe.launch.slime_cpu.sglang_cpu import GRAMMAR_BACKEND
from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.client import EngineClient
from slime_swe.rollout.engine import require_grammar
from slime_swe.rollout.grammar import Grammar
from tests import real_sglang

SEED = checkpoint_folder(EMBEDDED_SEED)
CLOSE = 1e-3  # between probabilities of one token, decoded and as a part of a prompt, in float32


def has_backend() -> bool:
    """Whether SGLang's interpreter can sample by a grammar on a CPU."""
    python = real_sglang.interpreter()
    command = [python, "-c", f"import {GRAMMAR_BACKEND}"]
    return python is not None and not subprocess.run(command, capture_output=True, check=False).returncode


pytestmark = [
    pytest.mark.extended("tests/rollout/test_grammar.py::test_forced_tokens_are_not_trained"),
    *(pytest.mark.slow, pytest.mark.timeout(1200), real_sglang.needed),
    pytest.mark.skipif(not has_backend(), reason=f"needs {GRAMMAR_BACKEND} where SGLang is"),
]


@pytest.fixture(scope="module", params=["", "true"], ids=["", "original"])
def server(request, tmp_path_factory):
    """SGLang as it is, and with the setting that should return log-probabilities from before sampling's changes."""
    log = tmp_path_factory.mktemp("sglang") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", request.param)
        with real_sglang.serving(SEED, log, grammar_backend=GRAMMAR_BACKEND) as found:
            found.original = bool(request.param)
            yield found


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(SEED), "")


@pytest.fixture(scope="module")
def prompt(tokenizer):
    first = [{"role": "system", "content": "Repair the code."}, {"role": "user", "content": "Fix f."}]
    return tokenizer.apply_chat_template(first, add_generation_prompt=True, tokenize=True, return_dict=False)


def sampled(server, prompt, length=40, tolerance=1e-2, temperature=1.0, **grammar):
    """One turn."""

    async def ask():
        params = {"temperature": temperature, "max_new_tokens": length, "stop_token_ids": [], "no_stop_trim": True}
        async with EngineClient(server.url) as client:
            return await client.generate(prompt, params | grammar, tolerance=tolerance)

    return asyncio.run(ask())


def distribution(server, ids, **grammar):
    """Token -> probability, of those that have some."""
    body = {
        "input_ids": ids,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 1, **grammar},
        "return_logprob": True,
        "top_logprobs_num": 1217,
    }
    status, answer = server.ask("/generate", body)
    assert status == 200, answer
    (top,) = answer["meta_info"]["output_top_logprobs"]
    return {token: math.exp(value) for value, token, _ in top if value is not None and value > -60}


def scores(server, ids, start, temperature=1.0):
    body = {
        "input_ids": ids,
        "sampling_params": {"temperature": temperature, "max_new_tokens": 0},
        "return_logprob": True,
        "logprob_start_len": start - 1,
    }
    _, answer = server.ask("/generate", body)
    return [value for value, *_ in answer["meta_info"]["input_token_logprobs"][1:]], answer["meta_info"]


def test_what_is_returned_is_of_the_cut_distribution_and_what_is_kept_is_known(server, prompt):
    """The probability of any allowed token as the policy's own, over that with which it is sampled, is the share of the
    whole distribution that the allowed tokens have."""
    grammar = {"regex": "(?s:[<:a-c].*)"}
    whole, cut = distribution(server, prompt), distribution(server, prompt, **grammar)
    assert sum(whole.values()) == pytest.approx(1, abs=CLOSE) == sum(cut.values())
    kept = sum(whole[token] for token in cut)
    assert 0.1 < kept < 0.95 and len(cut) > 4, "the grammar leaves some, and takes some"
    for token, share in sorted(cut.items(), key=lambda pair: -pair[1])[:8]:
        own, _ = scores(server, [*prompt, token], len(prompt))
        assert math.exp(own[0]) == pytest.approx(whole[token], abs=CLOSE)
        assert math.exp(own[0]) / share == pytest.approx(kept, rel=0.01)
    said = sampled(server, prompt, length=1, tolerance=1 - kept - 0.02, **grammar)
    assert said.untrained == {0}
    assert sampled(server, prompt, length=1, tolerance=1 - kept + 0.02, **grammar).untrained == frozenset()


def test_forced_tokens_have_probability_1_and_are_not_trained(server, prompt, tokenizer):
    said = sampled(server, prompt, regex="hello world")
    assert tokenizer.decode(said.tokens[:-1]) == "hello world" and said.finish_reason == "stop"
    assert said.log_probs == pytest.approx([0.0] * len(said.tokens), abs=CLOSE)
    assert said.untrained == {*range(len(said.tokens))}


def test_a_grammar_of_any_text_leaves_most_tokens_trained(server, prompt):
    """All but those beside which a special token, or half a character, was likely: these are no text. And without any,
    the tokens of a prompt have the probabilities with which they were sampled."""
    assert sampled(server, prompt).untrained == frozenset()
    said = sampled(server, prompt, regex="(?s:.*)")
    assert len(said.tokens) > 2 and len(said.untrained) < len(said.tokens) / 2


def test_a_grammar_s_text_matches_no_special_token(server, prompt, tokenizer):
    special = tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert special in distribution(server, prompt)
    assert special not in distribution(server, prompt, regex="(?s:.*)")


def test_tokens_behind_what_was_forced_are_the_policy_s_own_again(server, prompt, tokenizer):
    said = sampled(server, prompt, regex=r"#(?s:.*)", tolerance=0.05)
    assert tokenizer.decode(said.tokens).startswith("#")
    assert 0 in said.untrained and len(said.untrained) < len(said.tokens) / 2


def test_a_prompt_s_log_probabilities_are_those_at_temperature_1(server, prompt):
    """For which reason a recipe with a grammar must sample at it. What was in the cache is not computed again."""
    said = sampled(server, prompt, tolerance=None)
    (warm, meta), (hot, _) = (scores(server, [*prompt, *said.tokens], len(prompt), heat) for heat in (1.0, 0.5))
    assert warm == pytest.approx(hot, abs=1e-4)
    assert meta["cached_tokens"] == len(prompt) - 1
    cold = sampled(server, prompt, temperature=0.5)
    assert server.original or cold.untrained, "they differ from what was sampled at another"


def test_sglang_can_and_says_what_it_can_t_read(server):
    async def require(grammar):
        async with EngineClient(server.url) as client:
            await require_grammar(client, grammar)

    asyncio.run(require(Grammar("regex", "a+", 0.05)))
    asyncio.run(require(Grammar("ebnf", 'start: "a" /[0-9]+/', 0.05)))
    with pytest.raises(UserError, match="unclosed character class"):
        asyncio.run(require(Grammar("regex", "[", 0.05)))
