"""A curriculum by solve rates: tasks that the policy nearly always solves are retired, and those that it hardly ever
solves come more often.

A task's rate is that of its latest episodes in this run, by the binary outcome; none is known before there are
`rate_episodes` of them. An episode that infrastructure broke is none. What is decided depends on these outcomes alone,
which a checkpoint keeps: so a resumed run decides alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from slime_swe.fields import Argument, Meta

_ROUNDS = 2  # of which one is of the boosted tasks alone: they come twice as often as others


@dataclass(frozen=True)
class CurriculumSettings:
    """The settings of a curriculum. retire_above: a task of a higher solve rate is handed out no more; 1 retires none.
    boost_below: one of a lower rate comes twice as often; 0 boosts none. rate_episodes: latest episodes of a task that
    its rate is taken of."""

    retire_above: Annotated[float, Argument("swe_retire_above"), Meta(ge=0, le=1)] = 1.0
    boost_below: Annotated[float, Argument("swe_boost_below"), Meta(ge=0, le=1)] = 0.0
    rate_episodes: Annotated[int, Argument("swe_rate_episodes"), Meta(ge=1)] = 16


class Curriculum:
    """Decides which tasks have a turn. outcomes: task id → its latest episodes, the oldest first, `1` for each that
    solved it and `0` for each that did not."""

    def __init__(self, settings: CurriculumSettings, outcomes: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self.outcomes = dict(outcomes or {})
        self.rounds = _ROUNDS if settings.boost_below else 1

    def add(self, outcomes: Mapping[str, Sequence[bool]]) -> None:
        """Add the outcomes of each task's further episodes: whether they solved it."""
        for task, solved in outcomes.items():
            known = self.outcomes.get(task, "") + "".join("01"[one] for one in solved)
            self.outcomes[task] = known[-self._settings.rate_episodes :]

    def rate(self, task: str) -> float | None:
        """Return a task's solve rate; None where too few episodes are known."""
        known = self.outcomes.get(task, "")[-self._settings.rate_episodes :]
        return known.count("1") / len(known) if len(known) == self._settings.rate_episodes else None

    def has_turn(self, tasks: Sequence[str], number: int) -> bool:
        """Say whether tasks that belong together, mostly a single one, are handed out in the round of this number, each
        of which goes through a set once. Their rate is the mean, once all are known."""
        rates, is_for_all = [self.rate(task) for task in tasks], number % self.rounds == 0
        known = [rate for rate in rates if rate is not None]
        if len(known) < len(rates):
            return is_for_all
        rate = sum(known) / len(known)
        return rate <= self._settings.retire_above and (is_for_all or rate < self._settings.boost_below)
