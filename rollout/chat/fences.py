"""Fenced blocks of Markdown (CommonMark 0.31, 4.5), as policies write them around code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

MOST_FENCES = 1000  # of one turn; what is behind them is text
# Longer fences are text: each length that is never closed is looked for to the text's end, once.
_OPEN = re.compile(r"^ {0,3}(`{3,8})(?!`)[ \t]*+([^\s`]*+)[^`\n]*+(?:\n|\Z)", re.MULTILINE)
_CLOSE = re.compile(r"^ {0,3}(`{3,})[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class Fence:
    """A block from `start` to `end`, whose content is `text[content:content_end]`. One that nothing closes goes to the
    text's end."""

    language: str  # in lower case; empty where none is named
    start: int
    content: int
    content_end: int
    end: int
    closed: bool = True


def fences(text: str) -> Iterator[Fence]:
    """Yield the blocks of a text in order, in time that grows with the text. Behind one that nothing closes, blocks are
    looked for in its content."""
    at, unclosed = 0, 9
    for _ in range(MOST_FENCES):
        opening = _OPEN.search(text, at)
        if opening is None:
            return
        length, language = len(opening.group(1)), opening.group(2).lower()
        start, content = opening.start(), opening.end()
        closing = _closing(text, content, length) if length < unclosed else None
        if closing is None:
            unclosed = min(unclosed, length)
            yield Fence(language, start, content, len(text), len(text), closed=False)
            at = content
        else:
            yield Fence(language, start, content, closing.start(), closing.end())
            at = closing.end()


def _closing(text: str, at: int, length: int) -> re.Match[str] | None:
    """Find the first line that closes a fence of so many backticks."""
    return next((found for found in _CLOSE.finditer(text, at) if len(found.group(1)) >= length), None)
