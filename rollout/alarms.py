"""Alarms: figures of the last rollouts that say that a run goes wrong before its reward does.

Each has a limit of its own, a field of the recipe's `alarms`. It is raised when the figure goes above, and can be
raised again when it has been below since. What is raised is said while the run goes, and stands in its summary and its
report. Nothing else follows: no alarm ends a run.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from slime_swe.rollout.metrics import GAP_BEFORE, PREFIX_LOST, UNIFORM, seconds_of

WINDOW = 5  # rollouts, of which a share is the mean: one batch has few groups
STALL_SECONDS = 1800.0  # that a rollout takes at least before it is a stall
CHECK = "See that new weights reach the engines: slime-swe rehearse of this recipe checks the weight synchronisation"
LEAST_GAP = 0.001  # nats: the gaps of float32 are smaller, and rounding alone
LIMITS = {  # stop reason -> the recipe's field that is the limit
    "max_turns": "rollout.max_turns",
    "context_full": "rollout.max_context",
    "max_response": "rollout.max_response",
    "time_budget": "rollout.time_budget",
}
Line = Mapping[str, Any]  # of `metrics.jsonl`, about a rollout


@dataclass
class Raised:
    """An alarm that was raised. first, last: the rollouts, from 1, from which and to which it held. worst: the largest
    figure of these: a share; for `stall` how often the median, for `drift` how often the first gap; for `gap` nats.
    limit: the recipe's. said: the sentence with which it was raised."""

    name: str
    first: int
    last: int
    worst: float
    limit: float
    said: str


class Alarms:
    """Follows a run's rollouts. limits: by the names of the recipe's `alarms`; one without a limit is not raised."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits = limits
        self.raised: list[Raised] = []
        self._recent: deque[Line] = deque(maxlen=WINDOW)
        self._seconds: list[float] = []
        self._first_gap: float | None = None
        self._overdue = 0  # rollouts that were added when one was last said to be overdue
        self._holding: dict[str, Raised] = {}

    @classmethod
    def of(cls, limits: Mapping[str, float], lines: Iterable[Line]) -> Self:
        alarms = cls(limits)
        for line in lines:
            alarms.add(line)
        return alarms

    def add(self, line: Line) -> list[str]:
        """Add a rollout; returns a sentence for each alarm that it raises."""
        self._recent.append(line)
        number, said = line["rollout_id"] + 1, list[str]()
        for name, (figure, why) in self._figures(line).items():
            limit = self.limits.get(name, 1.0)
            if figure <= limit:
                self._holding.pop(name, None)
            elif (known := self._holding.get(name)) is not None:
                known.last, known.worst = number, max(known.worst, figure)
            else:
                raised = Raised(name, number, number, figure, limit, f"{why} (alarms.{name}={limit:g})")
                self.raised.append(raised)
                self._holding[name] = raised
                said.append(f"alarm, rollout {number}: {raised.said}")
        return said

    def overdue(self, seconds: float) -> str:
        """Return a sentence, once a rollout, if the one that goes on is a stall already; seconds: since the last was
        added."""
        times, limit = self._times(seconds), self.limits.get("stall", 0.0)
        if not 0 < limit < times or self._overdue == len(self._seconds):
            return ""
        self._overdue = len(self._seconds)
        return (
            f"alarm, rollout {self._recent[-1]['rollout_id'] + 2}: nothing was recorded for {times:.0f} times as long "
            f"as the median of the rollouts before (alarms.stall={limit:g})"
        )

    def as_json(self) -> list[dict[str, Any]]:
        """Return what a summary holds of it."""
        return [asdict(one) for one in self.raised]

    def _figures(self, line: Line) -> dict[str, tuple[float, str]]:
        """Return each figure that is known, and a sentence about it without its end."""
        found = {}
        for name, (parts_of, say) in SHARES.items():
            known = [parts for one in self._recent if (parts := parts_of(one)) is not None]
            if known:
                names = dict.fromkeys(part for parts in known for part in parts)
                means = {part: sum(parts.get(part, 0.0) for parts in known) / len(known) for part in names}
                found[name] = sum(means.values()), say(means, line)
        found |= self._gap(line)
        times = self._times(seconds_of(line))
        if self._seconds and self.limits.get("stall"):
            found["stall"] = times, f"it took {times:.0f} times as long as the median of the rollouts before"
        self._seconds.append(seconds_of(line))
        return found

    def _gap(self, line: Line) -> dict[str, tuple[float, str]]:
        """Return the first known gap between trainer and engines, or how often that a later one is."""
        gap, first, limit = line.get(GAP_BEFORE), self._first_gap, self.limits.get("drift", 0.0)
        if gap is None or (first is not None and not limit):
            return {}
        said = (
            f"with the same weights log-probabilities of trainer and engines differ by {gap:.2g} nats, in the rollout "
            f"before{{}}. {CHECK}"
        )
        if first is None:
            self._first_gap = gap
            return {"gap": (gap, said.format(""))}
        return {"drift": (gap / max(first, LEAST_GAP / limit), said.format(f"; the first was {first:.2g}"))}

    def _times(self, seconds: float) -> float:
        """Return how often the median of the rollouts so far is in these seconds; 0 where that says nothing."""
        usual = statistics.median(self._seconds) if self._seconds else 0.0
        return seconds / usual if usual and seconds >= STALL_SECONDS else 0.0


Parts = Mapping[str, float]  # of a share, which add up to it


def _broken(line: Line) -> Parts | None:
    episodes = line.get("episodes")
    if not episodes:
        return None
    causes = [name for name in line if name.startswith("infrastructure_failures/")]
    return {name.partition("/")[2]: line[name] / episodes for name in causes}


def _truncated(line: Line) -> Parts | None:
    ended = any(name.startswith("stop/") for name in line)
    return {reason: line.get(f"stop/{reason}", 0.0) for reason in LIMITS} if ended else None


def _uninformative(line: Line) -> Parts | None:
    groups = line.get("groups")
    return {outcome: line.get(f"groups/{outcome}", 0.0) / groups for outcome in UNIFORM} if groups else None


def _lost(line: Line) -> Parts | None:
    share = line.get("serving", {}).get(PREFIX_LOST)
    return None if share is None else {PREFIX_LOST: share}


def _say_broken(parts: Parts, line: Line) -> str:
    return f"infrastructure broke {_listed(parts)} of the episodes. `slime-swe episodes RUN --broken` shows them"


def _say_truncated(parts: Parts, line: Line) -> str:
    fields = ", ".join(LIMITS[reason] for reason, share in parts.items() if share >= 0.05)
    return f"limits ended {_listed(parts)} of the episodes before the agent did: see {fields}"


def _say_uninformative(parts: Parts, line: Line) -> str:
    return (
        f"{_listed(parts)} of the groups taught nothing. Where that is all_solved or all_unsolved, the tasks are too "
        "easy or too hard: data.retire_above, data.boost_below and `slime-swe tasks filter` choose by solve rates"
    )


def _say_lost(parts: Parts, line: Line) -> str:
    admitted = line.get("serving", {}).get("admitted_episodes")
    at_once = "" if admitted is None else f". {admitted:.0f} episodes at once are admitted"
    return (
        f"{_percent(sum(parts.values()))} of the prompt tokens were computed again, although an engine had them of the "
        f"turn before{at_once}: set a lower serving.concurrency, or give the cache more room (serving.mem_fraction, "
        "serving.gpus_per_engine). With serving.dp_attention=true see that the router passes routed_dp_rank on, which "
        "sends an episode's turns to the GPU that has its prefix"
    )


SHARES: Mapping[str, tuple[Callable[[Line], Parts | None], Callable[[Parts, Line], str]]] = {
    "broken": (_broken, _say_broken),
    "truncated": (_truncated, _say_truncated),
    "uninformative": (_uninformative, _say_uninformative),
    "lost_prefixes": (_lost, _say_lost),
}


def _listed(parts: Parts) -> str:
    """Write a share as `40% (all_solved 30%, all_unsolved 10%)`."""
    found = sorted(((share, part) for part, share in parts.items() if share), reverse=True)
    return f"{_percent(sum(parts.values()))} ({', '.join(f'{part} {_percent(share)}' for share, part in found)})"


def _percent(share: float) -> str:
    return f"{share:.0%}"
