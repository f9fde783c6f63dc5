"""Whole rollouts over SLiME's own parser, router and rollout function, with our plug-ins and the embedded server."""

from __future__ import annotations

import asyncio
import json

import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.slime_plugin import TaskDataSource
from slime_swe.rollout.loop_scope import close_loop_scope
from tests.contract.wire import Wire, WiredServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def server_class(wire):
    return WiredServer.over(wire)


def test_slimes_rollout_function_plays_our_episodes(routed):
    from slime.rollout.sglang_rollout import generate_rollout

    samples = played(generate_rollout(routed, 0, TaskDataSource(routed)).samples)
    assert {sample.group_index for sample in samples} == {0, 1}


def played(groups):
    assert [len(group) for group in groups] == [4, 4]
    samples = [sample for group in groups for sample in group]
    assert {sample.metadata["episode"]["stop_reason"] for sample in samples} <= {
        "submitted",
        "max_turns",
        "no_tool_call",
        "context_full",
    }
    assert all(sample.reward in (-1.0, 1.0) for sample in samples)
    assert all(any(sample.loss_mask) for sample in samples)
    return samples


def test_our_rollout_function_is_called_as_slimes(routed):
    """Groups that the filter drops are replaced; what comes back is of SLiME's own type."""
    from slime.rollout.base_types import RolloutFnTrainOutput, call_rollout_fn
    from slime.utils.misc import load_function

    routed.dynamic_sampling_filter_path = "slime_swe.rewards.slime_plugin.keep_group"
    source = TaskDataSource(routed)
    rollout = load_function("slime_swe.rollout.slime_plugin.generate_rollout")
    outputs = [call_rollout_fn(rollout, routed, number, source, evaluation=False) for number in range(2)]
    assert all(isinstance(output, RolloutFnTrainOutput) for output in outputs)
    for output in outputs:
        samples = played(output.samples)
        for group in output.samples:
            assert {sample.reward for sample in group} == {-1.0, 1.0}, "every group has something to learn"
        assert len({sample.group_index for sample in samples}) == 2


def test_episodes_that_slime_aborts_make_no_further_calls(routed, wire):
    """Ten of its twelve groups, of which it wants two."""
    from slime.rollout.sglang_rollout import generate_rollout

    routed.over_sampling_batch_size = 12
    played(generate_rollout(routed, 0, TaskDataSource(routed)).samples)
    aborted = wire.calls.index("/abort_request")
    assert wire.calls[aborted:].count("/generate") <= 1


def test_ten_groups_that_a_batch_leaves_unfinished_make_no_calls_and_lose_nothing(routed, wire):
    from slime.utils.async_utils import run

    from slime_swe.rollout.slime_plugin import generate_rollout

    routed.swe_schedule, routed.swe_max_staleness = "carry", 5
    source = TaskDataSource(routed)
    try:
        trained = played(generate_rollout(routed, 0, source).samples)
        calls, waiting = len(wire.calls), list(wire.aborted)
        run(asyncio.sleep(0.5))
        assert len(wire.calls) == calls
        assert wire.left(waiting) == len(waiting) > 0
        for number in range(1, 6):
            trained += played(generate_rollout(routed, number, source).samples)
        assert {sample.group_index for sample in trained} == set(range(12)), "those that began at first"
        assert not any(sample.metadata.get("infrastructure") for sample in trained)
        assert not wire.left(waiting)
    finally:
        run(close_loop_scope())


def test_our_rollout_function_plays_evaluations_as_slime_asks_for_them(routed, tmp_path):
    """SLiME's own reports take what comes back."""
    from slime.observability.rollout_metrics import log_eval_rollout_data
    from slime.rollout.base_types import RolloutFnEvalOutput, call_rollout_fn
    from slime.utils.misc import load_function

    sets = {"few": 3, "fewer": 2}
    for name, count in sets.items():
        records = [json.dumps(task.to_dict()) for task in load_tasks("synthetic:heldout")[:count]]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(records))
    routed.swe_eval_tasks = {name: str(tmp_path / f"{name}.jsonl") for name in sets}
    function = load_function(routed.eval_function_path)
    output = call_rollout_fn(function, routed, 0, TaskDataSource(routed), evaluation=True)
    assert isinstance(output, RolloutFnEvalOutput)
    assert {name: len(result["rewards"]) for name, result in output.data.items()} == sets
    routed.use_tensorboard = False  # it would write where the test is started
    figures = log_eval_rollout_data(0, routed, output.data, output.metrics)
    for name in sets:
        rewards = output.data[name]["rewards"]
        assert set(rewards) <= {-1.0, 1.0} and figures[f"eval/{name}"] == sum(rewards) / len(rewards)
