"""How a part of a drilled run is made to fail, and what the run needs for that."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from slime_swe.errors import InfrastructureError
from slime_swe.launch.ray.processes import PROC, owned
from slime_swe.launch.rehearse.faults import PARTS, Drill, Moment, Part
from slime_swe.launch.slime.job import Job


@dataclass
class Injection:
    """The part's processes get its signal. A part that fails in another way has a subclass.

    run: the run's folder, which is not there before. ends_within: seconds in which the run's processes must follow its
    driver.
    """

    ends_within: ClassVar[float] = 10.0
    drill: Drill
    run: Path

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """The folder, and what else the run needs, until the drill is over.

        Raises `InfrastructureError` where this machine does not give it.
        """
        self.run.mkdir(parents=True)
        yield

    def started(self, job: Job) -> Job:
        """The job as it is started, the first time and to resume."""
        return job

    def inject(self, processes: Processes) -> None:
        """Let the part fail. Raises `InfrastructureError` where the run has none."""
        part = PARTS[self.drill.part]
        found = processes.of(part)
        if not found:
            raise InfrastructureError(f"{self.drill.name}: no process of the run is a {self.drill.part}")
        while found:
            strike(found, part)
            found = [] if part.title else processes.of(part)  # what was being started meanwhile

    def living(self, mark: str) -> list[int]:
        """The run's processes; mark: of those that its job has started."""
        return owned(mark)

    def mend(self) -> None:
        """Undo what has failed, before the run is resumed."""


# The processes of one run that the drill has started, told apart by what they call themselves.
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


# A small disk of its own for a run's folder, which can be filled: a tmpfs, which needs root to be mounted.
BYTES = 64 << 20
_FILLER, _BLOCKS = "filler", 64  # the last blocks are written one by one, as others write meanwhile


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount it at `folder`, which is made; afterwards the folder holds what was written there, on its own disk.

    Raises `InfrastructureError` where this process may mount nothing.
    """
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"a full disk needs root, to mount a small one: {done.stderr.strip()}")
    kept = folder.with_name(f"{folder.name}.kept")
    try:
        yield
        empty(folder)
        shutil.copytree(folder, kept, symlinks=True)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()
    kept.rename(folder)


def fill(folder: Path) -> None:
    """Leave no byte free."""
    free = os.statvfs(folder)
    with (folder / _FILLER).open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, max(1, (free.f_bavail - _BLOCKS) * free.f_frsize))
        with suppress(OSError):  # it is full
            while file.write(bytes(free.f_frsize)):
                pass


def empty(folder: Path) -> None:
    """Make the room again, as a user does who is told that the disk is full."""
    (folder / _FILLER).unlink(missing_ok=True)


class FullDisk(Injection):
    """The disk of the run's folder is full."""

    @contextmanager
    def prepared(self) -> Iterator[None]:
        with small_disk(self.run):
            yield

    def inject(self, processes: Processes) -> None:
        fill(self.run)

    def mend(self) -> None:
        empty(self.run)
