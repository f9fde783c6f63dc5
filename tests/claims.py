"""What shows each promise of the pages: `python -m tests.claims`.

A sentence promises if it holds one of `WORDS`, or a `FIGURE` with a unit. It names what fails when it is false: a test,
a file of tests or a benchmark. Three places count:

- the sentence itself, as in "`tests/rollout/test_outages.py` has this" or "`python -m benchmarks.sandbox` measures it";
  it may name a folder, as `tests/e2e`;
- a mark behind it, which no reader sees, for all sentences back to the mark before, or to the beginning of the
  paragraph, list item or table row: `<!-- shown: tests/a/test_b.py::test_c, test_d, benchmarks/e.py -->`, where a test
  without a file is of the file named before;
- for a table row, any of its cells, or the table's head, or "the same" for what the row above names; for a list and a
  table that follow a colon, the last sentence before it.

A mark does not begin a line: there it would end its paragraph. A section of `LIMITS`, or a paragraph that begins with
one of them, says what is *not* held, and promises nothing. `no promise` in place of `shown` is for the sentence that
has such a word all the same, and gives the reason. Headings and code are not read.

Not covered: promises in other words ("can't", "all", "the same"), numbers without a unit, and whether a test shows what
it is named for. That is for who writes the mark.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/integrity.md", "docs/scheduling.md", "docs/sandboxes.md")
WORDS = "never always nothing nobody none no only every identical exactly at_most at_least".split()
FIGURE = r"\d (?:%|ms|s|seconds?|minutes?|hours?|[KMGT]i?B|times)(?!\w)"
LIMITS = ("What remains", "What is simulated", "Not covered", "Left out", "It does **not** protect")

_PROMISE = re.compile(rf"(?<![\w-])(?:{'|'.join(word.replace('_', ' ') for word in WORDS)})\b|{FIGURE}", re.IGNORECASE)
_MARK = re.compile(r"<!-- (shown|no promise): (.*?) -->")
_TEST = r"test_\w+"
_NAMED = re.compile(
    rf"(?:tests/[\w/]+\.py(?:::{_TEST})?|`tests/[\w/]+`|`{_TEST}`|benchmarks/\w+\.py|python -m benchmarks\.\w+)"
    r"(?![\w/])"
)
_SENTENCE_END = re.compile(r"(?<=[.!?:])(?:\*\*)?\s+(?=[\[(*\"“]*[A-Z`])")
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")


@dataclass
class Sentence:
    """One sentence of a page. shown: what its text, its mark or its table names. reason: why it promises nothing."""

    page: str
    line: int
    text: str
    shown: list[str] = field(default_factory=list)
    reason: str = ""

    @property
    def promises(self) -> bool:
        return not self.reason and bool(_PROMISE.search(re.sub(r"`[^`]*`", "", self.text)))


@dataclass
class Block:
    """A paragraph, a list item or a row of a table, as one line of text; `line` is where it begins."""

    kind: str
    line: int
    section: str
    text: str


@cache
def known_tests() -> dict[str, frozenset[str]]:
    """File below the root -> the names of its tests, by its syntax tree."""
    return {
        str(path.relative_to(ROOT)): frozenset(
            node.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        )
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }


def exists(name: str) -> bool:
    """Whether a test (with its file, or alone), a file or a folder of tests or a benchmark is there."""
    path, _, test = name.partition("::")
    if name.startswith("test_"):
        return any(name in tests for tests in known_tests().values())
    if path.startswith("tests/"):
        if test:
            return test in known_tests().get(path, ())
        folder = path.rstrip("/") + "/"
        return any(tests and f"{file}/".startswith(folder) for file, tests in known_tests().items())
    return path.startswith("benchmarks/") and (ROOT / path).is_file()


def blocks(text: str) -> Iterator[Block]:
    """Everything of a page but headings and code."""
    block: Block | None = None
    section, code = "", False
    for number, line in enumerate(text.splitlines(), start=1):
        row = line.lstrip().startswith("|")
        if line.lstrip().startswith("```"):
            code = not code
        ends = code or not line.strip() or line.startswith("#") or line.lstrip().startswith("```")
        if block is not None and (ends or row or _ITEM.match(line)):
            yield block
            block = None
        if line.startswith("#") and not code:
            section = line.lstrip("# ")
        if ends:
            continue
        if block is None:
            kind = "row" if row else "item" if _ITEM.match(line) else "paragraph"
            block = Block(kind, number, section, line.strip())
        else:
            block.text += " " + line.strip()
    if block is not None:
        yield block


def sentences(page: str, text: str) -> Iterator[Sentence]:
    """All sentences of a page, each with what shows it."""
    introduction: list[str] = []  # what the sentence before the colon names, for the list or table under it
    head: list[str] = []  # what a table's head names, for its rows
    above: list[str] = []  # what the row above names
    before = Block("paragraph", 0, "", "")
    for block in blocks(text):
        starts = block.kind != before.kind or (block.kind == "row" and block.line != before.line + 1)
        if starts and before.kind != "paragraph":
            introduction = []
        before = block
        if block.kind == "row":
            names = named_in(block.text)
            if "| the same" in block.text:
                names += above
            if starts:
                head = names
            above = names
            row = Sentence(page, block.line, _MARK.sub("", block.text), names or head or introduction)
            row.reason = limit(block) or reason_of(block.text)
            yield row
            continue
        last = None
        for last in prose(page, block):
            if block.kind == "item":
                last.shown = last.shown or introduction
            yield last
        if block.kind == "paragraph":
            introduction = last.shown if last and _MARK.sub("", block.text).rstrip().endswith(":") else []


def prose(page: str, block: Block) -> Iterator[Sentence]:
    start = 0
    for mark in [*_MARK.finditer(block.text), None]:
        piece = block.text[start : mark.start() if mark else None]
        for text in _SENTENCE_END.split(piece):
            found = Sentence(page, block.line, text.strip(), named_in(text), limit(block))
            if mark and mark[1] == "shown":
                found.shown += named_in(mark[0])
            elif mark:
                found.reason = mark[2]
            if found.text:
                yield found
        start = mark.end() if mark else len(block.text)


def named_in(text: str) -> list[str]:
    """Tests, files of tests and benchmarks that a text names in itself or in its marks."""
    found = [name[0].strip("`") for name in _NAMED.finditer(_MARK.sub("", text))]
    for mark in _MARK.finditer(text):
        if mark[1] == "shown":
            path = ""
            for name in mark[2].split(", "):
                found.append(f"{path}::{name}" if path and name.startswith("test_") else name)
                path = found[-1].partition("::")[0]
    return [re.sub(r"^python -m benchmarks\.(\w+)$", r"benchmarks/\1.py", name) for name in found]


def limit(block: Block) -> str:
    """The one of LIMITS that the block is in or begins with, or the empty text."""
    return next((name for name in LIMITS if block.section == name or block.text.startswith(name)), "")


def reason_of(text: str) -> str:
    return next((mark[2] for mark in _MARK.finditer(text) if mark[1] == "no promise"), "")


def misplaced(text: str) -> list[int]:
    """The lines that begin with a mark, which ends the paragraph that it is meant for."""
    return [number for number, line in enumerate(text.splitlines(), start=1) if line.lstrip().startswith("<!-- shown")]


def read(page: str) -> list[Sentence]:
    return list(sentences(page, (ROOT / page).read_text(encoding="utf-8")))


def main() -> None:
    """Prints each promise and what shows it, and at the end those that nothing shows."""
    promises = [sentence for page in sys.argv[1:] or PAGES for sentence in read(page) if sentence.promises]
    for sentence in sorted(promises, key=lambda sentence: not sentence.shown):
        print(f"{sentence.page}:{sentence.line}: {sentence.text}\n    -> {', '.join(sentence.shown) or 'NOTHING'}")
    bare = sum(not sentence.shown for sentence in promises)
    print(f"{len(promises)} promises, {bare} that nothing shows")


if __name__ == "__main__":
    main()
