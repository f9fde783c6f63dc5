"""`--at-least POINTS`: a difference that is asked for, of one set or of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slime_swe.errors import UserError, unknown


@dataclass(frozen=True)
class Requirement:
    """met: the difference is `points` or more, and the verdict is `better`."""

    set: str
    points: float
    met: bool


def requirements(given: Sequence[str], sets: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of `POINTS` or `SET=POINTS` as given, against the comparisons by set. Raises `UserError`."""
    return [asdict(found) for text in given for found in _read(text, sets)]


def _read(text: str, sets: Mapping[str, Mapping[str, Any]]) -> list[Requirement]:
    name, separator, number = text.rpartition("=")
    try:
        points = float(number)
    except ValueError:
        points = math.nan
    if not 0 <= points <= 100:
        raise UserError(f"--at-least {text}: give points of the solve rate from 0 to 100, as 5 or NAME=5")
    if separator and name not in sets:
        raise UserError(unknown("--at-least", name, sets))
    return [_check(name, points, sets[name]) for name in ([name] if separator else sets)]


def _check(name: str, points: float, comparison: Mapping[str, Any]) -> Requirement:
    reached = 100 * comparison["difference"] >= points - 1e-9  # 0.05 is 5 points, whatever its last bit
    return Requirement(name, points, bool(reached and comparison["verdict"] == "better"))
