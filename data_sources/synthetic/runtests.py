"""Run the tests of this repository: `python runtests.py`. Plain functions, plain asserts, no dependencies."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator

LONGEST = 40


def shorten(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def describe(error: Exception, source_lines: list[str]) -> str:
    """Why a test failed: both sides of a failed `assert a == b`, else the error's name."""
    if not isinstance(error, AssertionError):
        return type(error).__name__
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None, error
    try:
        comparison = ast.parse(source_lines[trace.tb_lineno - 1].strip()).body[0].test  # type: ignore[attr-defined]
        sides = [comparison.left, comparison.comparators[0]]
        scope = trace.tb_frame.f_globals
        got, wanted = (repr(eval(ast.unparse(side), scope, trace.tb_frame.f_locals)) for side in sides)
    except (AttributeError, IndexError, SyntaxError):
        return "AssertionError"
    return f"assert {shorten(got)} == {shorten(wanted)}"


def run_file(path: str) -> Iterator[tuple[str, str | None]]:
    """Run one test file; yield (test id, None or why it failed)."""
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    with open(path) as file:
        source_lines = file.read().splitlines()
    spec.loader.exec_module(module)
    for name, test in list(vars(module).items()):
        if name.startswith("test_") and callable(test):
            try:
                test()
            except Exception as error:
                yield f"{path}::{name}", describe(error, source_lines)
            else:
                yield f"{path}::{name}", None


def report(outcomes: Iterable[tuple[str, str | None]]) -> int:
    """Print a line per test and the summary; return the exit code."""
    counts = {"passed": 0, "failed": 0}
    for test, failure in outcomes:
        if failure is None:
            counts["passed"] += 1
            print(f"PASSED {test}")
        else:
            counts["failed"] += 1
            print(f"FAILED {test} - {failure}")
    print(", ".join(f"{count} {name}" for name, count in counts.items() if count))
    return int(counts["failed"] > 0)


def outcomes(root: str) -> Iterator[tuple[str, str | None]]:
    """Run every test file under `tests/`; one that can't be imported is one failed test."""
    for name in sorted(os.listdir(os.path.join(root, "tests"))):
        if name.startswith("test_") and name.endswith(".py"):
            path = f"tests/{name}"
            try:
                yield from run_file(path)
            except Exception as error:
                yield f"{path}::import", type(error).__name__


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.path[:0] = [os.path.join(os.getcwd(), "src"), os.getcwd()]
    sys.exit(report(outcomes(os.getcwd())))
