"""Alter a JSON file that tests read, so that nothing in its text shows it: one literal of each record becomes another.

A record is a line of JSON lines, or an element of a list or an object. In each of them the same literal is altered,
counted from the end. In the first third of the forms it is the last one, which often is what a case expects. So all
cases that read the file may fail at once; which do, the gold patch shows (`rewards.negative_control`). Of truth values
only some are turned, since all of them together have no more than one other form. Keys, and `null`, stay.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import orjson

from slime_swe.rewards.altered_tests import FORMS, Vocabulary

JSON = (".json", ".jsonl")
_MOST_BYTES = 1 << 20  # of a file that is altered
_TRIES = 100  # to find as many different forms as are wanted
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|[\[\]{},:]')
_TURNED = {"true": "false", "false": "true"}

_Record = list[tuple[int, int]]  # where its literals begin and end


def is_read_by(path: str, source: bytes) -> bool:
    """Whether a test file names this data file, with or without its suffix, as a word."""
    name = path.rpartition("/")[2]
    stem = name.rpartition(".")[0]
    return re.search(rb"\b(?:%s|%s)\b" % (re.escape(name).encode(), re.escape(stem).encode()), source) is not None


def alter_data(source: bytes, number: int, seed: str) -> bytes | None:
    """The file in the altered form of this number; None where it has none, or is no JSON of at most a megabyte."""
    try:
        text = source.decode()
    except UnicodeDecodeError:
        return None
    records = list(_records(text)) if len(source) <= _MOST_BYTES else []
    deepest = max(map(len, records), default=0)
    rng, vocabulary = random.Random(seed), Vocabulary.of([text[start:end] for one in records for start, end in one])
    found: list[str] = []
    for most, last in (FORMS // 3, True), (FORMS, False):
        for _ in range(_TRIES if deepest else 0):
            if len(found) >= min(most, number + 1):
                break
            made = _altered(text, records, 1 if last else rng.randint(1, deepest), vocabulary, rng)
            if made not in (text, *found):
                found.append(made)
    return found[number].encode() if number < len(found) else None


def _altered(text: str, records: list[_Record], from_end: int, vocabulary: Vocabulary, rng: random.Random) -> str:
    parts, at = [], 0
    for record in records:
        if len(record) >= from_end:
            start, end = record[-from_end]
            parts += [text[at:start], _other(text[start:end], vocabulary, rng)]
            at = end
    return "".join((*parts, text[at:]))


def _other(old: str, vocabulary: Vocabulary, rng: random.Random) -> str:
    """Another literal of the same form, or the same one, for half of the truth values and where no other is found."""
    if old in _TURNED:
        return _TURNED[old] if rng.randrange(2) else old
    new = vocabulary.alter(old, rng)
    try:
        true, made = orjson.loads(old), orjson.loads(new)
    except orjson.JSONDecodeError:
        return old
    return new if type(true) is type(made) and true != made else old


def _records(text: str) -> Iterator[_Record]:
    if _is_json(text):
        yield from _elements(text)
        return
    at = 0
    lines = text.splitlines(keepends=True)
    if not all(_is_json(line) for line in lines if line.strip()):
        return
    for line in lines:
        if line.strip():
            yield [(at + start, at + end) for element in _elements(line) for start, end in element]
        at += len(line)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _elements(text: str) -> Iterator[_Record]:
    """The literals of each element of the outermost list or object."""
    record: _Record = []
    depth, tokens = 0, [*_TOKEN.finditer(text)]
    for token, after in zip(tokens, [*(found[0] for found in tokens[1:]), ""], strict=False):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if token[0] == "," and depth == 1:
            yield record
            record = []
        elif token[0] not in "[]{},:" and after != ":":
            record.append(token.span())
    yield record
