"""The one place that decides which `Sample` is used: SLiME's own where it is installed, else a compatible one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slime_swe._sample import Sample
else:
    try:
        from slime.utils.types import Sample
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "slime":
            raise  # SLiME is there, but a package that it needs is not
        from slime_swe._sample import Sample

__all__ = ["Sample"]
