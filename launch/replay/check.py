"""Whether a replay with a run's own settings gives what the run recorded. What differs would make a replay with others
worthless, so it is looked at first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from slime_swe.launch.replay.recorded import Recorded
from slime_swe.launch.replay.replayed import Replayed
from slime_swe.recipes.base import Algorithm
from slime_swe.rollout.metrics import depends_on_timing, episode_metrics
from slime_swe.rollout.trained import TrainedSamples

FILTERED = "rollout/dynamic_filter/drop_"
TOLERANCE = 1e-5  # of a loss, which the trainer computes with 32 bits


@dataclass
class Check:
    """records_dropped: the record has groups that the run dropped. trained: what the run's steps made of its samples;
    None where it wrote no such file. compared: name of a figure -> in how many rollouts. differences: as sentences.
    unrecorded: rollouts of which there are no metrics."""

    own: Algorithm
    records_dropped: bool
    trained: TrainedSamples | None
    compared: dict[str, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    unrecorded: int = 0

    def rollout(self, recorded: Recorded, replayed: Replayed, metrics: Mapping[str, Any] | None) -> None:
        """metrics: the rollout's line of `metrics.jsonl`; None where there is none."""
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
        """Name, what was recorded, what the replay gives."""
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
        """Nothing of a rollout that has no line yet. Advantages that differ within a sample are not compared."""
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
    """Whether each token's ratio is 1 and no other weight is in the policy's loss."""
    plain = own.estimator != "cispo" and own.mismatch == "none"
    return plain and own.steps_per_rollout == 1 and not metrics.get("rollout/staleness_max")
