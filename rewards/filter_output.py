"""What a group filter returns: SLiME's own type where it is installed, since SLiME checks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING


@dataclass
class _FilterOutput:
    """`keep_when_insufficient`: a dropped group may still fill a batch that would else need another round."""

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


if TYPE_CHECKING:
    DynamicFilterOutput = _FilterOutput
else:
    try:
        from slime.rollout.filter_hub.base_types import DynamicFilterOutput
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "slime":
            raise
        DynamicFilterOutput = _FilterOutput

__all__ = ["DynamicFilterOutput"]
