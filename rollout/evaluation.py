"""Evaluation: every task of every evaluation set, played through the training run's own plug-ins."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.slime_plugin import sample_of
from slime_swe.data_sources.task import Task
from slime_swe.errors import InfrastructureError
from slime_swe.rollout.play import Play, Player, gather, sampling_params, seeded
from slime_swe.rollout.records import failure_of, is_broken, trajectories
from slime_swe.rollout.replies import Refused
from slime_swe.sample import Sample


def load_evaluation_tasks(args: Namespace) -> dict[str, list[Task]]:
    """Load the evaluation sets, by name, in the given order."""
    return {name: load_tasks(spec) for name, spec in (args.swe_eval_tasks or {}).items()}


async def evaluate(
    player: Player,
    tasks: Sequence[Task],
    on_episode: Callable[[int, int], None] = lambda done, total: None,
    *,
    known: Container[int] = frozenset(),
    may_begin: Callable[[], bool] = lambda: True,
    keep: Callable[[list[Sample]], None] = lambda samples: None,
) -> list[Sample]:
    """Play `n_samples_per_eval_prompt` episodes of each task; siblings stay together, tasks in order.

    They are sampled at temperature 1, or at `eval_temperature` (SLiME's name, which recipes leave out).
    Sample indices, and so sampling seeds, are the same in every evaluation: two of them differ by the policy alone.
    `on_episode` is called with how many are played, and of how many. An episode that infrastructure breaks as often as
    the player tries it comes back ABORTED: it is for the caller to report.

    known: indices that are left out, as they were played before. may_begin: asked before each attempt at an episode;
    what may not begin is left out. keep: called with the samples of each episode once it is over.
    Raises `InfrastructureError` where infrastructure broke all that were played, and none is known; and `Refused` where
    an endpoint will answer no more, once the episodes have ended that need it no more and are being graded.
    """
    evaluation = _Evaluation(player, tasks, on_episode, may_begin, keep)
    pending = [index for index in range(evaluation.total) if index not in known]
    evaluation.done = known_before = evaluation.total - len(pending)
    await gather(map(evaluation.play, pending))
    if evaluation.refused:
        raise evaluation.refused[0]
    results = evaluation.results
    if results and not known_before and all(map(is_broken, results.values())):
        why = failure_of(results[min(results)][0]) or "no reason given"
        raise InfrastructureError(f"all {len(results)} episodes of an evaluation were broken by infrastructure: {why}")
    return [sample for index in sorted(results) for sample in results[index]]


@dataclass
class _Evaluation:
    """One evaluation as it goes on: the samples of each episode that was played, and what an endpoint refused."""

    player: Player
    tasks: Sequence[Task]
    on_episode: Callable[[int, int], None]
    may_begin: Callable[[], bool]
    keep: Callable[[list[Sample]], None]
    done: int = 0
    results: dict[int, list[Sample]] = field(default_factory=dict)
    refused: list[Refused] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of the evaluation's episodes."""
        count: int = self.player.args.n_samples_per_eval_prompt
        return len(self.tasks) * count

    async def play(self, index: int) -> None:
        args = self.player.args
        number, place = divmod(index, args.n_samples_per_eval_prompt)
        sample = sample_of(self.tasks[number], index=index, group_index=number)
        params = seeded(args, _params(args), place)
        try:
            episode = await self.player.play(Play(sample), params, evaluation=True, may_begin=self._may_begin)
        except Refused as error:
            self.refused.append(error)
            return
        if samples := episode if isinstance(episode, list) else [episode]:
            self.done += 1
            self.results[index] = samples
            self.on_episode(self.done, self.total)
            self.keep(samples)

    def _may_begin(self) -> bool:
        return not self.refused and self.may_begin()


def limits(args: Namespace) -> dict[str, int]:
    """Return what a solve rate is stated with: the most turns of an episode, and the most tokens of its context."""
    return {"max_turns": args.swe_max_turns, "max_context": args.rollout_max_context_len}


def _params(args: Namespace) -> dict[str, Any]:
    temperature = getattr(args, "eval_temperature", None)
    whole = {"top_p": 1.0, "top_k": -1, "temperature": 1.0 if temperature is None else temperature}
    return sampling_params(args) | whole


def as_slime(samples: list[Sample]) -> dict[str, Any]:
    """Return an evaluation set in the shape in which SLiME hands it to its logging hook.

    SLiME takes the means of the first two parts, which have one entry for an episode, and none for one that
    infrastructure broke.
    """
    sound = [segments for segments in trajectories(samples) if not is_broken(segments)]
    return {
        "rewards": [segments[0].reward for segments in sound],
        "truncated": [any(sample.status == Sample.Status.TRUNCATED for sample in segments) for segments in sound],
        "samples": samples,
    }
