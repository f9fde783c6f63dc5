"""The loop with the real server: a process of its own, whose log-probabilities the trainer finds again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.embedded.forward import recompute_log_probs
from slime_swe.embedded.loop import train
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.server_process import ServerError, ServerProcess, update_weights, url_of
from slime_swe.embedded.train_data import TrainData
from slime_swe.journal import Journal
from slime_swe.launch.evaluation.play import play_sets_here
from tests.embedded.scripted import NoProgress, generate, make_args


def test_a_run_with_its_own_server_trains_on_what_was_sampled(tiny_checkpoint, tmp_path):
    """Rule 1: every trained token was sampled by the policy at the logged log-probability, to 1e-12."""
    run_dir = tmp_path / "run"
    args = make_args(tiny_checkpoint, run_dir, num_rollout=2, swe_eval_tasks={})
    args.custom_reward_post_process_path = f"{__name__}.all_count"
    summary = train(args, NoProgress())
    assert summary["logprob_diff_max"] <= 1e-12
    records = [record for record in Journal(run_dir / "episodes.jsonl").read() if record["rollout_id"] == 0]
    data = TrainData(
        tokens=[record["tokens"] for record in records],
        loss_masks=[record["loss_mask"] for record in records],
        rollout_log_probs=[record["log_probs"] for record in records],
        advantages=[0.0] * len(records),
        rollout_ids=[record["index"] for record in records],
        mask_sums=[sum(record["loss_mask"]) for record in records],
    )
    again = recompute_log_probs(Qwen2.load(tiny_checkpoint), data, range(len(data)), 1.0, 256)
    gaps = [
        abs(ours - theirs)
        for ours_R, theirs_R, mask in zip(again, data.rollout_log_probs, data.loss_masks, strict=True)
        for ours, theirs, trained in zip(ours_R, theirs_R, mask, strict=True)
        if trained
    ]
    assert len(gaps) == sum(data.mask_sums) > 100
    assert max(gaps) <= 1e-12
    later = [record for record in Journal(run_dir / "episodes.jsonl").read() if record["rollout_id"] == 1]
    weights = Qwen2.load(run_dir / "checkpoints" / "rollout_0" / "hf")
    assert all(is_close(weights, record, 1e-12) for record in later)
    assert not all(is_close(Qwen2.load(tiny_checkpoint), record, 1e-12) for record in later)


def is_close(model: Qwen2, record: dict, tolerance: float) -> bool:
    mask = record["loss_mask"]
    data = TrainData([record["tokens"]], [mask], [record["log_probs"]], [0.0], [0], [sum(mask)])
    (again,) = recompute_log_probs(model, data, range(len(data)), 1.0, 256)
    return max(abs(a - b) for a, b, m in zip(again, record["log_probs"], mask, strict=True) if m) <= tolerance


def all_count(args, samples):
    """Advantages of which none is zero, so that no sample is skipped."""
    rewards = [sample.reward for sample in samples]
    return rewards, [reward + 0.25 for reward in rewards]


async def test_a_model_that_is_not_there(tmp_path):
    with pytest.raises(ServerError, match=r"(?s)did not start.*server\.log ends with"):
        async with ServerProcess(tmp_path / "no-model", tmp_path / "server.log", threads=1, seed=0):
            pass


async def test_new_weights_are_read_and_wrong_ones_refused(tiny_checkpoint, tmp_path):
    async with ServerProcess(tiny_checkpoint, tmp_path / "server.log", threads=1, seed=0) as server:
        server.require_alive()
        await update_weights(server.host, server.port, tiny_checkpoint, 3)
        with pytest.raises(ServerError, match="no-model"):
            await update_weights(server.host, server.port, tmp_path / "no-model", 4)
        pid = server._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_ipv6_address_is_bracketed():
    assert url_of("::1", 80) == "http://[::1]:80"
    assert url_of("node.local", 80) == "http://node.local:80"


_DEATHS: list[int] = []


async def generate_until_the_server_dies(args, sample, sampling_params, evaluation=False):
    from slime_swe.sample import Sample

    if not _DEATHS:
        _DEATHS.append(server_of(os.getpid()))
        os.kill(_DEATHS[0], signal.SIGKILL)
        time.sleep(0.1)
    try:
        return await generate(args, sample, sampling_params, evaluation)
    except OSError:
        sample.status, sample.reward, sample.remove_sample = Sample.Status.ABORTED, 0.0, True
        sample.loss_mask = [0] * sample.response_length
        return sample


def server_of(parent: int) -> int:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            status = (entry / "status").read_text()
        except OSError:
            continue
        if b"slime_swe.embedded.server" in words and f"PPid:\t{parent}\n" in status:
            return int(entry.name)
    raise AssertionError("no server")


def test_a_server_that_dies_stops_the_run_and_the_run_can_be_resumed(tiny_checkpoint, tmp_path):
    _DEATHS.clear()
    args = make_args(tiny_checkpoint, tmp_path / "run", num_rollout=1, swe_eval_tasks={})
    args.custom_generate_function_path = f"{__name__}.generate_until_the_server_dies"
    with pytest.raises(ServerError, match="ended with code -9"):
        train(args, NoProgress())
    args.load = args.save
    train(args, NoProgress())
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["num_rollouts"] == 1


def test_a_server_that_dies_ends_an_evaluation(tiny_checkpoint, tmp_path):
    """Nobody starts it again, so that no end of an outage is waited for."""
    _DEATHS.clear()
    args = make_args(tiny_checkpoint, tmp_path / "run", swe_eval_tasks={})
    args.custom_generate_function_path = f"{__name__}.generate_until_the_server_dies"
    with pytest.raises(ServerError, match="ended with code -9"):
        asyncio.run(play_sets_here(args, tmp_path, {"heldout": load_tasks("synthetic:heldout?limit=3")}))
