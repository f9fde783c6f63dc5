"""Jobs for the program `runner.py`, each a state of a project with tests to be run on it, and what became of each.

`run_here` runs them in a copy of the project's files, in a process that sees the standard library and `packages`, as a
sandbox without an image does. It is not isolated otherwise: it is for code that this machine's user has installed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

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
    """files: path → text of a state, None for a file that it lacks. tests: what pytest is given. seconds: of CPU, and
    wall: of the clock, 0 for ten times as many; no test begins when they are over. waiting: seconds in which nothing is
    computed, in all; 0 for any. test_seconds: of the clock for each phase of one test, which fails where it takes
    longer; 0 for any. texts: whether the failures' texts are wanted. compile: keep the compiled modules of this state
    for later ones. traced: sources whose executed lines are wanted."""

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
    """tests: by id, as `pytest -rA` prints it, in the order of the run; those that were skipped, or were expected to
    fail, are left out. errors: the files that pytest could not collect. lines: traced path → line → the tests, as
    positions in `tests`, that executed it, -1 for what ran outside of tests. timed_out: some tests have not run, since
    the time was over, the process died, or it waited for too long. seconds: of the clock. log: the end of what was
    printed, where no test ran or some did not."""

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
    """The program's first file. arguments: of every call of pytest."""
    return msgspec.json.encode({"jobs": jobs, "arguments": list(arguments), "grace": GRACE})


def longest(jobs: Sequence[Job]) -> float:
    """Seconds of the clock that they take at most, and the program's start."""
    return _START + sum(job.wall + job.test_seconds + 2 * GRACE for job in jobs)


def decoded(results: bytes, jobs: Sequence[Job], printed: str) -> list[Run]:
    """A run for each job. printed: by the program. Raises `UserError` where none of them could be run."""
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
    """The folder of a package, or the file of a module. Raises `UserError` where it is not installed."""
    spec = find_spec(module)
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    if not places or places[0] is None:
        raise UserError(f"{module} is not installed, and the tests are run with it: pip install 'slime-swe[factory]'")
    return Path(places[0])


def run_here(
    files: Mapping[str, str], jobs: Sequence[Job], arguments: Sequence[str] = (), packages: Sequence[str] = PYTEST
) -> list[Run]:
    """packages: modules that can be imported beside the standard library; those that this Python does not have are left
    out. Raises `UserError` where pytest or coverage is not installed, or where none of the jobs could be run."""
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
    """Of each job, test → whether it passed; a test that did not run is False. Raises as `run_here` does."""
    tests = sorted({test.partition("::")[0] for job in jobs for test in job.tests} & files.keys())
    compiled = Job({}, [*tests, "--collect-only"], compile=True)
    _, *runs = run_here(files, [compiled, *jobs], arguments, packages)
    return [{test: run.passed.get(test, False) for test in job.tests} for job, run in zip(jobs, runs, strict=True)]


def _run(root: Path, site: Path, seconds: float) -> str:
    """What the program printed. It is ended with all its processes where it takes longer."""
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
