"""`Finding`: what one check has to say, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """A failure stops a launch; a warning makes it slower, riskier or untested; skipped means not looked at."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `fix` says what to do; only a warning or a failure has one.

    `command` does it, pasted into a shell; it may have several lines.
    """

    check: str
    status: Status
    message: str
    fix: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        wants_fix = self.status in (Status.WARNING, Status.FAILURE)
        assert bool(self.fix) == wants_fix, (self.check, self.status, self.message, self.fix)


def ok(check: str, message: str) -> Finding:
    return Finding(check, Status.OK, message)


def warning(check: str, message: str, fix: str) -> Finding:
    return Finding(check, Status.WARNING, message, fix)


def failure(check: str, message: str, fix: str, command: str = "") -> Finding:
    return Finding(check, Status.FAILURE, message, fix, command)


def skipped(check: str, message: str) -> Finding:
    return Finding(check, Status.SKIPPED, message)
