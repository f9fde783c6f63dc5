"""A whole run's record, rollout by rollout, under its own settings and under others, without a model.

Read this file first: `replay` is the whole of it. `asked` says which settings a record can be asked about, `replayed`
is one rollout under one recipe, by the run's own functions, and `figures` adds up rollouts and shows them. First the
run's own settings must give what the run recorded (`Check`): what differs would make a replay with others worthless.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slime_swe.attempts import of_last_attempt
from slime_swe.journal import Journal
from slime_swe.launch.replay.asked import Asked
from slime_swe.launch.replay.figures import Row, Sums, changes, compared, figures_of, rows_of, sums_of
from slime_swe.launch.replay.replayed import Groups, Recorded, Replay, Replayed, read_recorded
from slime_swe.recipes.base import Algorithm
from slime_swe.rollout.journals import TRAINED, TrainedSamples
from slime_swe.rollout.metrics import depends_on_timing, episode_metrics
from slime_swe.rollout.records import EPISODES

METRICS = "metrics.jsonl"
EpisodeSink = Callable[[Recorded, Sequence[Row], Sequence[Row]], None]


@dataclass
class _Pair:
    """The sums of the same rollouts under the run's settings, under the others, and of the two compared."""

    before: Sums = field(default_factory=Sums)
    after: Sums = field(default_factory=Sums)
    both: Sums = field(default_factory=Sums)

    def add(self, other: _Pair) -> None:
        self.before.add(other.before)
        self.after.add(other.after)
        self.both.add(other.both)

    def document(self) -> dict[str, Any]:
        return {"after": figures_of(self.after), "changes": changes(self.both, self.before, self.after)}


def replay(folder: Path, asked: Asked, count: int, on_episodes: EpisodeSink | None = None) -> dict[str, Any]:
    """Return the document that `--json` prints. count: how many draws, where fewer episodes of a group are asked for.

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


# A replay with a run's own settings must give what the run recorded. What differs would make a replay with others
# worthless, so it is looked at first.
FILTERED = "rollout/dynamic_filter/drop_"
TOLERANCE = 1e-5  # of a loss, which the trainer computes with 32 bits


@dataclass
class Check:
    """The comparison of a replay under the run's own settings with what the run recorded.

    records_dropped: the record has groups that the run dropped. trained: what the run's steps made of its samples; None
    where it wrote no such file. compared: name of a figure -> in how many rollouts. differences: as sentences.
    unrecorded: the number of rollouts without metrics.
    """

    own: Algorithm
    records_dropped: bool
    trained: TrainedSamples | None
    compared: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    unrecorded: int = 0

    def rollout(self, recorded: Recorded, replayed: Replayed, metrics: Mapping[str, Any] | None) -> None:
        """Compare one rollout. metrics: its line of `metrics.jsonl`; None where there is none."""
        self.unrecorded += metrics is None
        for name, given, found in self._pairs(recorded, replayed, metrics or {}):
            self.compared[name] = self.compared.get(name, 0) + 1
            if not math.isclose(given, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                self.differences.append(f"rollout {recorded.rollout}: {name} is {found:g}, and {given:g} was recorded")

    def document(self) -> dict[str, Any]:
        return {
            "holds": not self.differences,
            "compared": self.compared,
            "differences": self.differences,
            "rollouts_without_metrics": self.unrecorded,
        }

    def _pairs(
        self, recorded: Recorded, replayed: Replayed, metrics: Mapping[str, Any]
    ) -> Iterator[tuple[str, float, float]]:
        """Yield the name of a figure, what was recorded, and what the replay gives."""
        trained = [group for number, group in recorded.groups.items() if number not in replayed.dropped]
        places = {place for group in trained for episode in group for place in episode}
        removed = {place for place in places if recorded.records[place].remove_sample}
        yield "samples left out otherwise", 0, len(removed ^ replayed.removed)
        yield from self._trained(recorded, replayed)
        reasons, dropped = [*replayed.dropped.values()], {}
        if self.records_dropped and metrics:
            dropped = {key.removeprefix(FILTERED): count for key, count in metrics.items() if key.startswith(FILTERED)}
        for reason in sorted({*reasons, *dropped}) if metrics or not self.records_dropped else ():
            yield f"groups dropped: {reason}", dropped.get(reason, 0), reasons.count(reason)
        for name, value in episode_metrics(recorded.records).items() if metrics else ():
            if name in metrics and not depends_on_timing(name):
                yield name, metrics[name], value
        if "trained_tokens" in metrics:
            yield "trained_tokens", metrics["trained_tokens"], replayed.trained_tokens
        if "pg_loss" in metrics and replayed.pg_loss is not None and _ratio_is_1(metrics, self.own):
            yield "pg_loss", metrics["pg_loss"], replayed.pg_loss

    def _trained(self, recorded: Recorded, replayed: Replayed) -> Iterator[tuple[str, float, float]]:
        """Yield figures of what was trained, none for a rollout that has no line yet. Advantages that differ within a
        sample are not compared."""
        given = [self.trained.of(record) if self.trained else None for record in recorded.records]
        if not any(given):
            return
        found = [weighed if weighed is not None and weighed.tokens else None for weighed in replayed.weighed]
        yield "samples trained otherwise", 0, sum((a is None) != (b is None) for a, b in zip(given, found, strict=True))
        differences = [
            abs(a.advantage - b.advantage)
            for a, b in zip(given, found, strict=True)
            if a is not None and b is not None and isinstance(a.advantage, float)
        ]
        yield "largest difference of an advantage", 0, max(differences, default=0.0)


def _ratio_is_1(metrics: Mapping[str, Any], own: Algorithm) -> bool:
    """Say whether each token's ratio is 1 and no other weight is in the policy's loss."""
    plain = own.estimator != "cispo" and own.mismatch == "none"
    return plain and own.steps_per_rollout == 1 and not metrics.get("rollout/staleness_max")


def _asked_groups(recorded: Recorded, asked: Asked, count: int) -> Iterator[Groups]:
    """Yield the groups of each replay: one replay of all episodes, or one for each draw."""
    if asked.is_subsample:
        yield from draws(recorded, asked.other.rollout.samples_per_task, count)
    elif asked.changed:
        yield recorded.groups


def _document(pairs: Sequence[_Pair], asked: Asked) -> dict[str, Any]:
    before = {"before": figures_of(pairs[0].before)}
    if not asked.changed:
        return before
    documents = [pair.document() for pair in pairs]
    if not asked.is_subsample:
        return before | documents[0]
    return before | averaged(documents) | {"intervals": intervals(documents), "draws": len(documents)}


# Fewer episodes of each group are drawn several times from those that were recorded, and the figures averaged.
COVERED = 0.95  # of the draws lie between the two ends of an interval


def draws(recorded: Recorded, size: int, count: int) -> Iterator[Groups]:
    """Draw `size` episodes of each of a rollout's groups `count` times, without replacement, in recorded order.

    The draws for a rollout and group are the same however often they are asked for, and independent of each other.
    """
    for number in range(count):
        yield {group: _drawn(episodes, size, f"{recorded.rollout}/{group}/{number}")
               for group, episodes in recorded.groups.items()}  # fmt: skip


def _drawn(episodes: Sequence[list[int]], size: int, seed: str) -> list[list[int]]:
    chosen = random.Random(seed).sample(range(len(episodes)), min(size, len(episodes)))
    return [episodes[place] for place in sorted(chosen)]


def averaged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average each figure over the draws that have one; a count that a draw does not name is 0 there."""
    return _combined(documents, lambda values: math.fsum(values) / len(values))


def intervals(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return, in place of each figure, the two values between which 95 % of the draws lie."""
    ends = ((1 - COVERED) / 2, (1 + COVERED) / 2)
    return _combined(documents, lambda values: [_quantile(sorted(values), share) for share in ends])


def _combined(documents: Sequence[Mapping[str, Any]], combine: Callable[[list[float]], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in dict.fromkeys(name for document in documents for name in document):
        values = [document.get(name, 0) for document in documents]
        if any(isinstance(value, Mapping) for value in values):
            found[name] = _combined([value or {} for value in values], combine)
        else:
            numbers = [value for value in values if value is not None]
            found[name] = combine(numbers) if numbers else None
    return found


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Interpolate a quantile linearly between the two values beside it."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def _metrics(folder: Path) -> dict[int, dict[str, Any]]:
    """Read each rollout's line of the metrics; there is none where the run's engine writes no such file."""
    lines = [line for line in Journal(folder / METRICS).read() if line.get("kind") == "train"]
    last = of_last_attempt(lines, lambda line: line.get("rollout_id"), lambda line: line.get("attempt"))
    return {line["rollout_id"]: line for line in last if isinstance(line.get("rollout_id"), int)}
