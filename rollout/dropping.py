"""Why a group whose episodes have all ended is not trained: infrastructure broke too many, or the group filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

LEAST_SOUND = 2  # episodes of a group that have a baseline
LOST = "infrastructure"  # the reason where fewer are left


def is_lost(broken: Sequence[bool]) -> bool:
    """Whether infrastructure left too few of a group's episodes. broken: of each, whether it broke that one."""
    return broken.count(False) < min(LEAST_SOUND, len(broken))


def why_filtered(args: Any, group_filter: Callable[..., Any] | None, group: Sequence[Any]) -> str:
    """Why the group filter drops a group; empty where it does not. group: a sample or a list of them an episode."""
    if group_filter is None:
        return ""
    verdict = group_filter(args, group)
    if not hasattr(verdict, "keep"):  # a bare truth value, as older filters return
        return "" if verdict else "unnamed"
    return "" if verdict.keep else str(verdict.reason or "unnamed")
