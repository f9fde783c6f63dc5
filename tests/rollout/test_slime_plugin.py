from __future__ import annotations

import asyncio
import inspect
import shutil
from argparse import Namespace
from array import array
from contextlib import asynccontextmanager
from typing import get_args
from urllib.parse import urlsplit

import orjson
import pytest

from slime_swe.errors import UserError
from slime_swe.rollout import slime_plugin
from slime_swe.rollout.agents.base import Agent
from slime_swe.rollout.chat.template import TemplateError
from slime_swe.rollout.client import EngineClient
from slime_swe.rollout.episode import TRUNCATED, Episode, Segment, StopReason
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.metrics import episode_metrics
from slime_swe.rollout.play import Play, Player
from slime_swe.rollout.records import to_samples, version_spans_of
from slime_swe.rollout.scripted import serve
from slime_swe.rollout.settings import Truncation
from slime_swe.sample import Sample
from tests.rollout.conftest import make_tokenizer
from tests.rollout.support import FIX, PARAMS, SUBMIT, VIEW, make_args, make_sample, no_reward, said
from tests.rollout.test_client import body, reply


def test_the_signatures_are_slime_s():
    assert list(inspect.signature(slime_plugin.generate).parameters) == [
        "args",
        "sample",
        "sampling_params",
        "evaluation",
    ]
    log = ["rollout_id", "args", "samples", "rollout_extra_metrics", "rollout_time"]
    assert list(inspect.signature(slime_plugin.log_rollout).parameters) == log
    assert list(inspect.signature(slime_plugin.log_evaluation).parameters) == [
        "rollout_id",
        "args",
        "data",
        "extra_metrics",
    ]


async def test_an_episode_becomes_a_sample(run_with):
    async with run_with(VIEW, FIX, SUBMIT) as (args, engine):
        given = make_sample()
        sample = await slime_plugin.generate(args, given, PARAMS)
    assert sample is given
    assert sample.status is Sample.Status.COMPLETED
    assert (sample.index, sample.group_index, sample.rollout_id, sample.reward) == (5, 2, 5, None)
    assert sample.response_length == len(sample.loss_mask) == len(sample.rollout_log_probs)
    prompt = sample.tokens[: len(sample.tokens) - sample.response_length]
    assert prompt == engine.requests[0]["input_ids"]
    assert sample.response.startswith("<tool_call>\n") and sample.response.endswith("</tool_call>")
    assert sample.weight_versions == ["3"]
    assert not sample.remove_sample
    assert sample.non_generation_time > 0
    episode = sample.metadata["episode"]
    assert episode["stop_reason"] == "submitted" and episode["turns"] == 3 and not episode["evaluation"]
    assert "+    return a + b" in episode["patch"]
    assert orjson.loads(orjson.dumps(sample.metadata)) == sample.metadata


@pytest.mark.parametrize("evaluation", [False, True])
async def test_shared_sampling_parameters_and_metadata_are_never_changed(run_with, evaluation):
    async with run_with(VIEW, SUBMIT) as (args, _):
        params, metadata = dict(PARAMS), make_sample().metadata
        kept = orjson.dumps(metadata)
        await slime_plugin.generate(args, _with(metadata), params, evaluation=evaluation)
    assert params == PARAMS
    assert orjson.dumps(metadata) == kept


def _with(metadata) -> Sample:
    sample = make_sample()
    sample.metadata = metadata
    return sample


async def test_seeds_depend_on_sample_turn_and_purpose_alone(run_with):
    async with run_with(VIEW, SUBMIT) as (args, engine):

        async def seeds(index: int, evaluation: bool = False) -> tuple[int, ...]:
            engine.requests.clear()
            await slime_plugin.generate(args, make_sample(index), PARAMS, evaluation=evaluation)
            return tuple(asked["sampling_params"]["sampling_seed"] for asked in engine.requests)

        one = await seeds(5)
        assert one == await seeds(5)
        assert len({*one, *await seeds(6), *await seeds(5, evaluation=True)}) == 6
        args.sglang_enable_deterministic_inference = False
        with pytest.raises(KeyError):
            await seeds(5)


async def test_an_episode_that_infrastructure_broke_is_tried_again_by_the_player(run_with):
    async with run_with(FIX, SUBMIT, sglang_server_concurrency=1) as (args, engine):
        usual, calls = engine.handle, []

        async def flaky(request):
            calls.append(1)
            return await body(b"nonsense")(request) if len(calls) == 1 else await usual(request)

        async with serve(flaky) as url:
            args.sglang_router_port = urlsplit(url).port
            player = Player(args, RolloutHooks(slime_plugin.generate, no_reward, None))
            sample = await player.play(Play(make_sample()), PARAMS, evaluation=False)
    assert sample.status is Sample.Status.COMPLETED
    assert "infrastructure" not in sample.metadata
    assert sample.metadata["episode"]["counters"]["broken_attempts"] == {"engine_error": 1}
    assert len(calls) == 3


async def test_an_episode_that_infrastructure_breaks_is_no_reward_and_tried_once(checkpoint, tmp_path):
    calls = []

    async def broken(request):
        calls.append(1)
        return await body(b"nonsense")(request)

    async with serve(broken) as url:
        sample = await slime_plugin.generate(make_args(checkpoint, url, tmp_path), make_sample(), PARAMS)
    assert len(calls) == 1
    assert sample.status is Sample.Status.ABORTED
    assert sample.metadata["episode"]["counters"]["broken_attempts"] == {}
    assert (sample.reward, sample.remove_sample) == (0.0, True)
    assert sample.metadata["infrastructure"]["where"] == "engine_error"
    assert "not JSON" in sample.metadata["infrastructure"]["detail"]
    assert (sample.response_length, sample.loss_mask, sample.rollout_log_probs) == (1, [0], [0.0])
    assert len(sample.tokens) == 2


async def test_a_token_outside_the_vocabulary_is_infrastructure(checkpoint, tokenizer, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    rows = len(tokenizer) + 8  # an embedding is padded: what the tokenizer lacks may be sampled
    (folder / "config.json").write_text(f'{{"model_type": "qwen2", "vocab_size": {rows}}}')
    said = [rows - 1]

    async def garbage(request):
        return await body(reply(tokens=said, log_probs=[-1.0]))(request)

    async with serve(garbage) as url:
        args = make_args(str(folder), url, tmp_path)
        assert (await slime_plugin.generate(args, make_sample(), PARAMS)).status is Sample.Status.COMPLETED
        said[0] = rows
        sample = await slime_plugin.generate(args, make_sample(), PARAMS)
    assert sample.status is Sample.Status.ABORTED
    assert f"token id {rows} is outside the vocabulary" in sample.metadata["infrastructure"]["detail"]


async def test_an_episode_whose_request_is_aborted_again_and_again_is_broken(checkpoint, tmp_path):
    calls = []

    async def abort(request):
        calls.append(1)
        return await body({"meta_info": {"finish_reason": {"type": "abort", "message": "enough"}}})(request)

    async with serve(abort) as url:
        sample = await slime_plugin.generate(make_args(checkpoint, url, tmp_path), make_sample(), PARAMS)
    assert len(calls) == EngineClient.attempts
    assert sample.status is Sample.Status.ABORTED


async def test_a_sample_that_comes_round_again_starts_afresh(run_with):
    async with run_with(FIX, SUBMIT) as (args, _):
        old = make_sample(tokens=[1, 2, 3], response="x", response_length=2, reward=0.0, status=Sample.Status.ABORTED)
        old.remove_sample = True
        old.metadata["infrastructure"] = {"where": "engine_error"}
        again = await slime_plugin.generate(args, old, PARAMS)
        fresh = await slime_plugin.generate(args, make_sample(), PARAMS)
    assert again.tokens == fresh.tokens and again.reward is None
    assert not again.remove_sample and "infrastructure" not in again.metadata


@pytest.mark.parametrize(
    ("turns", "changes", "status", "reason"),
    [
        ([VIEW], {"swe_max_turns": 2}, Sample.Status.TRUNCATED, StopReason.MAX_TURNS),
        ([VIEW], {"rollout_max_context_len": 1000}, Sample.Status.TRUNCATED, StopReason.CONTEXT_FULL),
        (["no<|im_end|>"], {}, Sample.Status.COMPLETED, StopReason.NO_TOOL_CALL),
    ],
)
async def test_the_policy_s_own_failures_keep_their_tokens(run_with, turns, changes, status, reason):
    async with run_with(*turns, **changes) as (args, _):
        sample = await slime_plugin.generate(args, make_sample(), PARAMS)
    assert (sample.status, sample.metadata["episode"]["stop_reason"]) == (status, reason.value)
    assert sample.reward is None and not sample.remove_sample and any(sample.loss_mask)
    assert sample.loss_mask[-1] == 1, "context after the last sampled token is dropped"
    assert len(sample.tokens) <= args.rollout_max_context_len


@pytest.mark.parametrize(
    ("stops", "evaluation", "masked"),
    [(["max_turns"], False, True), (["time_budget"], False, False), ([], False, False), (["max_turns"], True, False)],
)
async def test_a_truncated_episode_is_left_out_of_the_loss_where_its_stop_reason_is_named(
    run_with, stops, evaluation, masked
):
    async with run_with(VIEW, swe_max_turns=2, swe_mask_truncated=stops) as (args, _):
        sample = await slime_plugin.generate(args, make_sample(), PARAMS, evaluation=evaluation)
    assert sample.status is Sample.Status.TRUNCATED and any(sample.loss_mask)
    assert sample.remove_sample == sample.metadata["episode"]["masked"] == masked
    assert episode_metrics([sample])["masked"] == masked


def test_the_stop_reasons_that_may_be_left_out_are_those_that_truncate():
    assert set(get_args(Truncation)) == {reason.value for reason in TRUNCATED}


class Forking(Agent):
    """An agent that rewrites its history once, so that its episode becomes two segments."""

    placeholder_token = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, settings):
        yield cls()

    def decode(self, tokens):
        return ",".join(map(str, tokens))

    async def run(self, task, sandbox, session, sampling, statistics):
        session.add_context([1, 2])
        session.add_sampled(said([3], [-0.5], version="1"))
        session.add_context([9, 9])
        session.fork(None)
        session.add_context([1])
        session.add_sampled(said([4, 5], [-0.25, -0.5], version="2"))
        return StopReason.SUBMITTED


async def test_an_evaluation_has_figures_for_the_logging_hook_to_fill(run_with):
    """SLiME hands the rollout function's own mapping on to the hook, and None where it gives none."""
    ours = {"generate_function": "rollout.slime_plugin.generate", "rm": "rewards.slime_plugin.reward"}
    paths = {f"custom_{name}_path": f"slime_swe.{path}" for name, path in ours.items()}
    sizes = {"rollout_batch_size": 1, "n_samples_per_prompt": 2, "swe_max_over_sampling": 2.0}
    sizes |= {"sglang_server_concurrency": 1, "rollout_num_gpus": 1, "rollout_num_gpus_per_engine": 1, "num_rollout": 3}
    async with run_with(swe_eval_tasks={}, **paths, **sizes) as (args, _):
        assert (await slime_plugin._evaluate(args, 0)).metrics == {}


async def test_segments_of_one_episode_are_siblings(checkpoint, tmp_path):
    agent = "tests.rollout.test_slime_plugin.Forking"
    args = make_args(checkpoint, "http://x:1", tmp_path, swe_agent=agent)
    given = make_sample(7)
    one, two = await slime_plugin.generate(args, given, PARAMS)
    other = await slime_plugin.generate(args, make_sample(8), PARAMS)
    assert one is given
    assert (one.tokens, one.response, one.loss_mask) == ([1, 2, 3], "3", [1])
    assert (two.tokens, two.response, two.loss_mask) == ([1, 4, 5], "4,5", [1, 1])
    assert two.rollout_log_probs == [-0.25, -0.5]
    assert {s.rollout_id for s in (one, two)} == {7} and {s.group_index for s in (one, two)} == {2}
    assert len({s.index for s in (one, two, *other)}) == 4
    assert one.metadata is not two.metadata and one.metadata["episode"] == two.metadata["episode"]
    assert [version_spans_of(sample) for sample in (one, two)] == [[("1", 1)], [("2", 2)]]


@pytest.mark.parametrize("knows", [True, False], ids=["from there on", "the whole table"])
async def test_each_model_call_asks_for_the_experts_that_are_not_known_yet(run_with, knows):
    replay = {"use_rollout_routing_replay": True, "num_layers": 2, "moe_router_topk": 1}
    async with run_with(VIEW, FIX, SUBMIT, **replay) as (args, engine):
        engine.experts = lambda start, end: array("i", range(2 * start * knows, 2 * end)).tobytes()
        sample = await slime_plugin.generate(args, make_sample(), PARAMS)
    table = sample.rollout_routed_experts
    assert [expert for token in table for layer in token for expert in layer] == [*range(2 * len(sample.tokens) - 2)]
    ends = [len(one.prompt) + len(one.tokens) - 1 for one in engine.sampled]
    assert [asked["routed_experts_start_len"] for asked in engine.requests] == [0, *ends[:-1]]


def test_a_tail_that_is_not_trained_takes_its_experts_with_it():
    args = Namespace(num_layers=1, moe_router_topk=1)
    parts = (array("i", [5, 6]).tobytes(), array("i", [7, 8]).tobytes())
    segment = Segment([1, 2, 3, 4, 5], [0, 1, 1, 0, 0], [0.0, -0.5, -0.5, 0.0, 0.0], 1, routed_experts=parts)
    episode = Episode("task", (segment,), "", StopReason.SUBMITTED)
    (sample,) = to_samples(args, make_sample(), episode, str, placeholder=0)
    assert sample.tokens == [1, 2, 3]
    assert [[list(layer) for layer in token] for token in sample.rollout_routed_experts] == [[[5]], [[6]]]
    (evaluated,) = to_samples(args, make_sample(), episode, str, placeholder=0, evaluation=True)
    assert evaluated.rollout_routed_experts is None, "a whole set of evaluated episodes is held at once"


async def test_routing_replay_without_the_sizes_of_its_tables_is_refused(checkpoint, tmp_path):
    args = make_args(checkpoint, "http://x:1", tmp_path, use_rollout_routing_replay=True)
    with pytest.raises(UserError, match=r"args\.num_layers and args\.moe_router_topk"):
        await slime_plugin.generate(args, make_sample(), PARAMS)


async def test_with_routing_replay_a_broken_episode_has_experts_too(checkpoint, tmp_path):
    """SLiME refuses a batch in which one sample has none, or zeros throughout."""
    async with serve(body(b"nonsense")) as url:
        replay = {"use_rollout_routing_replay": True, "num_layers": 3, "moe_router_topk": 2}
        args = make_args(checkpoint, url, tmp_path, **replay)
        sample = await slime_plugin.generate(args, make_sample(), PARAMS)
    assert sample.status is Sample.Status.ABORTED
    assert [[list(layer) for layer in token] for token in sample.rollout_routed_experts] == [[[0, 1]] * 3]


async def test_many_at_once_are_each_as_if_alone(run_with):
    async with run_with(VIEW, FIX, SUBMIT) as (args, _):
        alone = await slime_plugin.generate(args, make_sample(0), PARAMS)
        crowd = await asyncio.gather(*(slime_plugin.generate(args, make_sample(i), PARAMS) for i in range(12)))
    assert all(sample.tokens == alone.tokens for sample in crowd)
    assert [sample.index for sample in crowd] == list(range(12))


async def test_cancelling_ends_the_episode_at_once(run_with):
    async with run_with('<tool_call>{"name": "bash", "arguments": {"command": "sleep 60"}}</tool_call>') as (
        args,
        engine,
    ):
        running = asyncio.create_task(slime_plugin.generate(args, make_sample(), PARAMS))
        while not engine.requests:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 60)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"swe_max_turns": None}, "args.swe_max_turns is missing: set it in the recipe"),
        ({"swe_max_turns": 0}, "args.swe_max_turns must be int of at least 1, got 0"),
        ({"swe_time_budget": "1m"}, "args.swe_time_budget must be float, got '1m'"),
        ({"swe_tool_format": "hermess"}, "Did you mean 'hermes'"),
        ({"swe_agent": "nativ"}, "Did you mean 'native'.*or a dotted path"),
        ({"swe_agent": "no_such.module.open"}, "rollout.agent='no_such.module.open': there is no module 'no_such'"),
        ({"swe_agent": "slime_swe.rollout.play.open"}, "rollout.agent=.*has no 'open'"),
        ({"swe_agent": "..open"}, "rollout.agent='..open' is no dotted path"),
        ({"rollout_top_p": 0.9}, "args.rollout_top_p is 0.9: training needs 1.0"),
        ({"rollout_top_k": 5}, "args.rollout_top_k is 5: training needs -1"),
        ({"sglang_router_ip": None}, "args.sglang_router_ip is missing: .*--sglang-router-ip"),
    ],
)
async def test_a_wrong_argument_is_named(checkpoint, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        await slime_plugin.generate(make_args(checkpoint, "http://x:1", tmp_path, **changes), make_sample(), PARAMS)


async def test_a_sample_without_a_task_is_named(checkpoint, tmp_path):
    with pytest.raises(UserError, match="it must be a JSON object"):
        await slime_plugin.generate(make_args(checkpoint, "http://x:1", tmp_path), Sample(index=0), PARAMS)


async def test_a_checkpoint_whose_template_can_t_be_proven_stops_the_run(tmp_path):
    make_tokenizer(None).save_pretrained(tmp_path / "bare")
    with pytest.raises(TemplateError, match="no chat template"):
        await slime_plugin.generate(make_args(str(tmp_path / "bare"), "http://x:1", tmp_path), make_sample(), PARAMS)
