"""Mutate the data that tests read: cases of data files, which the code of a test runs, and the records of JSON.

| file | case | what is expected |
| --- | --- | --- |
| `.test` (mypy's own suites) | `[case NAME]` | a comment `# E: …` (or N, W) of the program, or the section `[out]` |
| `.yml`, `.yaml` (pytest-mypy-plugins) | `- case: NAME` | the same comments, or what stands under `out:` |
| `.ambr` (syrupy) | `# name: NAME` | the text up to the next one |
| `.t` (cram) | the file | the lines below a command |

What a case expects gets another letter at its end. A case that expects nothing is made to expect something. Files of
other forms, and tests that name no case, are left to `rewards.mutation.rewrite_literals`.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

import orjson

from slime_swe.rewards.altered_tests import FORMS, Vocabulary
from slime_swe.rewards.mutation import Mutated

SUFFIXES = (".test", ".yml", ".yaml", ".ambr", ".t")
_HEADERS = {
    ".test": re.compile(r"^\[case ([^\]-]+)[^\]]*\]"),  # `[case NAME-skip]` is called NAME
    ".yml": re.compile(r"^- case: *['\"]?([^\s'\"]+)"),
    ".yaml": re.compile(r"^- case: *['\"]?([^\s'\"]+)"),
    ".ambr": re.compile(r"^# name: (.+)$"),
}
_TRIES = 100  # to find as many different forms as are wanted
_COMMENT = re.compile(r" # [ENWR]:")
_OUTPUT = re.compile(r"^(\[out\d*( [^\]]*)?\]|\s+out: *[|>][-+]?)\s*$")
_PROGRAM = re.compile(r"^\s+main: *[|>][-+]?\s*$")
_COMMAND, _GOES_ON = "  $ ", "  > "


def mutate_cases(path: str, source: bytes, tests: Collection[str], rng: random.Random) -> Mutated:
    """Mutate the cases of these tests (ids) in a data file, which stays as it is where it has none of them."""
    suffix = PurePosixPath(path).suffix
    try:
        lines = source.decode().split("\n")
    except UnicodeDecodeError:
        return Mutated(source)
    functions: list[frozenset[str]] = []
    made: list[str] = []
    for case, part in _cases(lines, suffix):
        named = frozenset(test for test in tests if _is_of(test, path, suffix, case))
        changed = _mutated(part, suffix, rng) if named else part
        made += changed
        if changed != part and named not in functions:
            functions.append(named)
    return Mutated("\n".join(made).encode(), tuple(functions)) if functions else Mutated(source)


def alter_cases(path: str, source: bytes, forms: Mapping[str, int], seed: str) -> Mutated:
    """Alter the cases of these tests (ids) in a data file, each into the form of its number: a word or a number of what
    it expects is another one, as in `rewards.altered_tests`, or one of its program if it expects nothing."""
    suffix = PurePosixPath(path).suffix
    try:
        lines = source.decode().split("\n")
    except UnicodeDecodeError:
        return Mutated(source)
    vocabulary = Vocabulary.of(lines)
    altered: list[frozenset[str]] = []
    made: list[str] = []
    for case, part in _cases(lines, suffix):
        named = frozenset(test for test in forms if _is_of(test, path, suffix, case))
        if named:
            found = _forms(part, suffix, vocabulary, random.Random(f"{seed} {path} {case}"))
            number = min(forms[test] for test in named)
            if number < len(found):
                part = found[number]
                if named not in altered:
                    altered.append(named)
        made += part
    return Mutated("\n".join(made).encode(), tuple(altered)) if altered else Mutated(source)


def _forms(part: list[str], suffix: str, vocabulary: Vocabulary, rng: random.Random) -> list[list[str]]:
    expected = _expected(part, suffix)
    lines: Sequence[int] = range(0 if suffix == ".t" else 1, len(part)) if expected is None else [expected]
    lines = [at for at in lines if part[at].strip()]
    found: list[list[str]] = []
    for _ in range(_TRIES if lines else 0):
        at = rng.choice(lines)
        comment = _COMMENT.search(part[at])
        kept = comment.end() if comment else 0
        other = [*part[:at], part[at][:kept] + vocabulary.alter(part[at][kept:], rng), *part[at + 1 :]]
        if other != part and other not in found and len(found) < FORMS:
            found.append(other)
    return found


def _cases(lines: list[str], suffix: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the lines of each case, in order; what stands before the first has no name."""
    header, name, part = _HEADERS.get(suffix), "", list[str]()
    for line in lines:
        if header and (found := header.match(line)):
            yield name, part
            name, part = found[1], []
        part.append(line)
    yield name, part


def _is_of(test: str, path: str, suffix: str, case: str) -> bool:
    """Say whether a test (id) is the case of this file."""
    file, *names = test.split("::")
    place = PurePosixPath(path)
    if suffix == ".t":
        return file == path or place.name in names
    if not (case and names):
        return False
    if suffix == ".test":
        files = [name for name in names[:-1] if name.endswith(suffix)]
        return names[-1] == case and files in ([], [place.name])
    if suffix == ".ambr":
        name, beside = ".".join(names), PurePosixPath(file)
        owns = case == name or case.startswith((f"{name}.", f"{name}["))
        return owns and (beside.parent, beside.stem) == (place.parent.parent, place.stem)
    return file == path and re.sub(r"\[.*", "", names[-1]) == case


def _mutated(part: list[str], suffix: str, rng: random.Random) -> list[str]:
    """Return the lines of a case, changed so that honest code must fail it; the same ones where no way is found."""
    letters = "".join(rng.choices(string.ascii_lowercase, k=3))
    if (at := _expected(part, suffix)) is not None:
        return [*part[:at], part[at] + letters[0], *part[at + 1 :]]
    unmet = f'pass # E: Name "{letters}" is not defined'
    for at, line in enumerate(part):
        if suffix == ".test" and at == 0:
            return [line, unmet, *part[1:]]
        if _PROGRAM.match(line) and at + 1 < len(part):
            indent = part[at + 1][: len(part[at + 1]) - len(part[at + 1].lstrip())]
            return [*part[: at + 1], indent + unmet, *part[at + 1 :]]
        if suffix == ".t" and line.startswith(_COMMAND):
            end = next((n for n in range(at + 1, len(part)) if not part[n].startswith(_GOES_ON)), len(part))
            return [*part[:end], f"  {letters}", *part[end:]]
    return part


def _expected(part: list[str], suffix: str) -> int | None:
    """Return the index of the first line that holds what a case expects; None where there is none."""
    if suffix == ".ambr":
        return next((at for at, line in enumerate(part) if not line.startswith("#") and line.strip()), None)
    if suffix == ".t":
        given = (line.startswith("  ") and not line.startswith((_COMMAND, _GOES_ON)) for line in part)
        return next((at for at, is_output in enumerate(given) if is_output and part[at].strip()), None)
    for at, line in enumerate(part[1:], 1):
        if _COMMENT.search(line):
            return at
        if _OUTPUT.match(line) and at + 1 < len(part) and part[at + 1].strip() and not part[at + 1].startswith("["):
            return at + 1
    return None


# Alter a JSON file that tests read, so that nothing in its text shows it: one literal of each record becomes another.
#
# A record is a line of JSON lines, or an element of a list or an object. In each of them the same literal is altered,
# counted from the end. In the first third of the forms it is the last one, which often is what a case expects. So all
# cases that read the file may fail at once; which do, the gold patch shows (`rewards.negative_control`). Of truth
# values only some are turned, since all of them together have no more than one other form. Keys, and `null`, stay.
JSON = (".json", ".jsonl")
_MOST_BYTES = 1 << 20  # of a file that is altered
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|[\[\]{},:]')
_TURNED = {"true": "false", "false": "true"}

_Record = list[tuple[int, int]]  # where its literals begin and end


def is_read_by(path: str, source: bytes) -> bool:
    """Say whether a test file names this data file, with or without its suffix, as a word."""
    name = path.rpartition("/")[2]
    stem = name.rpartition(".")[0]
    return re.search(rb"\b(?:%s|%s)\b" % (re.escape(name).encode(), re.escape(stem).encode()), source) is not None


def alter_data(source: bytes, number: int, seed: str) -> bytes | None:
    """Return a file in its altered form of this number; None where it has none, or is no JSON of at most 1 MiB."""
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
    """Return another literal of the same form; the same for half of the truth values, and where no other is found."""
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
    """Yield the places of the literals in each element of the outermost list or object."""
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
