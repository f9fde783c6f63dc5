"""A whole rollout by SLiME's own code: its parser, router and rollout function, our plug-ins, the embedded server."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slime_swe.launch.config import resolve
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime_cpu.render import render

requests = pytest.importorskip("requests", reason="comes with SLiME's environment")
OVERRIDES = ["rollout.batch_size=2", "rollout.samples_per_task=4", "rollout.max_turns=3", "run.num_rollouts=1"]


@pytest.fixture
async def server(slime_home, tmp_path):
    from slime_swe.embedded.server_process import ServerProcess

    seed = Path(__file__).parents[2] / "embedded" / "seed" / "checkpoint"
    async with ServerProcess(seed, tmp_path / "server.log", threads=1, seed=0, slots=16, context_length=640) as server:
        yield f"{server.host}:{server.port}"


@pytest.fixture
def args(server, tmp_path, monkeypatch):
    """What SLiME's parser makes of the job that `engine=slime_cpu` would start."""
    from slime.utils.arguments import parse_args

    job = render(resolve("tiny_cpu", OVERRIDES), tmp_path, server, checkouts=Checkouts.find())
    job.write_files()
    monkeypatch.setattr(sys, "argv", ["train.py", *(word for words in job.flags.values() for word in words)])
    return parse_args()


@pytest.mark.slow
def test_slimes_rollout_function_plays_our_episodes(args, server):
    from slime.ray.rollout import _start_router
    from slime.rollout.sglang_rollout import generate_rollout
    from slime.utils.http_utils import init_http_client

    from slime_swe.data_sources.slime_plugin import TaskDataSource

    args.sglang_router_ip, args.sglang_router_port = _start_router(args)
    router = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    requests.post(f"{router}/workers", json={"url": f"http://{server}"}, timeout=10).raise_for_status()
    init_http_client(args)
    samples = played(generate_rollout(args, 0, TaskDataSource(args)).samples)
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


@pytest.mark.slow
def test_our_rollout_function_is_called_as_slimes(args, server):
    """Groups that the filter drops are replaced; what comes back is of SLiME's own type."""
    from slime.ray.rollout import _start_router
    from slime.rollout.base_types import RolloutFnTrainOutput, call_rollout_fn
    from slime.utils.http_utils import init_http_client
    from slime.utils.misc import load_function

    from slime_swe.data_sources.slime_plugin import TaskDataSource

    args.sglang_router_ip, args.sglang_router_port = _start_router(args)
    router = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    requests.post(f"{router}/workers", json={"url": f"http://{server}"}, timeout=10).raise_for_status()
    init_http_client(args)
    args.dynamic_sampling_filter_path = "slime_swe.rewards.slime_plugin.keep_group"
    source = TaskDataSource(args)
    rollout = load_function("slime_swe.rollout.slime_plugin.generate_rollout")
    outputs = [call_rollout_fn(rollout, args, number, source, evaluation=False) for number in range(2)]
    assert all(isinstance(output, RolloutFnTrainOutput) for output in outputs)
    for output in outputs:
        samples = played(output.samples)
        for group in output.samples:
            assert {sample.reward for sample in group} == {-1.0, 1.0}, "every group has something to learn"
        assert len({sample.group_index for sample in samples}) == 2
