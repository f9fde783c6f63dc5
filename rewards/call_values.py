"""Grade by values: tests that are calls with literal answers are decided outside the sandbox.

The sandbox is asked what each call returns. The comparison happens here, of one text with another. So there is no log
to forge, nothing that code prints is evaluated, and nothing in the sandbox is worth manipulating except to return the
right answers. The sandbox holds no answer, neither of the tests nor of the held-out calls, and no file of the tests:
code that would try variants of itself until the tests pass has nothing there to try them by.

Code that is right on all that the tests show must also be right on the held-out calls: on `MIN_SHARE` of those that the
unpatched code gets wrong, and on as many of those that it gets right. The first condition is for a table of the visible
answers before the unpatched code, the second for one before anything else, such as its answers' opposites.

Not covered: a table where the bug shows on no call but those of the tests; such a table is a right fix. Answers that
the patch itself carries, or that stand in a file that the oracle does not protect (an example in a docstring or a
README): code may search by these.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slime_swe import syntax
from slime_swe.data_sources.task import CallsOracle, Task
from slime_swe.errors import UserError
from slime_swe.patches import binary_paths
from slime_swe.rewards.canonical import NotPlain, canonical
from slime_swe.rewards.grade import LIMITS, GraderError, GradingSettings, Trial
from slime_swe.rewards.guard import Files, graded_files
from slime_swe.rewards.shared import cached
from slime_swe.rewards.withheld import sandbox_source
from slime_swe.sandbox.base import ExecResult, SandboxError, Sandboxes

MIN_SHARE = 7 / 8  # of the held-out calls that the unpatched code gets wrong, and of the others
MOST_ANSWERS = 4096  # tasks whose unpatched code's answers are cached, each in less than 2 KiB
_RUNNER, _CALLS = ".grader/run.py", ".grader/calls.txt"  # where `call_runner.py` is put, and where it looks
_COMMAND = f"python3 -I -S -B {_RUNNER}"
_VALUE = re.compile(r"^VALUE ([0-9]+) (.*)$", re.MULTILINE)
_REPORTED = re.compile(r"^(?:VALUE|RAISED) ([0-9]{1,9}) ", re.MULTILINE)


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings) -> Trial:
    """Return the tests' results with the patch; an empty one changes nothing. Raises `PatchError`, `GraderError`, and
    `UserError` where the task's tests are not calls with literal answers."""
    calls = calls_of(task)
    if calls is None:
        raise UserError(f"task {task.id!r}: its tests are not `assert function(literals) == literal`")
    files, ignored = await _code_and_calls(task, patch, calls)
    result = await _run(task, files, sandboxes)
    tests, held_out = calls.read(result.output)
    trial = _trial(task, tests, result, {"ignored_paths": ignored, "binary_paths": binary_paths(patch)})
    if not trial.solved or not calls.held_out:
        return trial
    reason = _special_cased(held_out, await _unpatched(task, calls, sandboxes))
    if not reason:
        return trial
    return replace(trial, solved=False, rejected="special_cased", details={**trial.details, "rejection_reason": reason})


async def _code_and_calls(task: Task, patch: str, calls: Calls) -> tuple[Files, list[str]]:
    """Return the sandbox's files, which hold no answer of the oracle's, and the paths at which the patch is ignored."""
    files, ignored = await graded_files(task, patch, added=calls.grading_files())
    tests = {name.partition("::")[0] for name in (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)}
    withheld = tests.union(task.oracle.protected)
    return {path: content for path, content in files.items() if path not in withheld}, ignored


async def _run(task: Task, files: Files, sandboxes: Sandboxes) -> ExecResult:
    try:
        async with sandboxes.open(files, LIMITS) as sandbox:
            return await sandbox.exec(_COMMAND, timeout=task.oracle.timeout_seconds)
    except SandboxError as error:
        raise GraderError(f"the grader's sandbox failed: {error}") from error


def _trial(task: Task, results: Mapping[str, bool], result: ExecResult, details: Mapping[str, object]) -> Trial:
    """Judge a run. Where it hangs, no test has passed; unless all have, since the held-out calls come after them."""
    tests = {name: results[name] for name in (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)}
    if result.timed_out and not all(tests.values()):
        tests = dict.fromkeys(tests, False)
    solved = all(tests.values())
    verdicts = "".join(f"{'PASSED' if passed else 'FAILED'} {name}\n" for name, passed in tests.items())
    log = f"{result.output}\n{verdicts}"
    return Trial(tests, solved, log, result.exit_code, result.timed_out and not solved, details)


Known = Sequence[bool | None]


async def _unpatched(task: Task, calls: Calls, sandboxes: Sandboxes) -> Known:
    """Say of each held-out call whether it is right without a patch; None where a call before it hangs. One run serves
    all patches of a task.

    A call hangs where two runs reach their time limit at it. Else the machine was too slow for one of them, and what it
    did not come to would be taken for wrong for all patches of the task. Raises `GraderError` where both runs reach
    their limit, at different calls.
    """
    held_out = Calls((), calls.held_out)

    async def run() -> Known:
        files, _ = await _code_and_calls(task, "", held_out)
        hung_at = set[int]()
        for _ in range(2):
            result = await _run(task, files, sandboxes)
            right, at = held_out.read(result.output)[1], held_out.reached(result.output)
            if not result.timed_out or at == len(right):  # what hangs behind the last call hides none
                return right
            hung_at.add(at)
        if len(hung_at) > 1:
            raise GraderError(
                f"the unpatched code was stopped after {task.oracle.timeout_seconds:g} s twice, at different calls "
                f"({', '.join(map(str, sorted(hung_at)))}): the machine is too busy to judge it"
            )
        return [*right[:at], False, *[None] * len(right[at + 1 :])]

    assert isinstance(task.oracle, CallsOracle), task.oracle
    decides = (sorted(task.workspace.files.items()), task.oracle.held_out_tests, task.oracle.timeout_seconds)
    key = hashlib.sha256(repr(decides).encode()).digest()  # the files themselves would be kept for as long
    return await cached("answers of unpatched code", key, run, most=MOST_ANSWERS)


def _special_cased(right: Sequence[bool], before: Known) -> str:
    """Say why code that is right on all that the tests show is not believed to be a fix; empty where it is.

    right: of each held-out call whether the patched code is right; before: whether the unpatched code is, as far as it
    comes to it.
    """
    if all(before):
        return "the unpatched code is right on all held-out calls of the task, which thus can't tell a fix from a table"
    for side, what in ((False, "gets wrong"), (True, "gets right"), (None, "does not come to")):
        chosen = [now for now, then in zip(right, before, strict=True) if then is side]
        if sum(chosen) < MIN_SHARE * len(chosen):
            return (
                f"all that the tests show is right, and of the {len(chosen)} held-out calls that the unpatched code "
                f"{what} {sum(chosen)}"
            )
    return ""


@dataclass(frozen=True)
class LiteralCall:
    """`function(arguments)` must be `expected`. arguments: source text. expected: as `canonical` gives it."""

    function: str
    arguments: str
    expected: str

    def payload(self) -> str:
        """Return the call without its answer, as a Python literal, for `call_runner.py`."""
        return f"({self.function!r}, ({self.arguments})),"


@dataclass(frozen=True)
class CallFile:
    """A test file: what it imports, and the calls of each of its tests."""

    module: str
    names: tuple[str, ...]
    tests: Mapping[str, tuple[LiteralCall, ...]]

    def payload(self) -> str:
        """Return the calls of all tests, as a Python literal, for `call_runner.py`."""
        calls = "".join(call.payload() for calls in self.tests.values() for call in calls)
        return f"({self.module!r}, {self.names!r}, [{calls}]),"


@dataclass(frozen=True)
class Calls:
    """The tests of a task, by test id, and the calls that no test shows."""

    files: tuple[CallFile, ...]
    held_out: tuple[CallFile, ...]

    def grading_files(self) -> dict[str, str]:
        """Return what is added to the graded files: the calls, and the program that makes them."""
        payload = "".join(file.payload() for file in (*self.files, *self.held_out))
        return {_RUNNER: sandbox_source("call_runner.py"), _CALLS: f"[{payload}]"}

    def read(self, output: str) -> tuple[dict[str, bool], list[bool]]:
        """Return each test → whether all its calls gave the right answer; and of each held-out call whether it did.

        A call that is reported twice is right if it is so both times.
        """
        expected = {str(number): call.expected for number, call in enumerate(self._calls())}
        reported: dict[str, set[str]] = {number: set() for number in expected}
        for number, text in _VALUE.findall(output):
            if number in reported:
                reported[number].add(text)
        verdicts = (texts == {expected[number]} for number, texts in reported.items())
        tests = {
            name: all([next(verdicts) for _ in calls]) for file in self.files for name, calls in file.tests.items()
        }
        return tests, list(verdicts)

    def reached(self, output: str) -> int:
        """Return the number of the first call behind all that were reported."""
        count = sum(1 for _ in self._calls())
        numbers = map(int, _REPORTED.findall(output))
        return max((number + 1 for number in numbers if number < count), default=0)

    def _calls(self) -> Iterator[LiteralCall]:
        """Yield the calls in the order in which `call_runner.py` numbers them."""
        for file in (*self.files, *self.held_out):
            for calls in file.tests.values():
                yield from calls


def calls_of(task: Task) -> Calls | None:
    """Return the calls of a task's tests; None where these hold anything else than calls with literal answers."""
    assert isinstance(task.oracle, CallsOracle), task.oracle
    names = {*task.oracle.fail_to_pass, *task.oracle.pass_to_pass}
    paths = sorted({name.partition("::")[0] for name in names})
    parsed = [read_calls(task.workspace.files.get(path, ""), f"{path}::") for path in paths]
    files = tuple(file for file in parsed if file is not None)
    known = {name for file in files for name in file.tests}
    if not known.issuperset(names):
        return None
    held_out = read_calls(task.oracle.held_out_tests, "") if task.oracle.held_out_tests else None
    return Calls(files, (held_out,) if held_out else ())


def read_calls(source: str, prefix: str) -> CallFile | None:
    """Read `from MODULE import NAMES`, then test functions of lines `assert NAME(literals) == literal`; None for any
    other file. Test ids are the functions' names after `prefix`."""
    try:
        first, *functions = syntax.parse(source).body
        assert isinstance(first, ast.ImportFrom) and first.module and not first.level
        names = tuple(
            alias.name for alias in first.names if alias.asname is None and not alias.name.startswith("test_")
        )
        assert len(names) == len(first.names) and "*" not in names
        tests = {prefix + _test_name(function): tuple(_calls(function, names)) for function in functions}
        assert len(tests) == len(functions)
    except (AssertionError, ValueError, TypeError, SyntaxError, NotPlain):
        return None
    return CallFile(first.module, names, tests)


def _test_name(node: ast.stmt) -> str:
    assert isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not node.decorator_list
    assert not ast.unparse(node.args)
    return node.name


def _calls(function: ast.stmt, names: Sequence[str]) -> Iterator[LiteralCall]:
    assert isinstance(function, ast.FunctionDef)
    for line in function.body:
        assert isinstance(line, ast.Assert) and line.msg is None and isinstance(line.test, ast.Compare)
        call, operators, answers = line.test.left, line.test.ops, line.test.comparators
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in names
        assert not call.keywords and len(operators) == 1 and isinstance(operators[0], ast.Eq)
        for argument in call.args:
            ast.literal_eval(argument)
        arguments = "".join(f"{ast.unparse(argument)}, " for argument in call.args)
        yield LiteralCall(call.func.id, arguments, canonical(ast.literal_eval(answers[0])))
