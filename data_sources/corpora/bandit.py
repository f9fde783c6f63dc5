"""The examples of Bandit, a scanner of Python: code with insecure calls, and beside each the same code without them.

An example has many findings. Each makes one pair: before, the example with this finding alone; after, without any. The
statements of all others are taken out. Bandit itself says what it finds in both versions, and a pair that has anything
else is left out. Upstream: PyCQA/bandit, `examples` in its source distribution.
"""

from __future__ import annotations

import ast
import io
import logging
import tarfile
import tempfile
import tokenize
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from slime_swe import syntax
from slime_swe.data_sources.corpora.corpus import Corpus, NotFetched, Split
from slime_swe.data_sources.task import Task
from slime_swe.data_sources.vulnerability import Pair, tasks_of
from slime_swe.errors import UserError

CORPUS = Corpus(
    name="bandit",
    title="Bandit's examples",
    licence="Apache-2.0",
    home="https://github.com/PyCQA/bandit",
    counted="nowhere: findings are counted, which each version of Bandit has its own of",
    needs="bandit to find what is insecure",
    splits={"all": Split(None, "Python")},
    brought_by="pip download --no-deps --no-binary :all: bandit",
    in_images=False,
)
_PATH = "example.py"


@dataclass(frozen=True, order=True)
class Finding:
    """A finding of Bandit. first, last: its lines, counted from 1."""

    first: int
    last: int
    test: str
    cwe: str


def load(split: str, folder: Path | None = None) -> list[Task]:
    """Return the tasks. Raises `UserError` where Bandit is missing; `NotFetched` where its examples are not in the
    folder."""
    CORPUS.split(split)
    sources = _examples(CORPUS.folder(folder))
    if not sources:
        raise NotFetched(CORPUS, split, folder, "it holds no bandit-*.tar.gz and no examples/*.py")
    scanner = _Scanner()
    trees = {name: syntax.parse(text) for name, text in sources.items()}
    found = dict(zip(sources, scanner.findings([*sources.values()]), strict=True))
    drafts = [draft for name, tree in trees.items() for draft in _drafts(name, tree, sources[name], found[name])]
    before, after = (scanner.findings([getattr(pair, half) for pair, _ in drafts]) for half in ("before", "after"))
    pairs = [
        pair
        for (pair, finding), shown, left in zip(drafts, before, after, strict=True)
        if not left and [one.test for one in shown] == [finding.test]
    ]
    return tasks_of(pairs, CORPUS.name, split)


def _examples(folder: Path) -> dict[str, str]:
    """Read the code of each example that is Python 3, by its name without the suffix."""
    contents = {path.stem: path.read_bytes() for path in sorted(folder.glob("**/examples/*.py"))}
    for archive in sorted(folder.glob("bandit-*.tar.gz")):
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    if member.name.endswith(".py") and "/examples/" in member.name:
                        file = tar.extractfile(member)
                        contents[Path(member.name).stem] = file.read() if file else b""
        except (tarfile.TarError, EOFError, OSError) as error:
            raise UserError(f"{archive} can't be read: {error}") from error
    code = {name: _code(contents[name]) for name in sorted(contents)}
    return {name: text for name, text in code.items() if text.strip()}


def _code(content: bytes) -> str:
    """Return the code without comments, which say what is insecure; empty where it is no Python."""
    try:
        lines = content.decode().splitlines()
        commented: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column].rstrip()
                commented |= {row - 1} if not lines[row - 1] else set()
        text = "\n".join(line for number, line in enumerate(lines) if number not in commented) + "\n"
        syntax.parse(text)
    except (SyntaxError, tokenize.TokenError, ValueError):
        return ""
    return text


class _Scanner:
    """Finds insecure code by Bandit. Raises `UserError` where Bandit is not installed."""

    def __init__(self) -> None:
        try:
            config, manager = import_module("bandit.core.config"), import_module("bandit.core.manager")
        except ImportError as error:
            raise UserError("what is insecure is found by bandit: pip install 'slime-swe[vulnerability]'") from error
        self._make: Callable[[], Any] = lambda: manager.BanditManager(config.BanditConfig(), "file")
        logging.getLogger("bandit").setLevel(logging.ERROR)

    def findings(self, sources: Sequence[str]) -> list[list[Finding]]:
        """Return the findings of each source, in the order of lines."""
        with tempfile.TemporaryDirectory(prefix="slime-swe-bandit-") as folder:
            paths = [Path(folder, f"{number}.py") for number in range(len(sources))]
            for path, source in zip(paths, sources, strict=True):
                path.write_text(source, encoding="utf-8")
            manager = self._make()
            manager.discover_files([*map(str, paths)])
            manager.run_tests()
        found: dict[str, list[Finding]] = {str(path): [] for path in paths}
        for issue in manager.get_issue_list():
            lines = issue.linerange
            found[issue.fname].append(Finding(min(lines), max(lines), issue.test_id, f"CWE-{issue.cwe.id}"))
        return [sorted(each) for each in found.values()]


def _drafts(name: str, tree: ast.Module, source: str, found: Sequence[Finding]) -> Iterator[tuple[Pair, Finding]]:
    """Yield a pair for each finding. Its halves may still have other findings."""
    places = [_statement(tree, finding) for finding in found]
    after = _without(tree, source, places)
    for number, (finding, place) in enumerate(zip(found, places, strict=True)):
        before = _without(tree, source, [other for other in places if other is not place])
        if place is not None and before is not None and after is not None:
            metadata = {"repo": "PyCQA/bandit", "test": finding.test, "file": f"examples/{name}.py"}
            yield Pair(f"{name}-{number}", before, after, (finding.cwe,), _PATH, metadata), finding


def _statement(tree: ast.Module, finding: Finding) -> ast.stmt | None:
    """Find the smallest statement that holds the lines of the finding."""
    holding = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= finding.first and finding.last <= (node.end_lineno or 0)
    ]
    return min(holding, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)


def _without(tree: ast.Module, source: str, gone: Collection[ast.stmt | None]) -> str | None:
    """Return the source without some statements: their lines are deleted, or hold `pass` where a block would be empty.
    None where a line would be lost that holds more."""
    lines = source.splitlines()
    removed: set[int] = set()
    for node in ast.walk(tree):
        for block in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            if not isinstance(block, list) or not any(statement in gone for statement in block):
                continue
            empty = all(statement in gone for statement in block) and not isinstance(node, ast.Module)
            for statement in (one for one in block if one in gone):
                start, end = statement.lineno - 1, statement.end_lineno or statement.lineno
                if lines[start][: statement.col_offset].strip():
                    return None
                removed |= {*range(start, end)}
                if empty and statement is block[-1]:
                    removed.discard(end - 1)
                    lines[end - 1] = " " * statement.col_offset + "pass"
    text = "\n".join(line for number, line in enumerate(lines) if number not in removed) + "\n"
    try:
        syntax.parse(text)
    except SyntaxError:
        return None
    return text
