"""What SLiME and Megatron hold, beside what the recipe asked for."""

from __future__ import annotations

from typing import Any

from slime_swe.launch.rehearse.checks import Measured, NotMadeError
from slime_swe.launch.rehearse.evidence import Evidence

SERVERS = "sglang_"  # how names of attributes begin that are there where a server is
IMPLIED = ("use_routing_replay",)  # SLiME sets it with --use-rollout-routing-replay


def arguments(evidence: Evidence) -> Measured:
    """Attributes that have another value in the trainer than the recipe gave them, or none."""
    held = evidence.layout.arguments
    if not held:
        raise NotMadeError("the trainer's log holds no table of its arguments")
    return Measured(len(changed(evidence)), 0)


def changed(evidence: Evidence) -> dict[str, tuple[Any, str | None]]:
    """Attribute -> what was asked for, and what the trainer has."""
    held = evidence.layout.arguments
    return {
        name: (value, held.get(name))
        for name, value in evidence.asked.items()
        if value is not None
        and name not in IMPLIED
        and not (evidence.skipped and name.startswith(SERVERS))
        and not _same(value, held.get(name))
    }


def _same(value: Any, text: str | None) -> bool:
    if text is None:
        return False
    if isinstance(value, bool):
        return text == str(value)
    if isinstance(value, int | float):
        try:
            return float(text) == float(value)
        except ValueError:
            return text == f"[{value}]"
    if isinstance(value, list | tuple):
        return "".join(text.split()).strip("[]").replace("'", "") == ",".join(map(str, value)).strip("[]")
    return text.rpartition(".")[2] == str(value) or text == str(value)
