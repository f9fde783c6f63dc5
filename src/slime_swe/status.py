"""Write and read what a run's process says of itself in `status.json` of the run's folder: its phase, and how it ended.

A help for those who watch and no record: it is not flushed to the disk, and where it can't be written the run goes on.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec

STATUS = "status.json"
OFTEN = 1.0  # seconds between two changes of a phase's detail


class Status(msgspec.Struct, frozen=True):
    """`Status` is what the run's attempt of that number says. `since` is when the phase began, in seconds of Unix time.

    `exit_code` is that of the attempt's process; None while it runs, and where it was killed. `why` says in words why
    it failed.
    """

    attempt: int
    phase: str = "starting"
    detail: str = ""
    since: float = 0.0
    exit_code: int | None = None
    why: str = ""


class StatusFile:
    """The status of one attempt, which this process writes."""

    def __init__(self, folder: Path, attempt: int) -> None:
        self.path, self.attempt = folder / STATUS, attempt
        self._phase, self._since, self._written = "", 0.0, 0.0

    def on_phase(self, name: str) -> None:
        self._phase, self._since = name, time.time()
        self._write(Status(self.attempt, name, since=self._since))

    def on_detail(self, detail: str) -> None:
        """Write how far the phase is, in words, at most once in `OFTEN` seconds."""
        if time.monotonic() - self._written >= OFTEN:
            self._write(Status(self.attempt, self._phase, detail, self._since))

    def on_end(self, exit_code: int, why: str = "") -> None:
        """Write how the attempt ended. The phase that it ended in stays, also where another process has written it."""
        last = read_status(self.path.parent)
        phase = last.phase if last is not None and last.attempt == self.attempt else self._phase
        self._write(Status(self.attempt, phase, since=time.time(), exit_code=exit_code, why=why))

    def _write(self, status: Status) -> None:
        """Write the status, whole or not at all in the eyes of a reader."""
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        with suppress(OSError):
            try:
                temporary.write_bytes(msgspec.json.encode(status) + b"\n")
                temporary.replace(self.path)
            finally:
                temporary.unlink(missing_ok=True)
        self._written = time.monotonic()


def read_status(folder: Path) -> Status | None:
    """Read the newest status; None where there is none that can be read."""
    try:
        return msgspec.json.decode((folder / STATUS).read_bytes(), type=Status)
    except (OSError, msgspec.DecodeError):
        return None
