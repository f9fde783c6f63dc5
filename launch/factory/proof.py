"""Proof of a candidate: its tests fail and pass as they should, three times each, or it says why it is none."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from slime_swe.data_sources.factory.packages import Candidate, Package
from slime_swe.data_sources.factory.runs import (
    PROGRAM,
    SECONDS,
    CoverageMap,
    Job,
    Run,
    command_of,
    decoded,
    encoded,
    functions_of,
    located,
    longest,
)
from slime_swe.data_sources.factory.tasks import size_of, statement
from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.patches import MAX_PATCH_BYTES
from slime_swe.rewards.grade import Trial
from slime_swe.rewards.mutated_files import mutate_files
from slime_swe.rewards.validation import Status, judge_runs, without_flaky
from slime_swe.sandbox.base import Limits, Sandbox

RUNS = 3
MAX_TESTS = 150
MOST_FAILING = 40  # test functions
FIRST_SECONDS = 30.0  # of CPU for a first run
MAX_SECONDS = 4.0  # of all tests of a task, in the run that measured them
WAITING = 2 * MAX_SECONDS  # that a fault may let these tests wait
SHOWN_IN_COMMAND = 10  # failing tests, of a statement's command
TIMEOUT_SECONDS = 60.0  # of a grading's run
_PLAIN_ID = re.compile(r"[^\s].{,300}", re.ASCII)
_ERROR = re.compile(r"^E   +([A-Za-z_][\w.]*)(?::|$)", re.MULTILINE)


@dataclass(frozen=True)
class Measured:
    """A package and the tests of it that passed in every one of `runs` runs. coverage: the lines that they run; without
    it, all of them count for every candidate."""

    package: Package
    usable: Sequence[str]
    runs: int
    coverage: CoverageMap | None = None

    def tests_of(self, candidate: Candidate) -> list[str]:
        """Return the usable tests that run a line that the candidate changes."""
        if self.coverage is None:
            return list(self.usable)
        found: dict[str, None] = {}
        for span in candidate.spans:
            found |= dict.fromkeys(self.coverage.tests_of(span.path, range(span.first, span.last + 1)))
        return [name for name in self.usable if name in found]

    def some(self, names: list[str], most: int = MAX_TESTS) -> list[str]:
        """Choose at most `most` tests, and only as many as take `MAX_SECONDS`, evenly from all."""
        seconds = sum(self.coverage.seconds[name] for name in names) if self.coverage else 0.0
        share = min(1.0, most / max(len(names), 1), MAX_SECONDS / max(seconds, 1e-9))
        return [name for number, name in enumerate(names) if int((number + 1) * share) > int(number * share)]


@dataclass(frozen=True)
class Verdict:
    """A candidate's verdict. task: None where it is none. reason: why, in fixed words. detail: more, for people."""

    candidate: Candidate
    task: Task | None = None
    reason: str = ""
    detail: str = ""


async def prove(candidates: Sequence[Candidate], measured: Measured, batches: Batches) -> list[Verdict]:
    """Return a verdict for each candidate, in their order, after two batches: one that shows which of them break a
    test, and one for the other runs of those that do. Raises what `Batches.run` does."""
    trials = [_Trial(one, measured.tests_of(one)) for one in candidates]
    for trial in trials:
        if trial.candidate.source != "releases":  # what fails of the next release's tests is sought among all
            trial.names = measured.some(trial.names)
    left = [trial for trial in trials if trial.names]
    for trial in trials:
        if not trial.names:
            trial.verdict = Verdict(trial.candidate, None, "untested", "no test runs it")
    jobs = [trial.job(trial.candidate.changes, trial.names, FIRST_SECONDS, texts=True) for trial in left]
    right = max(1, RUNS - measured.runs)
    for trial, run in zip(left, await batches.run(jobs) if jobs else (), strict=True):
        trial.first = run
        if reason := _reason(trial):
            trial.verdict = Verdict(trial.candidate, None, reason)
        else:
            failed = [name for name in trial.names if not run.passed.get(name)]
            passed = [name for name in trial.names if run.passed.get(name)]
            chosen = {*failed, *measured.some(passed, max(MAX_TESTS - len(failed), 0))}
            trial.names = [name for name in trial.names if name in chosen]
    left = [trial for trial in left if trial.verdict is None]
    further = iter(await batches.run([job for trial in left for job in _further(trial, right)]) if left else [])
    for trial in left:
        trial.verdict = _judged(trial, [*islice(further, RUNS - 1)], [*islice(further, right)], next(further))
    return [trial.verdict for trial in trials if trial.verdict is not None]


# `Batches`: many runs of a project's tests in one sandbox, at a part of the cost of starting pytest each time.
LIMITS = Limits(cpu_seconds=3600, wall_seconds=3600, processes=256)
TRACING = replace(LIMITS, memory_bytes=4 << 30)  # coverage keeps which of all tests ran which line
_PLACE = "/tmp/slime-swe-tests"
_JOBS, _RESULTS, _COVERAGE = f"{_PLACE}/jobs.json", f"{_PLACE}/results.jsonl", f"{_PLACE}/coverage.zip"


class Batches:
    """Runs of a project's tests in one open sandbox that holds it, for one caller at a time."""

    def __init__(self, sandbox: Sandbox, arguments: Sequence[str]) -> None:
        """Take an open sandbox. arguments: those of every call of pytest."""
        self._sandbox = sandbox
        self._arguments = list(arguments)
        self._is_ready = self._has_coverage = False

    async def run(self, jobs: Sequence[Job]) -> list[Run]:
        """Run jobs one after the other, each from the project as it is. Raises `SandboxError`, and `UserError` where
        none of them can be run, or where one is to be traced and coverage is not installed here."""
        if not self._is_ready:
            await self._sandbox.write_file(f"{_PLACE}/{PROGRAM.name}", PROGRAM.read_bytes())
            self._is_ready = True
        if not self._has_coverage and any(job.traced for job in jobs):
            await self._sandbox.write_file(_COVERAGE, _packed("coverage"))
            await self._sandbox.exec(f"python3 -m zipfile -e {_COVERAGE} {_PLACE}")
            self._has_coverage = True
        await self._sandbox.write_file(_JOBS, encoded(jobs, self._arguments))
        command = f"rm -f {_RESULTS}; python3 {_PLACE}/{PROGRAM.name} {_JOBS} {_RESULTS}"
        printed = (await self._sandbox.exec(command, timeout=longest(jobs))).output
        try:
            results = await self._sandbox.read_file(_RESULTS)
        except OSError:  # there is none, or it is no file
            results = b""
        return decoded(results, jobs, printed)


def _packed(package: str) -> bytes:
    """Pack a package's modules, those in C too: with its tracer in Python alone, coverage is many times slower. An
    interpreter that the C modules are not built for uses the tracer in Python."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for path in sorted(located(package).iterdir()):
            if path.suffix in (".py", ".so"):
                archive.write(path, f"{package}/{path.name}")
    return packed.getvalue()


@dataclass
class _Trial:
    """A candidate, the tests that it is tried with, and its first run."""

    candidate: Candidate
    names: list[str]
    first: Run = field(default_factory=Run)
    verdict: Verdict | None = None

    @property
    def failed(self) -> list[str]:
        return [name for name in self.names if not self.first.passed.get(name)]

    def job(self, files: Mapping[str, str | None], names: Iterable[str], seconds: float, *, texts: bool = False) -> Job:
        """Make a job of these tests. It has no waiting limit for a release, whose tests have not been measured."""
        waiting = 0.0 if self.candidate.source == "releases" else WAITING
        return Job(files, functions_of(names), seconds, waiting=waiting, texts=texts)


def _further(trial: _Trial, right_runs: int) -> list[Job]:
    """Make the further jobs: the broken state again, the right one, and once that with the failing tests mutated."""
    seconds = max(2.0, min(SECONDS, 5 * trial.first.seconds))
    package = trial.candidate.package
    failed = {name: name for name in trial.failed}
    files = {path: package.files[path].encode() for path in sorted({name.partition("::")[0] for name in failed})}
    mutated = {path: text.decode("utf-8") for path, text in mutate_files(files, failed).files.items()}
    broken, right = trial.job(trial.candidate.changes, trial.names, seconds), trial.job({}, trial.names, seconds)
    return [*[broken] * (RUNS - 1), *[right] * right_runs, trial.job(mutated, failed, seconds)]


def _reason(trial: _Trial) -> str:
    """Say why the first run of a broken state shows that it is no task; empty where it may be one."""
    run, failed = trial.first, trial.failed
    if run.timed_out:
        return "hangs"
    if not run.tests or (run.errors and trial.candidate.source != "releases"):
        return "trivial"  # its modules can't even be imported
    if len(functions_of(failed)) > MOST_FAILING:
        return "breaks too much"
    return "" if failed else "passes"


def _judged(trial: _Trial, again: Sequence[Run], right: Sequence[Run], mutated: Run) -> Verdict:
    """Judge a candidate by its runs, which are those of `_further`."""
    candidate, first = trial.candidate, trial.first
    broken = [first, *again]
    known = [name for name in trial.names if _PLAIN_ID.fullmatch(name) and all(name in run.tests for run in right)]
    fail_to_pass = tuple(name for name in known if not first.passed.get(name))
    pass_to_pass = tuple(name for name in known if first.passed.get(name))
    if not fail_to_pass:
        return Verdict(candidate, None, "flaky")
    task = task_of(candidate, fail_to_pass, pass_to_pass, first)
    finding = judge_runs(task, [_trial(run, task) for run in right], [_trial(run, task) for run in broken])
    if finding.status is Status.FLAKY:
        steady = without_flaky(task, finding.flaky)
        if steady is None:
            return Verdict(candidate, None, "flaky", finding.detail)
        task = task_of(candidate, steady.oracle.fail_to_pass, steady.oracle.pass_to_pass, first)
    elif finding.status is not Status.SOUND:
        return Verdict(candidate, None, finding.status.value, finding.detail)
    if len(task.oracle.gold_patch.encode()) > MAX_PATCH_BYTES:
        return Verdict(candidate, None, "oversized")
    if not any(mutated.passed.get(name) is False for name in task.oracle.fail_to_pass):
        return Verdict(candidate, None, "unwitnessed", "no failing test could be mutated so that it fails")
    return Verdict(candidate, task)


def task_of(candidate: Candidate, fail_to_pass: tuple[str, ...], pass_to_pass: tuple[str, ...], broken: Run) -> Task:
    """Make the task of a candidate. broken: a run of the broken state, with texts."""
    package, gold, files = candidate.package, candidate.gold_patch(), candidate.broken_files()
    command = command_of((*fail_to_pass, *pass_to_pass), package.root)
    failures = {name: broken.tests[name].text if name in broken.tests else "" for name in fail_to_pass}
    oracle = TestsOracle(fail_to_pass, pass_to_pass, package.protected, command, gold, TIMEOUT_SECONDS)
    errors = [["AssertionError", *_ERROR.findall(text)][-1] for text in failures.values()]
    metadata: dict[str, Any] = {
        "repo": package.name,
        "version": package.version,
        "licence": package.licence,
        "kind": candidate.kind,
        "files": sorted(candidate.changes),
        **size_of(gold, len(candidate.spans), (error.rpartition(".")[2] for error in errors)),
        **candidate.about,
    }
    shown = command_of(fail_to_pass[:SHOWN_IN_COMMAND], package.root)
    asked = statement(candidate.source, package.name, failures, shown, gold, files.values())
    return Task(candidate.id, asked, Workspace(files), oracle, f"factory-{candidate.source}", "train", metadata)


def _trial(run: Run, task: Task) -> Trial:
    """Return the trial that the grader would make of the same results."""
    tests = {name: run.passed.get(name, False) for name in (*task.oracle.fail_to_pass, *task.oracle.pass_to_pass)}
    return Trial(tests, all(tests.values()), "", timed_out=run.timed_out)
