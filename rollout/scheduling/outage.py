"""`Outage`: whether infrastructure breaks every episode that begins, what is tried meanwhile, and when the run ends.

`pause` is the one back-off: of an episode, of a grading, and of the tries that an outage is watched by.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from slime_swe.errors import InfrastructureError

SHORTEST, LONGEST = 1.0, 60.0  # seconds of a pause
CALM = 60.0  # seconds after which a try that is not broken says that infrastructure works


def pause(failures: int) -> float:
    """Return the seconds from the last of so many failures in a row to the next try: 1, doubling up to 60, and up to
    half of it less by chance, so that what failed together does not come back together."""
    return min(LONGEST, SHORTEST * 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1.0)


@dataclass
class Outage:
    """Counts the tries that infrastructure breaks, and those that it does not. Times are seconds of the caller's clock.

    There is an *outage* where `most_in_a_row` tries were broken, two groups that have too few sound episodes are among
    theirs, and since the first of them no try has begun that was sound, or that has lasted for `CALM` seconds and twice
    as long as the longest that broke. What began before says nothing: its sandbox was open when no other could be
    opened. During an outage tries begin one by one, with growing pauses between them (`wait`), so that few are spent
    and its end is noticed within a few minutes. After `limit` seconds of it the run ends.

    Not covered: an outage that breaks each try later than the last one seems calm. It costs as many tries as fit, and
    each time at least twice as much time passes before the next.
    """

    limit: float = 3600.0
    most_in_a_row: int = 8
    sound_since: float = -math.inf  # when the last try began that was sound
    is_logged: bool = False  # that it is on: once, of all the players that share it
    _since: float | None = None  # the first broken try of the row
    _broken: int = 0
    _groups: set[Hashable] = field(default_factory=set)  # of the broken tries
    _on_since: float = 0.0  # of an outage
    _longest: float = 0.0  # seconds of a try that began since, and was broken
    _running: Counter[float] = field(default_factory=Counter)  # the times at which tries began that have not ended
    _probes: int = 0
    _next_probe: float = 0.0

    def begin(self, now: float) -> None:
        """Note that a try has begun."""
        self._running[now] += 1

    def end(self, begun: float) -> None:
        """Note that a try that began then has ended, or was cancelled."""
        self._running[begun] -= 1
        if not self._running[begun]:
            del self._running[begun]

    def sound(self, begun: float) -> None:
        """Note that infrastructure did not break a try that began then."""
        self.sound_since = max(self.sound_since, begun)
        if self._since is not None and begun > self._since:
            self._since, self._broken, self._longest, self._probes = None, 0, 0.0, 0
            self._groups.clear()

    def broken(self, group: Hashable | None, begun: float, now: float, why: str) -> None:
        """Note that infrastructure broke a try of this group; None for one that has sound episodes enough. Raises
        `InfrastructureError` where an outage lasts too long."""
        if self._since is None:
            self._since = now
        self._broken += 1
        if group is not None and len(self._groups) < 2:
            self._groups.add(group)
        if begun > self._since:
            self._longest = max(self._longest, now - begun)
        if not self.is_on(now):
            self._on_since = now
        elif (seconds := now - self._on_since) >= self.limit:
            since = datetime.now(UTC) - timedelta(seconds=seconds)
            raise InfrastructureError(
                "infrastructure has broken every try that began since "
                f"{since:%Y-%m-%d %H:%M:%S} UTC: {self._broken} in {seconds:.0f} seconds, "
                f"the last by {why}. Mend that and resume the run; "
                f"rollout.outage_limit={self.limit:g} says for how many seconds a run waits"
            )

    def is_on(self, now: float) -> bool:
        """Say whether there is an outage."""
        return self._broken >= self.most_in_a_row and len(self._groups) > 1 and self._calm_at() > now

    def wait(self, now: float) -> float:
        """Return how many seconds a try has to wait before it asks again; 0 where it may begin now."""
        if not self.is_on(now):
            return 0.0
        if now >= self._next_probe:
            self._probes += 1
            self._next_probe = now + pause(self._probes)
            return 0.0
        return min(self._next_probe, self._calm_at()) - now + random.uniform(0.0, SHORTEST)

    def _calm_at(self) -> float:
        """Return when the longest try still running, of those that began since, will have lasted long enough."""
        since = self._since
        first = min((begun for begun in self._running if since is not None and begun > since), default=math.inf)
        return first + max(CALM, 2 * self._longest)


@dataclass
class Outages:
    """The outages of what plays episodes, and of what grades them: either may be out alone."""

    playing: Outage
    grading: Outage

    @classmethod
    def within(cls, limit: float) -> Outages:
        """Make both outages with a limit in seconds."""
        return cls(Outage(limit), Outage(limit))

    def of(self, *, graded: bool) -> Outage:
        return self.grading if graded else self.playing

    @property
    def sound_since(self) -> float:
        """The latest time at or after which both a sound playing and a sound grading began."""
        return min(self.playing.sound_since, self.grading.sound_since)
