"""Whether a run still runs, and how it ended, from what it leaves in its folder."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from slime_swe.attempts import ATTEMPTS, Process, last_process, lasts
from slime_swe.embedded.report import SUMMARY_FILE
from slime_swe.launch.cli import FAILURE
from slime_swe.launch.output import duration
from slime_swe.launch.slime.paths import DRIVERS
from slime_swe.status import Status, read_status


@dataclass(frozen=True)
class RunState:
    """process: of the last attempt; None where the run never began. status: what that attempt said last.

    lasts: whether it runs; None where that can't be known on this machine.
    exit_code: of a run that has ended, by itself or not; None while it runs, or may run.
    why: in words, where that is not 0.
    """

    process: Process | None = None
    status: Status | None = None
    lasts: bool | None = False
    exit_code: int | None = None
    why: str = ""

    @property
    def attempt(self) -> int:
        return self.process.attempt if self.process else 0


def state_of(folder: Path) -> RunState:
    """SLiME's driver is a process of its own, and the run lasts as long as it does."""
    alive = [lasts(folder / name) for name in (ATTEMPTS, DRIVERS)]
    running = True if True in alive else None if None in alive else False
    process, status = last_process(folder / ATTEMPTS), read_status(folder)
    if process is None:
        return RunState(exit_code=FAILURE, why="the run has never begun") if running is False else RunState(lasts=True)
    written = status is not None
    status = status if status is not None and status.attempt == process.attempt else None
    if running is not True and status is not None and status.exit_code is not None:
        return RunState(process, status, False, status.exit_code, status.why)
    if running is False:
        if not written and (folder / SUMMARY_FILE).is_file():  # of a version that wrote no status
            return RunState(process, None, False, 0)
        return RunState(process, status, False, FAILURE, _died(process, status))
    return RunState(process, status, running)


def _died(process: Process, status: Status | None) -> str:
    place = f", in the phase {status.phase}, which began {ago(status.since)}" if status and status.phase else ""
    return (
        f"process {process.pid} on {process.host} died without a word{place}: it was killed (kill -9, out of memory), "
        "or its machine stopped"
    )


def in_doubt(process: Process, status: Status | None) -> str:
    """Said where it can't be known whether the run goes on."""
    heard = f"; it was last heard of {ago(status.since)}" if status and status.since else ""
    return (
        f"whether process {process.pid} still runs is known on {process.host} alone, as the file system of its "
        f"folder has no locks between machines{heard}"
    )


def ago(since: float) -> str:
    """For people, of a moment in seconds of Unix time."""
    return f"{duration(max(0.0, time.time() - since))} ago"
