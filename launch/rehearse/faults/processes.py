"""The processes of one run that the drill has started, told apart by what they call themselves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slime_swe.launch.ray.processes import PROC, owned
from slime_swe.launch.rehearse.faults import Moment, Part

SCAN = 1.0  # seconds between looks for new processes


def title(pid: int) -> str:
    """What a process calls itself, without its folder and arguments; empty where it has ended."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return words[0].decode(errors="replace").strip().rpartition("/")[2]


def parent(pid: int) -> int | None:
    """The process that has started it; None where it has ended."""
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


class Processes:
    """Those whose environment holds `mark`; new ones are looked for every `SCAN` seconds, as that takes long."""

    def __init__(self, mark: str) -> None:
        self.mark, self._found, self._looked = mark, list[int](), 0.0

    def titles(self) -> dict[int, str]:
        """Process -> what it calls itself now, the oldest first."""
        if time.monotonic() - self._looked > SCAN:
            self._found, self._looked = sorted(owned(self.mark)), time.monotonic()
        return {pid: title(pid) for pid in self._found}

    def of(self, part: Part) -> list[int]:
        """The processes that fail with the part: one of those that it names, or all where it names none.

        A process is left out whose parent has such a title too: it was forked, to save or to route. Known are those
        that were there at the last look, since a moment may be over before another look is.
        """
        if not part.title:
            return owned(self.mark)
        found = [pid for pid, name in self.titles().items() if name.startswith(part.title)]
        return [pid for pid in found if parent(pid) not in found][-1:]


class Watch:
    """Sees a moment come: a process in a method, and files of a run that are there and that are not yet."""

    def __init__(self, moment: Moment, run: Path, processes: Processes) -> None:
        self.moment, self.run, self.processes = moment, run, processes
        self._since: float | None = None

    def has_come(self) -> bool:
        """Whether it has lasted as long as it must; to be asked again and again."""
        if not self.lasts():
            self._since = None
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= self.moment.seconds

    def lasts(self) -> bool:
        moment = self.moment
        there = (self.run / moment.there).exists() and not (self.run / moment.missing).exists()
        return there and moment.title in self.processes.titles().values()


def strike(pids: list[int], part: Part) -> None:
    """Send the part's signal to each that still lives."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, part.number)


def left_after(living: Callable[[], list[int]], seconds: float) -> list[str]:
    """Titles of the run's processes that still live `seconds` later; none as soon as there is none."""
    deadline = time.monotonic() + seconds
    while living() and time.monotonic() < deadline:
        time.sleep(0.2)
    return sorted(title(pid) for pid in living())
