"""Code and diffs in colour, by Pygments: (class, text) pairs, of which the page makes text nodes and no markup."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pygments.lexer import Lexer
from pygments.lexers.data import JsonLexer
from pygments.lexers.diff import DiffLexer
from pygments.token import STANDARD_TYPES, Token

Pairs = list[list[str]]
_LONGEST = 100_000  # characters: what is longer stays plain
_GROWTH, _SMALL = 4, 1000  # times as long as it was, and so many characters, a text may become by being laid out

_DIFF, _JSON = DiffLexer(stripnl=False, ensurenl=False), JsonLexer(stripnl=False, ensurenl=False)


def diff(text: str) -> Pairs:
    return _pairs(text, _DIFF)


def arguments(text: str) -> Pairs:
    """The arguments of a tool call. Those of one that is a line of JSON are laid out, one a line, unless that makes
    them much longer: the indents of n levels are n² characters."""
    laid_out = _laid_out(text, _GROWTH * len(text) + _SMALL)
    return [["", text]] if laid_out is None else _pairs(laid_out, _JSON)


def _laid_out(text: str, most: int) -> str | None:
    """None where it is no JSON, or has more than `most` characters."""
    pieces, length = [], 0
    try:
        for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            pieces.append(piece)
            length += len(piece)
            if length > most:
                return None
    except (ValueError, RecursionError):
        return None
    return "".join(pieces)


def _pairs(text: str, lexer: Lexer) -> Pairs:
    if len(text) > _LONGEST:
        return [["", text]]
    pairs: Pairs = []
    for kind, value in _lexed(text, lexer):
        within_line = pairs and not pairs[-1][1].endswith("\n")  # else the next line's
        if pairs and (pairs[-1][0] == kind or (value.isspace() and within_line)):
            pairs[-1][1] += value
        else:
            pairs.append([kind, value])
    return pairs


def _lexed(text: str, lexer: Lexer) -> Iterator[tuple[str, str]]:
    for kind, value in lexer.get_tokens(text):
        while kind not in STANDARD_TYPES:
            kind = kind.parent or Token
        yield STANDARD_TYPES[kind], value
