"""Judge by values: tests that are calls with literal answers are decided outside of the sandbox.

The sandbox is asked what each call returns, and compares nothing that counts. So there is no log to forge, and nothing
of the sandbox's to tamper with, that is worth more than the right answers; and those of the held-out calls have never
been where an agent or its code could read them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from data_sources.embedded.tasks import RUNNER_PATH, TEST_COMMAND, runner_source
from data_sources.task import TestOracle

CALLS_PATH = ".grader/calls.txt"  # where `call_runner.py` looks
MIN_HELD_OUT = 0.1
_VALUE = re.compile(r"^VALUE (\d+) (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """`function(arguments)` must be `expected`; all three as source text."""

    function: str
    arguments: str
    expected: str


@dataclass(frozen=True)
class CallFile:
    """A test file: what it imports, and the calls of each of its tests."""

    module: str
    names: tuple[str, ...]
    tests: Mapping[str, tuple[Call, ...]]

    def payload(self, *, answers: bool) -> str:
        """As a Python literal, for `call_runner.py`."""
        tests = "".join(f"[{''.join(_payload(call, answers) for call in calls)}]," for calls in self.tests.values())
        return f"({self.module!r}, {self.names!r}, [{tests}]),"


@dataclass(frozen=True)
class Calls:
    """The tests of a task that is judged by values, by test id, and the calls that no test shows."""

    files: tuple[CallFile, ...]
    held_out: tuple[CallFile, ...]

    def grading_files(self) -> dict[str, str]:
        """What is laid over the graded files: the task's own command then runs the calls."""
        payload = "".join(file.payload(answers=True) for file in self.files)
        held_out = "".join(file.payload(answers=False) for file in self.held_out)
        return {RUNNER_PATH: call_runner_source(), CALLS_PATH: f"([{payload}], [{held_out}])"}

    def read(self, output: str) -> tuple[dict[str, bool], float]:
        """Each test → whether all its calls gave the right answer; and the share of held-out calls that did."""
        values: dict[int, list[str]] = {}
        for number, text in _VALUE.findall(output):
            values.setdefault(int(number), []).append(text)
        verdicts = (_is_right(call, values.get(number, [])) for number, call in enumerate(self._calls()))
        tests = {
            name: all([next(verdicts) for _ in calls]) for file in self.files for name, calls in file.tests.items()
        }
        held_out = list(verdicts)
        return tests, sum(held_out) / len(held_out) if held_out else 1.0

    def _calls(self) -> Iterator[Call]:
        """In the order that `call_runner.py` numbers them."""
        for file in (*self.files, *self.held_out):
            for calls in file.tests.values():
                yield from calls


def calls_of(oracle: TestOracle, files: Mapping[str, str]) -> Calls | None:
    """The calls of an oracle over a workspace's files; None where its tests hold more than calls with known answers."""
    if oracle.command != TEST_COMMAND or files.get(RUNNER_PATH) != runner_source():
        return None
    paths = sorted(path for path in files if re.fullmatch(r"tests/test_[^/]*\.py", path))
    parsed = [read_calls(files[path], f"{path}::") for path in paths]
    visible = [file for file in parsed if file is not None]
    known = {name for file in visible for name in file.tests}
    if len(visible) < len(parsed) or not known.issuperset({*oracle.fail_to_pass, *oracle.pass_to_pass}):
        return None
    held_out = read_calls(oracle.held_out_tests, "") if oracle.held_out_tests else None
    return Calls(tuple(visible), (held_out,) if held_out else ())


def read_calls(source: str, prefix: str) -> CallFile | None:
    """`from MODULE import NAMES`, then test functions of lines `assert NAME(literals) == literal`; None for any other
    file. Test ids are the functions' names after `prefix`."""
    try:
        first, *functions = ast.parse(source).body
        assert isinstance(first, ast.ImportFrom) and first.module and not first.level
        names = tuple(
            alias.name for alias in first.names if alias.asname is None and not alias.name.startswith("test_")
        )
        assert len(names) == len(first.names) and "*" not in names
        tests = {prefix + _test_name(function): tuple(_calls(function, names)) for function in functions}
        assert len(tests) == len(functions)
    except (AssertionError, ValueError, SyntaxError):
        return None
    return CallFile(first.module, names, tests)


@cache
def call_runner_source() -> str:
    return (resources.files("rewards") / "call_runner.py").read_text(encoding="utf-8")


def _payload(call: Call, answer: bool) -> str:
    return f"({call.function!r}, ({call.arguments}), {call.expected if answer else None}),"


def _test_name(node: ast.stmt) -> str:
    assert isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not node.decorator_list
    assert not ast.unparse(node.args)
    return node.name


def _calls(function: ast.stmt, names: Sequence[str]) -> Iterator[Call]:
    assert isinstance(function, ast.FunctionDef)
    for line in function.body:
        assert isinstance(line, ast.Assert) and line.msg is None and isinstance(line.test, ast.Compare)
        call, operators, answers = line.test.left, line.test.ops, line.test.comparators
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in names
        assert not call.keywords and len(operators) == 1 and isinstance(operators[0], ast.Eq)
        for node in (*call.args, *answers):
            ast.literal_eval(node)
        arguments = "".join(f"{ast.unparse(argument)}, " for argument in call.args)
        yield Call(call.func.id, arguments, ast.unparse(answers[0]))


def _is_right(call: Call, texts: Sequence[str]) -> bool:
    """A call that is told of twice is right if it is both times."""
    return bool(texts) and all(_equals(text, call.expected) for text in texts)


def _equals(text: str, expected: str) -> bool:
    try:
        return bool(ast.literal_eval(text) == ast.literal_eval(expected))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
