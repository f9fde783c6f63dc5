"""Jobs for the program `runner.py`, each a state of a project with tests to be run on it, and what became of each.

`run_here` runs them in a copy of the project's files, in a process that sees the standard library and `packages`, as a
sandbox without an image does. It is not isolated otherwise: it is for code that this machine's user has installed.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

from slime_swe import syntax
from slime_swe.errors import UserError

PROGRAM = Path(__file__).with_name("runner.py")
# Modules that pytest needs from Python 3.11 on: what a sandbox without an image shows beside the standard library.
PYTEST = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
SECONDS = 20.0  # of CPU for one job, unless it says more
GRACE = 30.0  # seconds of the clock beyond a job's own, to end and to write what was found
_START = 60.0
_END = 10.0
_BUSY = 10.0  # times as long as the CPU's limit, since the machine may do other work
_SHOWN_CHARACTERS = 2000


class Job(msgspec.Struct):
    """A state of a project with tests to be run on it. files: path → text of the state, None for a file that it lacks.
    tests: what pytest is given. seconds: of CPU, and wall: of the clock, 0 for ten times as many; no test begins when
    they are over. waiting: seconds in which nothing is computed, in all; 0 for any. test_seconds: of the clock for each
    phase of one test, which fails where it takes longer; 0 for any. texts: whether the failures' texts are wanted.
    compile: keep the compiled modules of this state for later ones. traced: sources whose executed lines are wanted."""

    files: Mapping[str, str | None]
    tests: Sequence[str]
    seconds: float = SECONDS
    wall: float = 0.0
    waiting: float = 0.0
    test_seconds: float = 0.0
    texts: bool = False
    compile: bool = False
    traced: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.wall = self.wall or _BUSY * self.seconds
        self.waiting = self.waiting or self.wall + self.test_seconds + GRACE


class Tested(NamedTuple):
    passed: bool
    seconds: float
    text: str  # the end of its failure


class Run(msgspec.Struct):
    """The results of a job. tests: by id, as `pytest -rA` prints it, in the order of the run; those that were skipped,
    or were expected to fail, are left out. errors: the files that pytest could not collect. lines: traced path → line →
    the tests, as positions in `tests`, that executed it, -1 for what ran outside of tests. timed_out: some tests have
    not run, since the time was over, the process died, or it waited for too long. seconds: of the clock. log: the end
    of what was printed, where no test ran or some did not."""

    tests: dict[str, Tested] = {}
    errors: list[str] = []
    lines: dict[str, dict[int, list[int]]] = {}
    timed_out: bool = True
    seconds: float = 0.0
    log: str = ""

    @property
    def passed(self) -> dict[str, bool]:
        return {name: tested.passed for name, tested in self.tests.items()}


def encoded(jobs: Sequence[Job], arguments: Sequence[str]) -> bytes:
    """Encode the program's first file. arguments: of every call of pytest."""
    return msgspec.json.encode({"jobs": jobs, "arguments": list(arguments), "grace": GRACE})


def longest(jobs: Sequence[Job]) -> float:
    """Return the seconds of the clock that the jobs take at most, with the program's start."""
    return _START + sum(job.wall + job.test_seconds + 2 * GRACE for job in jobs)


def decoded(results: bytes, jobs: Sequence[Job], printed: str) -> list[Run]:
    """Return a run for each job. printed: by the program. Raises `UserError` where none of them could be run."""
    runs = []
    for line in results.splitlines():
        try:
            runs.append(msgspec.json.decode(line, type=Run))
        except msgspec.DecodeError:
            continue
    if not runs and jobs:
        raise UserError(f"the tests could not be run: {printed[-_SHOWN_CHARACTERS:]}")
    return runs + [Run() for _ in range(len(jobs) - len(runs))]


def located(module: str) -> Path:
    """Find the folder of a package, or the file of a module. Raises `UserError` where it is not installed."""
    spec = find_spec(module)
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    if not places or places[0] is None:
        raise UserError(f"{module} is not installed, and the tests are run with it: pip install 'slime-swe[factory]'")
    return Path(places[0])


def run_here(
    files: Mapping[str, str], jobs: Sequence[Job], arguments: Sequence[str] = (), packages: Sequence[str] = PYTEST
) -> list[Run]:
    """Run the jobs in a copy of the files. packages: modules that can be imported beside the standard library; those
    that this Python does not have are left out. Raises `UserError` where pytest or coverage is not installed, or where
    none of the jobs could be run."""
    modules = {"pytest", *(name for name in packages if find_spec(name) is not None)}
    if any(job.traced for job in jobs):
        modules.add("coverage")
    with tempfile.TemporaryDirectory(prefix="tests-") as scratch:
        root, site = Path(scratch, "project"), Path(scratch, "site")
        root.mkdir()
        for path, text in files.items():
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8", newline="")
        site.mkdir()
        for found in map(located, modules):
            (site / found.name).symlink_to(found)
        shutil.copy(PROGRAM, site)  # not a link, which Python would follow to find what is beside it
        (site / "jobs.json").write_bytes(encoded(jobs, arguments))
        printed = _run(root, site, longest(jobs))
        results = site / "results.jsonl"
        return decoded(results.read_bytes() if results.exists() else b"", jobs, printed)


def outcomes(
    files: Mapping[str, str], jobs: Sequence[Job], arguments: Sequence[str] = (), packages: Sequence[str] = PYTEST
) -> list[dict[str, bool]]:
    """Map each job's tests to whether they passed; a test that did not run is False. Raises as `run_here` does."""
    tests = sorted({test.partition("::")[0] for job in jobs for test in job.tests} & files.keys())
    compiled = Job({}, [*tests, "--collect-only"], compile=True)
    _, *runs = run_here(files, [compiled, *jobs], arguments, packages)
    return [{test: run.passed.get(test, False) for test in job.tests} for job, run in zip(jobs, runs, strict=True)]


def _run(root: Path, site: Path, seconds: float) -> str:
    """Run the program and return what it printed. It is ended with all its processes where it takes longer."""
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(root.parent), "LANG": "C.UTF-8"}
    environment |= {"PYTHONPATH": str(site), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            # -S: without the packages of this Python
            [sys.executable, "-S", str(site / PROGRAM.name), str(site / "jobs.json"), str(site / "results.jsonl")],
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(process)
        output.seek(0)
        return output.read().decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # it ends the tests, whose group is another
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# The tests of a project that run each part of its code: one run under coverage.py, a context for each test.
#
# `measure` makes the map outside of any sandbox (`runs.run_here`); a sandbox runs the job that `tracing` gives.
#
# Not covered: what a test runs in other processes, and what a fixture runs that several tests share, which counts for
# the first of them. A body on the line of its `def` is told from the `def` nowhere, and has no tests.
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
    """The tests of a project, and the code that each runs. tests: id, as `pytest -rA` prints it, → whether it passed,
    in the order of the run; those skipped, and those expected to fail, are left out. seconds: of each. lines: path →
    line → the tests that executed it. at_import: path → lines that ran outside of tests, as a module's own do."""

    tests: Mapping[str, bool]
    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[int, frozenset[str]]]
    at_import: Mapping[str, frozenset[int]]

    def tests_of(self, path: str, lines: Iterable[int]) -> tuple[str, ...]:
        """Return the tests that executed one of these lines, passed or not, in the order of the run."""
        known = self.lines.get(path, {})
        found = frozenset().union(*(known.get(line, frozenset()) for line in lines))
        return tuple(name for name in self.tests if name in found)

    def runs_at_import(self, function: Function) -> bool:
        """Say whether some of the body ran outside of every test: then what is wrong there breaks them all."""
        ran = self.at_import.get(function.path, frozenset())
        return any(line in ran for line in function.lines)


def tests_by_function(files: Mapping[str, str], coverage: CoverageMap) -> dict[Function, tuple[str, ...]]:
    """Map each function and class of these sources to the tests that pass and run some of its body, in their order; to
    all that pass where it runs when its module is imported. Sources that are no Python have none."""
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
    """Yield the functions and classes in the order of the source, those in others too. There are none where it can't be
    parsed; one with nothing but a docstring below the line of `def` is left out."""
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
    """Make the job whose run `as_map` takes. files: of the project. The others: as of `measure`."""
    traced = [path for path in files if path.endswith(".py")]
    return Job({}, list(arguments), budget, wall=budget, test_seconds=seconds, traced=traced)


def as_map(run: Run) -> CoverageMap:
    """Make the map of a run. Raises `UserError` where no test ran, or the run died."""
    if not run.tests or not run.lines:
        why = "the tests ended without results" if run.timed_out else "pytest ran no test"
        raise UserError(f"{why}: {run.log.strip() or 'it printed nothing'}")
    names, shared = list(run.tests), dict[tuple[int, ...], frozenset[str]]()

    def named(numbers: list[int]) -> frozenset[str]:
        """Return the tests of these numbers. Lines that the same tests run share one set."""
        key = tuple(numbers)
        if key not in shared:
            shared[key] = frozenset(names[number] for number in key if 0 <= number < len(names))
        return shared[key]

    lines = {path: {line: named(who) for line, who in by_line.items()} for path, by_line in run.lines.items()}
    early = {path: frozenset(n for n, who in by_line.items() if -1 in who) for path, by_line in run.lines.items()}
    seconds = {name: tested.seconds for name, tested in run.tests.items()}
    return CoverageMap(run.passed, seconds, lines, early)


# The tests of a package are run by pytest without options of the project's own: these may name plug-ins that a
# sandbox does not have.
def found_from(root: str) -> tuple[str, ...]:
    """Return pytest's options where the code lies below a folder such as `src`."""
    return ("-o", f"pythonpath={root}") if root else ()


def functions_of(tests: Iterable[str]) -> list[str]:
    """Return each test function once, for all its cases."""
    return list(dict.fromkeys(test.partition("[")[0] for test in tests))


def command_of(tests: Iterable[str], root: str = "") -> str:
    """Write the command that runs the functions of these tests, all cases of each."""
    options = ["-rA", "-p", "no:cacheprovider", "--rootdir=.", "-o", "addopts=", *found_from(root)]
    return shlex.join(["python3", "-m", "pytest", *options, *functions_of(tests)])
