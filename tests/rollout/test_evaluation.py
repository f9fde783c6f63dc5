"""Evaluation plays every task as often as asked, the same episodes each time, and reports apart what broke."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections import Counter

import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.errors import InfrastructureError
from slime_swe.launch.plan.simulation.machines import simulate
from slime_swe.rollout.evaluation import as_slime, evaluate, load_evaluation_tasks
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.metrics import evaluation_metrics
from slime_swe.rollout.play import Player
from slime_swe.rollout.replies import Refused
from slime_swe.sample import Sample
from tests.embedded.scripted import make_args, write_tasks


def make_player(generate, reward=None, **changes) -> Player:
    args = make_args_only(**changes)
    return Player(args, RolloutHooks(generate, reward, None))


def make_args_only(**changes) -> Namespace:
    values = dict(
        rollout_temperature=0.3, rollout_top_p=1.0, rollout_top_k=5, rollout_max_response_len=8, rollout_stop=None,
        rollout_stop_token_ids=None, rollout_skip_special_tokens=False, sglang_server_concurrency=4, rollout_seed=9,
        sglang_enable_deterministic_inference=True, n_samples_per_eval_prompt=3, swe_max_attempts=1,
    )  # fmt: skip
    return Namespace(**(values | changes))


async def test_every_task_is_played_at_temperature_1_in_a_fixed_order(tmp_path):
    calls = []

    async def generate(args, sample, sampling_params, evaluation=False):
        calls.append((sample.index, sample.prompt, sampling_params, evaluation))
        sample.status, sample.reward = Sample.Status.COMPLETED, 1.0
        return sample

    tasks = load_tasks(str(write_tasks(tmp_path / "t.jsonl", "heldout", 4)))
    samples = await evaluate(make_player(generate), tasks)
    assert [sample.index for sample in samples] == list(range(12))
    assert [sample.metadata["task"]["id"] for sample in samples] == [f"heldout-{i // 3}" for i in range(12)]
    assert all(evaluation for *_, evaluation in calls)
    params = [params for _, _, params, _ in calls]
    assert {(p["temperature"], p["top_p"], p["top_k"], p["max_new_tokens"]) for p in params} == {(1.0, 1.0, -1, 8)}
    assert [p["sampling_seed"] for p in params] == [9, 10, 11] * 4
    assert len({id(p) for p in params}) == 12  # one hook that changes its own can't change another's


async def test_the_number_of_episodes_at_once_is_bounded(tmp_path):
    import asyncio

    running, most = 0, 0

    async def generate(args, sample, sampling_params):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        sample.status, sample.reward = Sample.Status.COMPLETED, 0.0
        return sample

    tasks = load_tasks(str(write_tasks(tmp_path / "t.jsonl", "heldout", 5)))
    await evaluate(make_player(generate), tasks)
    assert most == 4


def test_a_broken_episode_is_tried_again_and_then_reported_apart(tmp_path):
    tries: Counter[int] = Counter()

    async def generate(args, sample, sampling_params, evaluation=False):
        tries[sample.index] += 1
        assert sample.reward is None and sample.status == Sample.Status.PENDING
        always, once = sample.index == 2, sample.index == 5 and tries[5] == 1
        sample.status = Sample.Status.ABORTED if always or once else Sample.Status.COMPLETED
        sample.reward, sample.remove_sample = 0.0, always or once
        sample.metadata["score"] = {"solved": True}
        return sample

    tasks = load_tasks(str(write_tasks(tmp_path / "t.jsonl", "heldout", 3)))
    metrics = evaluation_metrics(simulate(evaluate(make_player(generate, swe_max_attempts=3), tasks)))
    assert tries == Counter({index: {2: 3, 5: 2}.get(index, 1) for index in range(9)})
    assert (metrics["episodes"], metrics["solve_rate"], metrics["infrastructure_failures"]) == (8, 1.0, 1)
    assert metrics["outcomes"]["heldout-0"] == [1, 1, None]


def test_what_is_known_is_left_out_and_what_is_over_is_kept_at_once(tmp_path):
    played, kept, shown = [], [], []
    broken = {1: 1, 3: 2}  # index -> how often

    async def generate(args, sample, sampling_params, evaluation=False):
        played.append(sample.index)
        fails = played.count(sample.index) <= broken.get(sample.index, 0)
        sample.status = Sample.Status.ABORTED if fails else Sample.Status.COMPLETED
        sample.reward = 0.0
        return sample

    tasks = load_tasks(str(write_tasks(tmp_path / "t.jsonl", "heldout", 2)))
    samples = simulate(
        evaluate(
            make_player(generate, sglang_server_concurrency=1, swe_max_attempts=3),
            tasks,
            lambda done, total: shown.append((done, total)),
            known={0, 4},
            may_begin=lambda: len(played) < 6,
            keep=lambda samples: kept.append([sample.index for sample in samples]),
        )
    )
    assert played[:4] == [1, 2, 3, 5] and sorted(played[4:]) == [1, 3]
    assert kept == [[2], [5], [1], [3]]
    assert [sample.index for sample in samples] == [1, 2, 3, 5]
    assert [sample.status is Sample.Status.ABORTED for sample in samples] == [False, False, True, False]
    assert shown == [(3, 6), (4, 6), (5, 6), (6, 6)]
    assert simulate(evaluate(make_player(generate), tasks, may_begin=lambda: False)) == []


async def test_a_refusal_lets_what_is_being_graded_end(tmp_path):
    import asyncio

    begun, kept, asked = [], [], asyncio.Event()

    async def generate(args, sample, sampling_params, evaluation=False):
        begun.append(sample.index)
        if sample.index == 1:
            asked.set()
            raise Refused("no more credit")
        sample.status = Sample.Status.COMPLETED
        return sample

    async def reward(args, sample):
        await asked.wait()
        await asyncio.sleep(0.01)
        return 1.0

    tasks = load_tasks(str(write_tasks(tmp_path / "t.jsonl", "heldout", 2)))
    player = make_player(generate, reward, sglang_server_concurrency=1)
    with pytest.raises(Refused, match="no more credit"):
        await evaluate(player, tasks, keep=lambda samples: kept.append(samples[0].index))
    assert (begun, kept) == ([0, 1], [0])


async def test_slime_s_means_are_those_of_sound_episodes(tmp_path):
    """Each counts once, whatever its number of samples."""
    args = make_args_only()
    hook = {}

    async def generate(args, sample, sampling_params, evaluation=False):
        sample.status, sample.reward = Sample.Status.COMPLETED, float(sample.index)
        if sample.index in hook:
            sample.status, sample.reward, sample.remove_sample = Sample.Status.ABORTED, 0.0, True
            return sample
        siblings = [copy.copy(sample) for _ in range(2)]
        siblings[1].status = Sample.Status.TRUNCATED
        return siblings if sample.index == 1 else sample

    player = Player(args, RolloutHooks(generate, None, None))
    tasks = load_tasks(str(write_tasks(tmp_path / "t.jsonl", "heldout", 1)))
    hook[2] = "broken"
    found = as_slime(await evaluate(player, tasks))
    assert (found["rewards"], found["truncated"], len(found["samples"])) == ([0.0, 1.0], [False, True], 4)
    hook |= {0: "broken", 1: "broken"}
    with pytest.raises(InfrastructureError, match="all 3 episodes of an evaluation"):
        await evaluate(player, tasks)


def test_sets_are_loaded_by_name_in_their_order(tmp_path):
    args = make_args(tmp_path, tmp_path / "run")
    assert list(load_evaluation_tasks(args)) == ["heldout", "unseen"]
    assert load_evaluation_tasks(Namespace(swe_eval_tasks=None)) == {}
