"""Where things lie in the folder of a run under SLiME, and how its journals go back to the newest checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from slime_swe.attempts import of_last_attempt, require_ended
from slime_swe.errors import UserError
from slime_swe.files import replace_file, writing
from slime_swe.rollout.records import EPISODES, EVALUATIONS
from slime_swe.rollout.retention import last_saved

CHECKPOINTS = "checkpoints"  # Megatron's, and the data source's state of each
EXPORTS = "exports"  # the same weights in Hugging Face format, one folder a rollout
WEIGHTS = "weights"  # the newest weights in Hugging Face format, for as long as external engines load them
SETTINGS = "slime/settings.yaml"  # what SLiME has no flag for, read by `--custom-config-path`
EVALUATION = "slime/evaluation.yaml"  # the evaluation sets, read by `--eval-config`
TENSORBOARD = "tensorboard"
DRIVERS = "drivers.jsonl"  # a line for each process that has run SLiME's `train.py`; a running one holds a lock on it


def cut_back(run: Path) -> None:
    """Leave in each journal of a resumed run the rollouts that the newest checkpoint has seen, since the others will be
    played again: none where there is no checkpoint. Of a rollout that two attempts wrote, the last one's records stay.

    SLiME's evaluation before the first rollout is numbered 0 too. It is kept with a checkpoint and made again without.
    Raises `HeldError` where SLiME still runs in this folder.
    """
    require_ended(run / DRIVERS)
    last = last_saved(run / CHECKPOINTS)
    for path in (run / EPISODES, run / EVALUATIONS):
        if path.exists():
            with writing(path):
                _keep(path, _lines_up_to(path, last))


@dataclass(frozen=True)
class _Line:
    start: int  # bytes before it
    end: int
    rollout: int
    attempt: int | None


def _lines_up_to(path: Path, last: int) -> list[_Line]:
    """The whole lines of rollouts up to `last`, each rollout of its last attempt."""
    lines, end = list[_Line](), 0
    with path.open("rb") as file:
        for line in file:
            start, end = end, end + len(line)
            if not line.endswith(b"\n"):  # cut short by a crash
                break
            try:
                record = orjson.loads(line)
                lines.append(_Line(start, end, record["rollout_id"], record.get("attempt")))
            except (orjson.JSONDecodeError, KeyError, TypeError) as error:
                raise UserError(f"{path} has a line that is no record ({line[:80]!r}): restore the file") from error
    seen = [line for line in lines if line.rollout <= last]
    return of_last_attempt(seen, lambda line: line.rollout, lambda line: line.attempt)


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
