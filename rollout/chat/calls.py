"""What a parser makes of one sampled turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ParsedTurn:
    """The calls of a turn in order, up to the first malformed one; `error` says to the policy what is wrong with that.

    `text_before` is what was said before the first call, well-formed or not.
    """

    text_before: str
    calls: list[ToolCall]
    error: str | None = None


class MalformedCall(Exception):
    """Raised inside a parser; never leaves it."""
