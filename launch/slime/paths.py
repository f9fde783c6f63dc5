"""Where things lie in the folder of a run under SLiME, and how its journals go back to the newest checkpoint."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from slime_swe.attempts import of_last_attempt, require_ended
from slime_swe.data_sources.slime_plugin import state_path
from slime_swe.errors import UserError
from slime_swe.files import replace_file, writing
from slime_swe.rollout.journals import TRAINED
from slime_swe.rollout.records import EPISODES, EVALUATIONS, METRICS
from slime_swe.rollout.retention import INDEX, TRACKER, last_saved, saved

CHECKPOINTS = "checkpoints"  # Megatron's, and the data source's state of each
EXPORTS = "exports"  # the same weights in Hugging Face format, one folder a rollout
WEIGHTS = "weights"  # the newest weights in Hugging Face format, for as long as external engines load them
SETTINGS = "slime/settings.yaml"  # what SLiME has no flag for, read by `--custom-config-path`
EVALUATION = "slime/evaluation.yaml"  # the evaluation sets, read by `--eval-config`
TENSORBOARD = "tensorboard"
LOG = "slime.log"  # the output of SLiME's driver
_UNREADABLE = sys.maxsize
DRIVERS = "drivers.jsonl"  # a line for each process that has run SLiME's `train.py`; a running one holds a lock on it


def cut_back(run: Path, *, own_state: bool = True, rollouts: int = 0) -> None:
    """Leave in each journal of a resumed run the rollouts that the newest checkpoint has seen, since the others will be
    played again: none where there is no checkpoint. Of a rollout that two attempts wrote, the last one's records stay.

    SLiME's evaluation before the first rollout is numbered 0 too. It is kept with a checkpoint and made again without.
    own_state: the data source's state is ours, and a checkpoint without it is none. rollouts: how many the run has; the
    last one's checkpoint is none without its export, which SLiME writes after it and only where it trains. Raises
    `HeldError` where SLiME still runs in this folder, and `UserError` where no checkpoint can be resumed.
    """
    require_ended(run / DRIVERS)
    last = _newest(run, own_state, rollouts)
    for path in (run / EPISODES, run / EVALUATIONS, run / METRICS, run / TRAINED):
        if path.exists():
            with writing(path):
                _keep(path, _lines_up_to(path, last))


def _newest(run: Path, own_state: bool, rollouts: int) -> int:
    """Return the rollout of the checkpoint that a run goes on from, -1 where there is none.

    Between Megatron's checkpoint and the data source's state or the last export a run may have been killed, or while
    Megatron wrote which its newest is. Then Megatron is told to take the newest one that is whole and has all of them.
    """
    checkpoints = run / CHECKPOINTS
    tracker = checkpoints / TRACKER

    def missing(rollout: int) -> Path | None:
        state = [state_path(checkpoints, rollout)] if own_state else []
        export = [run / EXPORTS / str(rollout) / INDEX] if rollout == rollouts - 1 else []
        return next((path for path in (*state, *export) if not path.is_file()), None)

    last = last_saved(checkpoints, unreadable=_UNREADABLE)
    lacking = tracker if last == _UNREADABLE else missing(last)
    if last < 0 or lacking is None:
        return last
    lacks = f"{tracker} holds no number" if last == _UNREADABLE else f"{lacking} is missing"
    whole = [number for number in saved(checkpoints) if number < last and missing(number) is None]
    if not whole:
        conversion = (
            f"To make that export of the checkpoint, run the command that `slime-swe evaluate {checkpoints}` prints "
            f"with --output-dir {lacking.parent} --force, and resume. "
        )
        raise UserError(
            f"{lacks}, as after a kill while a checkpoint was saved, and no older checkpoint has all that a run needs. "
            f"{conversion if lacking.name == INDEX else ''}To begin with the model's weights again, delete {tracker}"
        )
    print(f"note: {lacks}: going on from the checkpoint of rollout {max(whole)}", file=sys.stderr)
    replace_file(tracker, str(max(whole)).encode())
    return max(whole)


@dataclass(frozen=True)
class _Line:
    start: int  # bytes before it
    end: int
    rollout: int
    what: tuple[str | None, ...]  # of a line of `metrics.jsonl`
    attempt: int | None


def _lines_up_to(path: Path, last: int) -> list[_Line]:
    """Read the whole lines of rollouts up to `last`, each rollout of its last attempt."""
    lines, end = list[_Line](), 0
    with path.open("rb") as file:
        for line in file:
            start, end = end, end + len(line)
            if not line.endswith(b"\n"):  # cut short by a crash
                break
            try:
                record = orjson.loads(line)
                rollout, what = record["rollout_id"], (record.get("kind"), record.get("name"))
                lines.append(_Line(start, end, rollout, what, record.get("attempt")))
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise UserError(f"{path} has a line that is no record ({line[:80]!r}): restore the file") from error
    seen = [line for line in lines if line.rollout <= last]
    return of_last_attempt(seen, lambda line: (line.rollout, *line.what), lambda line: line.attempt)


def _keep(path: Path, lines: Sequence[_Line]) -> None:
    """Drop every other line. The file is cut where these are its beginning, as they are unless two attempts mixed."""
    size = sum(line.end - line.start for line in lines)
    if not lines or lines[-1].end == size:
        os.truncate(path, size)
        return
    with path.open("rb") as file:
        content = bytearray()
        for line in lines:
            file.seek(line.start)
            content += file.read(line.end - line.start)
    replace_file(path, bytes(content))
