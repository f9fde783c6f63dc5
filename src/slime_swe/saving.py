"""Decide when a run saves beside its interval of rollouts, and when it stops since its time is nearly up.

The time by which a run must have ended is a line in its folder, `stop_by`: seconds of Unix time, 0 for the end of the
step that runs. Whoever ends a job writes it there, on whatever node; the train loop reads it after each step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from slime_swe.files import replace_file, writing

STOP_BY = "stop_by"
TRY_AGAIN = 75  # exit code of a run that stopped with a checkpoint, to be resumed: EX_TEMPFAIL of sysexits.h
AFTER_THIS_STEP = 0.0
RECENT = 3  # steps of which the longest is what another is expected to take


class StoppedToResume(Exception):
    """The run has saved all that it did, and goes on when it is resumed."""

    def __init__(self, rollout_id: int | None = None) -> None:
        after = "" if rollout_id is None else f" after rollout {rollout_id + 1}"
        super().__init__(f"stopped{after} as its time was up, with a checkpoint of each step that had ended")


def raise_if_stopped(exit_code: int) -> None:
    """Raise `StoppedToResume` where a process of the run has ended with the exit code of one that stopped."""
    if exit_code == TRY_AGAIN:
        raise StoppedToResume


def request_stop(folder: Path, by: float = AFTER_THIS_STEP) -> None:
    """Have the run in `folder` stop by then, with a checkpoint of the last step that ends before."""
    path = folder / STOP_BY
    with writing(path):
        replace_file(path, f"{by:.0f}\n".encode())


def withdraw_request(folder: Path) -> None:
    """Forget what was asked of an earlier attempt: it does not hold for this one."""
    with writing(folder / STOP_BY):
        (folder / STOP_BY).unlink(missing_ok=True)


def stop_by(folder: Path) -> float | None:
    """Return when the run must stop, in seconds of Unix time; None where nobody has asked. A request that is being
    written asks for the end of this step."""
    try:
        text = (folder / STOP_BY).read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    with suppress(ValueError):
        return float(text)
    return AFTER_THIS_STEP


@dataclass(frozen=True)
class Due:
    """`Due` says what follows a step. A stop comes with a save."""

    save: bool
    stop: bool


class Saves:
    """`Saves` decides after each step of one process what follows.

    It saves where the next step would end more than `every` seconds after the last checkpoint (0: never for that
    reason), or may not end before the run must stop. It stops where the next step will not. The next step is expected
    to take as long as the longest of the last three, and for a save up to twice as long: a checkpoint too many costs
    minutes, and one that is missing costs every step since the last. The first step of a process counts only until
    there is another, since the process's start is in it. A step that takes more than twice the expected time is not
    covered: what was done since the last checkpoint may then be lost.

    `clock` gives seconds of Unix time.
    """

    def __init__(self, folder: Path, every: float = 0.0, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._every, self._clock = folder, every, clock
        self._step = self._saved = clock()
        self._steps = list[float]()
        self._save = 0.0  # seconds that the longest save took

    def after_step(self) -> Due:
        """Say what follows the step that has ended just now."""
        now = self._clock()
        self._steps.append(now - self._step)
        self._step = now
        step, by = max(self._steps[1:][-RECENT:], default=self._steps[0]), stop_by(self._folder)
        left = float("inf") if by is None else by - now - self._save
        stop = step > left
        late = self._every > 0 and now + step - self._saved > self._every
        return Due(save=stop or late or 2 * step > left, stop=stop)

    def on_saved(self) -> None:
        """Note that a checkpoint of that step has just become whole."""
        self._saved = self._clock()
        self._save = max(self._save, self._saved - self._step)
