"""Tool-call parsers by name. Each takes a sampled turn's text and never raises, whatever the text."""

from __future__ import annotations

from collections.abc import Callable

from data_sources.arguments import ArgumentError, unknown
from rollout.chat.calls import ParsedTurn, ToolCall
from rollout.chat.hermes import parse_hermes
from rollout.chat.qwen3_coder import parse_qwen3_coder

PARSERS: dict[str, Callable[[str], ParsedTurn]] = {"hermes": parse_hermes, "qwen3_coder": parse_qwen3_coder}


def parse(text: str, format: str) -> ParsedTurn:
    """The calls in `text`. Raises `ArgumentError` for a format that is not in `PARSERS`."""
    if format not in PARSERS:
        raise ArgumentError(unknown("tool-call format", format, PARSERS))
    return PARSERS[format](text)


__all__ = ["PARSERS", "ParsedTurn", "ToolCall", "parse"]
