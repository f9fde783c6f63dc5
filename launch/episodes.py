"""The episodes of a run or an evaluation, as its journals have them: which of them a command is about (`select`), and
each with all of its samples (`read_episodes`). Commands, exporters and the report read them here.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from slime_swe.attempts import of_last_attempt
from slime_swe.errors import UserError, unknown
from slime_swe.journal import Place
from slime_swe.redaction import Secrets, redacted
from slime_swe.rollout.episode import Turn, of_episode
from slime_swe.rollout.journals import TRAINED, TrainedSample, TrainedSamples, read_record, read_summaries, read_tools
from slime_swe.rollout.records import EPISODES, EVALUATIONS, TRAINING, Record, Summary

Selected = list[tuple[Place, Summary]]


def add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's name, its folder, or one that `eval --output` wrote")
    parser.add_argument("--dir", default="runs", help="folder of all runs (default: %(default)s)")
    parser.add_argument("--rollout", type=int, metavar="K", help="only of rollout K; -1 is the evaluation before it")
    parser.add_argument("--task", metavar="ID", help="only of this task")
    parser.add_argument("--evaluation", metavar="NAME", help="of this evaluation set instead of training")
    parser.add_argument("--solved", action=argparse.BooleanOptionalAction, help="only what solved the task, or did not")
    parser.add_argument(
        "--broken", action=argparse.BooleanOptionalAction, help="only what infrastructure broke, or did not"
    )
    parser.add_argument("--min-reward", type=float, metavar="R", help="only with this reward or more")
    parser.add_argument("--max-reward", type=float, metavar="R", help="only with this reward or less")


def select(folder: Path, options: argparse.Namespace) -> tuple[Path, Selected]:
    """Return the journal and those of its records that the options select. Of a rollout, or of an evaluation, that
    several attempts have played, the last one's. Raises `UserError` where there is no such set."""
    path, summaries = recorded(folder, options.evaluation)
    return path, [(place, summary) for place, summary in summaries if _matches(summary, options)]


def recorded(folder: Path, evaluation: str | None) -> tuple[Path, Selected]:
    """Return the journal of a run's training, of an evaluation's folder, or with `evaluation` of that set, and its
    records. Raises `UserError` where there is no such set."""
    path = _journal(folder, evaluation)
    summaries = of_last_attempt(
        read_summaries(path), lambda one: (one[1].dataset, one[1].rollout), lambda one: one[1].attempt
    )
    names = {summary.dataset or "" for _, summary in summaries}
    if evaluation is not None and evaluation not in names:
        raise UserError(unknown("--evaluation", evaluation, names))
    return path, [found for found in summaries if evaluation in (None, found[1].dataset)]


def _journal(folder: Path, evaluation: str | None) -> Path:
    """Return the file to read. An evaluation of its own has no training episodes."""
    if evaluation is None and ((folder / EPISODES).exists() or not (folder / EVALUATIONS).exists()):
        path = folder / EPISODES
    else:
        path = folder / EVALUATIONS
    if not path.exists():
        raise UserError(f"{path} is not there yet: the run has finished no such step")
    return path


def _matches(summary: Summary, options: argparse.Namespace) -> bool:
    pairs = (
        (options.rollout, summary.rollout),
        (getattr(options, "index", None), summary.index),
        (options.task, summary.task),
        (options.evaluation, summary.dataset),
        (options.solved, summary.outcome == "solved"),
        (options.broken, summary.outcome == "broken"),
    )
    return all(wanted is None or wanted == found for wanted, found in pairs) and _in_range(summary.reward, options)


def _in_range(reward: float | None, options: argparse.Namespace) -> bool:
    """An episode without a reward is in no range."""
    low, high = options.min_reward, options.max_reward
    if low is None and high is None:
        return True
    return reward is not None and (low is None or reward >= low) and (high is None or reward <= high)


@dataclass(frozen=True)
class RecordedEpisode:
    """One episode. records: its samples, in the order of the journal. tools: the schemas that each of them offered.
    trained: what the step made of each, None where no step had it.
    """

    records: list[Record]
    tools: list[list[dict[str, Any]]]
    trained: list[TrainedSample | None]

    @property
    def first(self) -> Record:
        return self.records[0]

    @property
    def moment(self) -> str:
        """The set and the rollout: `train-rollout3`, or `heldout-rollout-1` for the evaluation before the first."""
        name = re.sub(r"[^\w.]+", "-", self.first.dataset or TRAINING)
        return name if self.first.rollout_id is None else f"{name}-rollout{self.first.rollout_id}"

    @property
    def number(self) -> int:
        """The episode's number, unique within a moment."""
        found = self.first.index if self.first.trajectory is None else self.first.trajectory
        return 0 if found is None else found

    @property
    def task(self) -> str:
        return self.first.task or "unnamed"

    @property
    def task_file(self) -> str:
        """The task's name, as that of a file."""
        return re.sub(r"[^\w.-]+", "-", self.task)

    @property
    def started(self) -> float:
        """The Unix time at which the episode began, in seconds; 0.0 where it is not known."""
        return self.first.episode.timings.started if self.first.episode else 0.0

    @property
    def patch(self) -> str:
        return self.first.episode.patch if self.first.episode else ""

    @property
    def stop_reason(self) -> str:
        return self.first.episode.stop_reason if self.first.episode else ""

    @property
    def turns(self) -> list[Turn]:
        """The turns of the whole episode, each once, in order of time."""
        return of_episode(record.turns or [] for record in self.records)

    @property
    def advantage(self) -> float | list[float] | None:
        """The advantage of the sample that was trained first, as an episode's samples share it; None where none was."""
        return next((trained.advantage for trained in self.trained if trained), None)

    @property
    def error(self) -> str:
        """The infrastructure failure that broke the episode; empty where none has."""
        if not self.first.broken:
            return ""
        failure = self.first.infrastructure
        return f"{failure.where}: {failure.detail}".strip(": ") if failure else self.first.status

    def at(self, seconds: float) -> str | None:
        """Return the time, ISO 8601, so many seconds after the episode began; None where its begin is not known."""
        return utc(self.started + seconds) if self.started else None

    def about(self) -> dict[str, Any]:
        """Return what is known of the episode beside its messages and patch, in JSON's types."""
        first = self.first
        found = {
            "task": first.task,
            "set": first.dataset or TRAINING,
            "rollout": first.rollout_id,
            "index": first.index,
            "group": first.group_index,
            "outcome": first.outcome,
            "reward": first.reward,
            "advantage": self.advantage,
            "stop_reason": self.stop_reason,
            "weight_versions": first.weight_versions,
            "score": msgspec.to_builtins(first.score),
            "timings": msgspec.to_builtins(first.episode.timings) if first.episode else None,
            "counters": msgspec.to_builtins(first.episode.counters) if first.episode else None,
            "error": self.error or None,
        }
        return {name: value for name, value in found.items() if value is not None}


def utc(seconds: float) -> str:
    """Format a Unix time, in seconds, by ISO 8601. Raises `UserError` for what is none."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError) as error:
        raise UserError(
            f"{seconds:g} seconds since 1970 is no time: "
            "`timings.started` of an episode, or `began` of a turn, is damaged"
        ) from error


def read_episodes(folder: Path, journal: Path, selected: Selected, secrets: Secrets) -> Iterator[RecordedEpisode]:
    """Yield the episodes of the selected records, those of one moment together; only their lines are read."""
    known: dict[str | None, list[dict[str, Any]]] = {}
    trained = TrainedSamples(folder / TRAINED)
    moments: dict[Any, dict[Any, list[Place]]] = {}
    for number, (place, summary) in enumerate(selected):
        name = ("unnamed", number) if summary.trajectory is None else summary.trajectory
        episodes = moments.setdefault((summary.dataset, summary.rollout), {})
        episodes.setdefault(name, []).append(place)
    for places in (places for episodes in moments.values() for places in episodes.values()):
        records = [read_record(journal, place, secrets) for place in places]
        for record in records:
            if record.tools not in known:
                known[record.tools] = redacted(read_tools(folder, record.tools), secrets)
        yield RecordedEpisode(records, [known[record.tools] for record in records], [*map(trained.of, records)])


def token_runs(record: Record) -> Iterator[tuple[bool, Sequence[int]]]:
    """Yield runs of tokens of one origin: whether the policy sampled them, and the tokens."""
    mask = [0] * (len(record.tokens) - record.response_length) + list(record.loss_mask or [])
    for sampled, pairs in groupby(zip(mask, record.tokens, strict=True), key=lambda pair: bool(pair[0])):
        yield sampled, [token for _, token in pairs]
