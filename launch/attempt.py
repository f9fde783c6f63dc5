"""One attempt at a run or an evaluation, whose end is recorded in `status.json` in its folder."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from slime_swe.attempts import ATTEMPTS, Attempt, HeldError, attempting
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.files import FileError
from slime_swe.launch.cli import FAILURE, USER_ERROR
from slime_swe.launch.ray.processes import handling, interrupting
from slime_swe.saving import TRY_AGAIN, StoppedToResume, request_stop, withdraw_request
from slime_swe.status import StatusFile


@contextmanager
def attempt_with_status(folder: Path) -> Iterator[Attempt]:
    """As `attempting`. An exception is recorded with the exit code that `slime-swe` has for it; what ends without one
    records its own, by `record_end`."""
    with attempting(folder / ATTEMPTS) as attempt, interrupting() as signals:
        try:
            yield attempt
        except HeldError:  # the folder is another process's
            raise
        except BaseException as error:
            StatusFile(folder, attempt.number).on_end(*_ending(error, signals))
            raise


@contextmanager
def stopping_when_asked(folder: Path, ends_at: float | None) -> Iterator[None]:
    """The run in `folder` stops after the last step that ends before `ends_at`, if any, in seconds of Unix time; on
    SIGUSR1, after the step that runs. What an earlier attempt was asked for is forgotten."""
    if ends_at is None:
        withdraw_request(folder)
    else:
        request_stop(folder, ends_at)

    def ask(number: int, frame: FrameType | None) -> None:
        try:
            request_stop(folder)
        except FileError as error:
            print(f"slime-swe: can't stop after this step: {error}", file=sys.stderr, flush=True)

    with handling({signal.SIGUSR1: ask}):
        yield


def record_end(folder: Path, attempt: Attempt, exit_code: int) -> None:
    """The attempt has come to its end by itself."""
    StatusFile(folder, attempt.number).on_end(exit_code)


def _ending(error: BaseException, signals: Sequence[int]) -> tuple[int, str]:
    if isinstance(error, StoppedToResume):
        return TRY_AGAIN, str(error)
    if isinstance(error, KeyboardInterrupt):
        number = signals[0] if signals else signal.SIGINT
        return 128 + number, f"interrupted by {signal.Signals(number).name}"
    known = isinstance(error, UserError | InfrastructureError)
    said = str(error) if known else f"{type(error).__name__}: {error}"
    return USER_ERROR if isinstance(error, UserError) else FAILURE, said
