"""A whole run's record, rollout by rollout, under its own settings and under others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_swe.attempts import of_last_attempt
from slime_swe.embedded.journal import Journal
from slime_swe.launch.replay.asked import Asked
from slime_swe.launch.replay.check import Check
from slime_swe.launch.replay.draws import averaged, draws, intervals
from slime_swe.launch.replay.figures import changes, compared, figures
from slime_swe.launch.replay.recorded import Groups, Recorded, read_recorded
from slime_swe.launch.replay.replayed import Replay
from slime_swe.launch.replay.sums import Row, Sums, rows_of, sums_of
from slime_swe.rollout.records import EPISODES
from slime_swe.rollout.trained import TRAINED, TrainedSamples

METRICS = "metrics.jsonl"
EpisodeSink = Callable[[Recorded, Sequence[Row], Sequence[Row]], None]


@dataclass
class _Pair:
    """Sums of the same rollouts: under the run's settings, under the others, and of the two beside each other."""

    before: Sums = field(default_factory=Sums)
    after: Sums = field(default_factory=Sums)
    both: Sums = field(default_factory=Sums)

    def add(self, other: _Pair) -> None:
        self.before.add(other.before)
        self.after.add(other.after)
        self.both.add(other.both)

    def document(self) -> dict[str, Any]:
        return {"after": figures(self.after), "changes": changes(self.both, self.before, self.after)}


def replay(folder: Path, asked: Asked, count: int, on_episodes: EpisodeSink | None = None) -> dict[str, Any]:
    """The document that `--json` prints. count: draws, where fewer episodes of a group are asked for.

    on_episodes: is given each rollout's episodes before and after. Raises `UserError` where the record can't be read.
    """
    metrics = _metrics(folder)
    own, other = (Replay(recipe, folder, asked.own) for recipe in (asked.own, asked.other))
    trained = TrainedSamples(folder / TRAINED) if (folder / TRAINED).is_file() else None
    check = Check(asked.own.algorithm, asked.records_dropped, trained)
    overall: list[_Pair] = []
    rollouts = []
    for recorded in read_recorded(folder / EPISODES):
        before = own.of(recorded, own.samples(recorded), recorded.groups)
        check.rollout(recorded, before, metrics.get(recorded.rollout))
        rows = [*rows_of(recorded, before)]
        sums = sums_of(recorded, before, rows)
        pairs = []
        samples = other.samples(recorded) if asked.changed else []
        for groups in _asked_groups(recorded, asked, count):
            after = other.of(recorded, samples, groups)
            new = [*rows_of(recorded, after)]
            pairs.append(_Pair(sums, sums_of(recorded, after, new), compared(recorded, rows, new, (before, after))))
        if on_episodes is not None:
            on_episodes(recorded, rows, new if asked.changed else rows)
        pairs = pairs or [_Pair(sums)]
        overall = overall or [_Pair() for _ in pairs]
        for total, pair in zip(overall, pairs, strict=True):
            total.add(pair)
        rollouts.append({"rollout": recorded.rollout, **_document(pairs, asked)})
    return {"changed": asked.changed, "check": check.document(), **_document(overall, asked), "rollouts": rollouts}


def _asked_groups(recorded: Recorded, asked: Asked, count: int) -> Iterator[Groups]:
    """The groups of each replay: one of all episodes, or as many as there are draws."""
    if asked.is_subsample:
        yield from draws(recorded, asked.other.rollout.samples_per_task, count)
    elif asked.changed:
        yield recorded.groups


def _document(pairs: Sequence[_Pair], asked: Asked) -> dict[str, Any]:
    before = {"before": figures(pairs[0].before)}
    if not asked.changed:
        return before
    documents = [pair.document() for pair in pairs]
    if not asked.is_subsample:
        return before | documents[0]
    return before | averaged(documents) | {"intervals": intervals(documents), "draws": len(documents)}


def _metrics(folder: Path) -> dict[int, dict[str, Any]]:
    """Rollout -> its line; none where the run's engine writes no such file."""
    lines = [line for line in Journal(folder / METRICS).read() if line.get("kind") == "train"]
    last = of_last_attempt(lines, lambda line: line.get("rollout_id"), lambda line: line.get("attempt"))
    return {line["rollout_id"]: line for line in last if isinstance(line.get("rollout_id"), int)}
