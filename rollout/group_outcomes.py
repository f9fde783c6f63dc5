"""What a group of episodes can teach: a policy gradient needs episodes that differ. One judgement for the group filter,
the metrics and the sentence on a run that trains nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slime_swe.rollout.records import Record, trajectory_of
from slime_swe.sample import Sample

INFORMATIVE = "informative"
UNIFORM = ("all_solved", "all_unsolved", "all_truncated", "all_infrastructure_failures")
OUTCOMES = (INFORMATIVE, *UNIFORM)
UNTRAINED = 3  # rollouts in a row that train nothing before it is said


def group_outcome(records: Iterable[Record]) -> str:
    """One of `OUTCOMES`, for the samples of a group: `informative` if its episodes differ in the binary outcome.

    Infrastructure failures do not count as an outcome. Truncated episodes that are left out of the loss do, as they are
    in the baseline; but a group of which nothing else is left has nothing to train.
    """
    counted = [record for record in records if not excluded(record)]
    values = set({trajectory_of(record): record.solved for record in counted}.values())
    if len(values) > 1:
        return INFORMATIVE if any(not record.remove_sample for record in counted) else "all_truncated"
    return f"all_{'solved' if values.pop() else 'unsolved'}" if values else "all_infrastructure_failures"


def excluded(record: Record) -> bool:
    """Whether it is in no baseline: the reward is not known, or nothing was sampled that could have earned it."""
    masked = record.episode is not None and record.episode.masked
    return record.status == Sample.Status.ABORTED.value or (record.remove_sample and not masked)


def count_groups(records: Iterable[Record]) -> dict[str, float]:
    """How many groups there are, and of each outcome; nothing where no sample names its group."""
    groups: dict[int, list[Record]] = {}
    for record in records:
        if record.group_index is not None:
            groups.setdefault(record.group_index, []).append(record)
    found = Counter(map(group_outcome, groups.values()))
    counts = {f"groups/{outcome}": float(found[outcome]) for outcome in OUTCOMES}
    return {"groups": float(len(groups)), **counts} if groups else {}


def why_untrained(steps: Sequence[Mapping[str, Any]]) -> str:
    """Why none of these rollouts trained a token, with counts. Empty if one did, or if their metrics don't say."""
    if not steps or any(step.get("trained_tokens") != 0 for step in steps):
        return ""
    counts = _counts(steps)
    return f"{_reason(steps)} ({counts})" if counts else _reason(steps)


class Untrained:
    """The last rollouts in a row that trained nothing."""

    def __init__(self) -> None:
        self._steps: list[Mapping[str, Any]] = []

    def add(self, step: Mapping[str, Any]) -> str:
        """After each rollout, with its metrics: a sentence when it is the `UNTRAINED`th in a row, else empty."""
        self._steps = [*self._steps, step] if why_untrained([step]) else []
        if len(self._steps) != UNTRAINED:
            return ""
        return f"{UNTRAINED} rollouts in a row trained nothing: {why_untrained(self._steps)}"


def _reason(steps: Sequence[Mapping[str, Any]]) -> str:
    rates = {step["solve_rate"] for step in steps if step.get("solve_rate") is not None}
    if not rates:
        return "infrastructure broke every episode"
    if all(step.get("masked") == 1.0 for step in steps):
        return "every episode was truncated, and rollout.mask_truncated leaves such out of the loss"
    if rates <= {0.0} or rates <= {1.0}:
        return f"{'every' if rates == {1.0} else 'no'} episode was solved, so that no group had rewards to compare"
    return "every advantage was zero, as where in each group all episodes are solved or none is"


def _counts(steps: Sequence[Mapping[str, Any]]) -> str:
    def total(name: str) -> int:
        return int(sum(step.get(name, 0) for step in steps))

    if not total("groups"):
        return ""
    found = {outcome: total(f"groups/{outcome}") for outcome in OUTCOMES}
    said = [f"{count} {outcome.replace('_', ' ')}" for outcome, count in found.items() if count]
    broken, episodes = total("infrastructure_failures"), total("episodes")
    return f"groups: {', '.join(said)}; episodes: {episodes}, of which infrastructure broke {broken}"
