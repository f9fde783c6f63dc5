"""Which tests of a project run which of its code: one run of the tests under coverage.py, a context for each test.

`measure` makes it outside of any sandbox (`runs.run_here`); a sandbox runs the job that `tracing` gives.

Not covered: what a test runs in other processes, and what a fixture runs that several tests share, which counts for the
first of them. A body on the line of its `def` is told from the `def` nowhere, and has no tests.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slime_swe import syntax
from slime_swe.data_sources.factory.runs import PYTEST, Job, Run, run_here
from slime_swe.errors import UserError


class Function(NamedTuple):
    """A function or a class: its file, its name in it (`Class.method`, `outer.inner`), and the first and last lines of
    its body, without the docstring; of a class those of each of its methods, since the rest runs at import."""

    path: str
    name: str
    bodies: tuple[tuple[int, int], ...]

    @property
    def lines(self) -> Iterator[int]:
        for first, last in self.bodies:
            yield from range(first, last + 1)


@dataclass(frozen=True)
class CoverageMap:
    """tests: id, as `pytest -rA` prints it, → whether it passed, in the order of the run; those skipped, and those
    expected to fail, are left out. seconds: of each. lines: path → line → the tests that executed it. at_import:
    path → lines that ran outside of tests, as a module's own do."""

    tests: Mapping[str, bool]
    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[int, frozenset[str]]]
    at_import: Mapping[str, frozenset[int]]

    def tests_of(self, path: str, lines: Iterable[int]) -> tuple[str, ...]:
        """The tests that executed one of these lines, passed or not, in the order of the run."""
        known = self.lines.get(path, {})
        found = frozenset().union(*(known.get(line, frozenset()) for line in lines))
        return tuple(name for name in self.tests if name in found)

    def runs_at_import(self, function: Function) -> bool:
        """Whether some of the body ran outside of every test: then what is wrong there breaks them all."""
        ran = self.at_import.get(function.path, frozenset())
        return any(line in ran for line in function.lines)


def tests_by_function(files: Mapping[str, str], coverage: CoverageMap) -> dict[Function, tuple[str, ...]]:
    """Each function and class of these sources with the tests that pass and run some of its body, in their order; all
    that pass where it runs when its module is imported. Sources that are no Python have none."""
    passing = {name for name, passed in coverage.tests.items() if passed}
    return {
        function: tuple(name for name in _running(function, coverage) if name in passing)
        for path, source in sorted(files.items())
        if path.endswith(".py")
        for function in functions_in(path, source)
    }


def _running(function: Function, coverage: CoverageMap) -> Iterable[str]:
    if coverage.runs_at_import(function):
        return coverage.tests
    return coverage.tests_of(function.path, function.lines)


def functions_in(path: str, source: str) -> Iterator[Function]:
    """In the order of the source, those in others too. None where it can't be parsed, or where nothing but a docstring
    is below the line of `def`."""
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    yield from _below(path, tree, "")


def _below(path: str, node: ast.AST, prefix: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _below(path, child, prefix)
            continue
        name = f"{prefix}{child.name}"
        if bodies := tuple(_bodies(child)):
            yield Function(path, name, bodies)
        yield from _below(path, child, f"{name}.")


def _bodies(node: ast.AST) -> Iterator[tuple[int, int]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        if body and body[0].lineno > node.lineno:
            yield body[0].lineno, body[-1].end_lineno or body[-1].lineno
    elif isinstance(node, ast.ClassDef):
        for statement in node.body:
            yield from _bodies(statement)


def measure(
    files: Mapping[str, str],
    arguments: Sequence[str] = (),
    *,
    seconds: float = 10.0,
    budget: float = 300.0,
    packages: Sequence[str] = PYTEST,
) -> CoverageMap:
    """Run the project's tests once. arguments: of pytest, such as the test files. seconds: of one test, which fails
    where it takes longer. budget: seconds of all tests; those that have not begun by then are left out. packages: as
    of `run_here`. Raises `UserError` where coverage is not installed, and as `as_map` does."""
    (run,) = run_here(files, [tracing(files, arguments, seconds, budget)], packages=packages)
    return as_map(run)


def tracing(files: Mapping[str, str], arguments: Sequence[str], seconds: float, budget: float) -> Job:
    """The job whose run `as_map` takes. files: of the project. The others: as of `measure`."""
    traced = [path for path in files if path.endswith(".py")]
    return Job({}, list(arguments), budget, wall=budget, test_seconds=seconds, traced=traced)


def as_map(run: Run) -> CoverageMap:
    """Raises `UserError` where no test ran, or the run died."""
    if not run.tests or not run.lines:
        why = "the tests ended without results" if run.timed_out else "pytest ran no test"
        raise UserError(f"{why}: {run.log.strip() or 'it printed nothing'}")
    names, shared = list(run.tests), dict[tuple[int, ...], frozenset[str]]()

    def named(numbers: list[int]) -> frozenset[str]:
        """Lines that the same tests run share one set."""
        key = tuple(numbers)
        if key not in shared:
            shared[key] = frozenset(names[number] for number in key if 0 <= number < len(names))
        return shared[key]

    lines = {path: {line: named(who) for line, who in by_line.items()} for path, by_line in run.lines.items()}
    early = {path: frozenset(n for n, who in by_line.items() if -1 in who) for path, by_line in run.lines.items()}
    seconds = {name: tested.seconds for name, tested in run.tests.items()}
    return CoverageMap(run.passed, seconds, lines, early)
