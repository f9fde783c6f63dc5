"""Evaluation: every task of every evaluation set, played through the training run's own plug-ins."""

from __future__ import annotations

import uuid
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.slime_plugin import sample_of
from slime_swe.data_sources.task import Task
from slime_swe.errors import InfrastructureError
from slime_swe.rollout.player import Player, gather, sampling_params, seeded
from slime_swe.rollout.records import failure_of, is_broken, trajectories
from slime_swe.sample import Sample

ROUNDS = 2  # an episode that infrastructure broke (after the plug-in's own attempts) is played once more at the end


def load_evaluation_tasks(args: Namespace) -> dict[str, list[Task]]:
    """The evaluation sets by name, in the given order."""
    return {name: load_tasks(spec) for name, spec in (args.swe_eval_tasks or {}).items()}


async def evaluate(
    player: Player, tasks: Sequence[Task], on_episode: Callable[[int, int], None] = lambda done, total: None
) -> list[Sample]:
    """Play `n_samples_per_eval_prompt` episodes of each task; siblings stay together, tasks in order.

    They are sampled at temperature 1, or at `eval_temperature` (SLiME's name, which recipes leave out).
    Sample indices, and so sampling seeds, are the same in every evaluation: two of them differ by the policy alone.
    `on_episode` is called with how many are played, and of how many. An episode that infrastructure still breaks
    after a second round comes back ABORTED: it is for the caller to report. Raises `InfrastructureError` where all do.
    """
    args = player.args
    temperature = getattr(args, "eval_temperature", None)
    params = sampling_params(args) | {"top_p": 1.0, "top_k": -1}
    params["temperature"] = 1.0 if temperature is None else temperature
    count = args.n_samples_per_eval_prompt
    places = [(number, task, place) for number, task in enumerate(tasks) for place in range(count)]
    results: dict[int, list[Sample]] = {}
    pending = list(range(len(places)))
    done = 0

    async def play(index: int) -> Sample | list[Sample]:
        nonlocal done
        number, task, place = places[index]
        sample = sample_of(task, index=index, group_index=number)
        sample.session_id = uuid.uuid4().hex  # by which a router keeps its calls on one engine
        episode = await player.play(sample, seeded(args, params, place), evaluation=True)
        done += 1
        on_episode(min(done, len(places)), len(places))
        return episode

    for _ in range(ROUNDS):
        played = await gather(play(index) for index in pending)
        results |= {
            index: episode if isinstance(episode, list) else [episode]
            for index, episode in zip(pending, played, strict=True)
        }
        pending = [index for index in pending if is_broken(results[index])]
        if not pending:
            break
    if places and len(pending) == len(places):
        why = failure_of(results[0][0]) or "no reason given"
        raise InfrastructureError(f"all {len(places)} episodes of an evaluation were broken by infrastructure: {why}")
    return [sample for index in range(len(places)) for sample in results[index]]


def as_slime(samples: list[Sample]) -> dict[str, Any]:
    """The shape in which SLiME hands one evaluation set to its logging hook, and takes the means of the first two.

    These have one entry for an episode, and none for one that infrastructure broke.
    """
    sound = [segments for segments in trajectories(samples) if not is_broken(segments)]
    return {
        "rewards": [segments[0].reward for segments in sound],
        "truncated": [any(sample.status == Sample.Status.TRUNCATED for sample in segments) for segments in sound],
        "samples": samples,
    }
