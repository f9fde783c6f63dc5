"""Make tasks of packages: measure their tests, take candidates in turn, prove them in batches, and choose.

Read this file first: `make` is the whole of it. `proof` says when a candidate is a task, and `containers` writes tasks
in the formats of others, where `verdict` stands beside a task's tests. What was found of a candidate is in the journal
at once, so that an interrupted run goes on.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import orjson

from slime_swe import files
from slime_swe.data_sources.factory.faults import combined, faults
from slime_swe.data_sources.factory.packages import Candidate, Package, Source, between, read_package
from slime_swe.data_sources.factory.runs import Job, as_map, found_from, tracing
from slime_swe.data_sources.factory.tasks import balanced, distinct
from slime_swe.data_sources.task import Task, Workspace
from slime_swe.errors import UserError
from slime_swe.launch.factory.proof import LIMITS, RUNS, TRACING, Batches, Measured, Verdict, prove
from slime_swe.rewards.validation import Finding, Status, validate
from slime_swe.sandbox.base import Sandboxes
from slime_swe.sandbox.pool import SandboxPool

CHUNK = 8  # candidates of one batch
COMBINED = 0.12  # of a package's tasks, at most
ONE_KIND = 0.3  # of a package's tasks that one modifier makes, at most
TEST_SECONDS = 20.0  # of one test; the package's others are used
SUITE_SECONDS = 900.0


@dataclass(frozen=True)
class FactorySettings:
    """The settings of `make`.

    most: how many fault tasks one package gives at most. jobs: sandboxes at once. checked: how many tasks are graded
    once more at the end, each in fresh sandboxes, as in training.
    """

    sandbox: str = "local"
    jobs: int = 1
    most: int = 80
    sources: tuple[Source, ...] = ("faults", "releases")
    checked: int = 20


@dataclass
class Outcome:
    """The tasks that were made, and what became of the other candidates.

    tasks: the chosen ones. reasons: how many candidates are no task, by reason. checked: how many were graded once
    more. unsound: what is wrong with those of them that were left out. without: packages that gave nothing, and why.
    """

    tasks: list[Task] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    unsound: list[Finding] = field(default_factory=list)
    without: dict[str, str] = field(default_factory=dict)


Say = Callable[[str], None]
OnTask = Callable[[int], None]
Written = Callable[[Package], Sequence[Candidate]]


async def make(
    groups: Sequence[Sequence[Path]],
    settings: FactorySettings,
    journal: Journal,
    *,
    written: Written = lambda package: (),
    say: Say = lambda line: None,
    on_task: OnTask = lambda count: None,
) -> Outcome:
    """Make tasks of packages. groups: each package's archives, the newest first.

    written: returns the candidates that agents have made of a package. say: is told what was found of a package.
    on_task: is told how many candidates have proven themselves so far. Raises `UserError` where no package is of any
    use, `InfrastructureError` where sandboxes fail.
    """
    outcome = Outcome()
    works = [_Work(archives, settings, written) for archives in groups]
    waiting, proven = deque(works), list[Verdict]()

    def on_verdict(verdict: Verdict, known: bool) -> None:
        if not known:
            journal.add(verdict)
        if verdict.task is None:
            outcome.reasons[verdict.reason] += 1
        else:
            proven.append(verdict)
            on_task(len(proven))

    async def worker(pool: Sandboxes) -> None:
        while waiting:
            work = waiting.popleft()
            try:
                await work.prepare(pool)
                say(work.said)
                await work.play(pool, journal, on_verdict)
            except UserError as error:
                outcome.without[work.name] = str(error)
                say(f"{work.name}: {error}")
        for work in works:  # help with what is left
            await work.play(pool, journal, on_verdict)

    async with SandboxPool(settings.sandbox, concurrency=2 * settings.jobs) as pool:
        await _together([worker(pool) for _ in range(settings.jobs)])
        chosen = balanced(distinct(_ordered(proven)))
        outcome.reasons["near duplicates, and too many of one kind"] = len(proven) - len(chosen)
        outcome.tasks = await _checked(chosen, settings, pool, outcome)
    if len(outcome.without) == len(works):
        raise UserError("no package is of any use: " + "; ".join(outcome.without.values()))
    return outcome


class _Work:
    """One package: its candidates, and how far they have been tried."""

    def __init__(self, archives: Sequence[Path], settings: FactorySettings, written: Written) -> None:
        self.name = archives[0].name
        self.said = ""
        self._archives = archives
        self._settings = settings
        self._written = written
        self._first: deque[Candidate] = deque()
        self._measured: Measured | None = None
        self._candidates: Iterator[Candidate] = iter(())
        self._pairs: deque[tuple[Package, Package]] = deque()
        self._kinds: Counter[str] = Counter()  # of the faults that have proven themselves
        self._trying = 0  # faults in batches now
        self._single: list[Candidate] = []

    async def prepare(self, sandboxes: Sandboxes) -> None:
        """Read the package and measure its tests. Raises `UserError` where it can't be used."""
        package = await asyncio.to_thread(read_package, self._archives[0])
        traced = tracing(package.files, package.tests, TEST_SECONDS, SUITE_SECONDS)
        suite = Job({}, package.tests, SUITE_SECONDS)
        async with sandboxes.open(package.files, TRACING) as sandbox:
            (first,) = await Batches(sandbox, found_from(package.root)).run([traced])
        async with _batches(package, sandboxes) as batches:
            runs = await batches.run([suite, suite])
        coverage = await asyncio.to_thread(as_map, first)
        passing = [name for name, passed in coverage.tests.items() if passed]
        usable = [name for name in passing if all(run.passed.get(name) for run in runs)]
        if not usable:
            raise UserError(f"{package.label}: none of its {len(coverage.tests)} tests passes without other packages")
        self._measured = Measured(package, usable, len(runs), coverage)
        if "faults" in self._settings.sources:
            self._candidates = await asyncio.to_thread(faults, package)
        self._first.extend(self._written(package))
        if "releases" in self._settings.sources:
            self._pairs.extend(await asyncio.to_thread(_pairs, package, self._archives[1:]))
        tests = f"{len(usable)} of {len(coverage.tests)} tests usable"
        self.said = f"{package.label}: {tests}, {len(self._pairs)} pairs of releases to try"

    async def play(self, sandboxes: Sandboxes, journal: Journal, on_verdict: Callable[[Verdict, bool], None]) -> None:
        """Prove what is left. Several may do this at once."""
        while self._pairs:
            await self._play_pair(*self._pairs.popleft(), sandboxes, journal, on_verdict)
        if self._measured is None:
            return
        async with AsyncExitStack() as stack:
            batches: Batches | None = None
            while chunk := list(islice(self._next(journal, on_verdict), CHUNK)):
                if batches is None:
                    batches = await stack.enter_async_context(_batches(self._measured.package, sandboxes))
                verdicts = await prove(chunk, self._measured, batches)
                self._trying -= sum(one.source == "faults" for one in chunk)
                for verdict in verdicts:
                    self._note(verdict)
                    on_verdict(verdict, False)

    async def _play_pair(
        self,
        older: Package,
        newer: Package,
        sandboxes: Sandboxes,
        journal: Journal,
        on_verdict: Callable[[Verdict, bool], None],
    ) -> None:
        candidate = between(older, newer)
        if candidate is None:
            return
        if known := journal.known(candidate):
            on_verdict(known, True)
            return
        try:
            async with _batches(newer, sandboxes) as batches:
                run = (await batches.run([Job({}, newer.tests, SUITE_SECONDS)]))[0]
                usable = [name for name, passed in run.passed.items() if passed]
                verdicts = await prove([candidate], Measured(newer, usable, 1), batches)
        except UserError as error:
            verdicts = [Verdict(candidate, None, "can't be run", str(error))]
        for verdict in verdicts:
            on_verdict(verdict, False)

    def _next(self, journal: Journal, on_verdict: Callable[[Verdict, bool], None]) -> Iterator[Candidate]:
        """Yield candidates that the journal does not know, until the package has given enough: after the single faults
        those that combine two."""
        while self._first:
            first = self._first.popleft()
            if known := journal.known(first):
                on_verdict(known, True)
            else:
                yield first
        most = self._settings.most
        while self._kinds.total() + self._trying < most:
            candidate = next(self._candidates, None)
            if candidate is not None and (known := journal.known(candidate)):
                self._note(known)
                on_verdict(known, True)
            elif self._single and (candidate is None or self._kinds.total() >= (1 - COMBINED) * most):
                pairs = combined(sorted(self._single, key=lambda one: one.digest))
                self._single.clear()
                rest = [] if candidate is None else [candidate]
                self._candidates = chain(pairs[: int(COMBINED * most) * 2], rest, self._candidates)
            elif candidate is None:
                return
            elif self._kinds[candidate.kind] < max(1, ONE_KIND * most):
                self._trying += 1
                yield candidate

    def _note(self, verdict: Verdict) -> None:
        if verdict.task is not None and verdict.candidate.source == "faults":
            self._kinds[verdict.candidate.kind] += 1
            if len(verdict.candidate.spans) == 1:
                self._single.append(verdict.candidate)


# The journal has a line for each candidate, so that an interrupted `make-tasks` goes on where it stopped.
FORM = 1  # of the lines, and of how candidates are proven: a line of another does not count


class _Line(msgspec.Struct, omit_defaults=True):
    """One candidate's verdict as the journal keeps it. task: without its files, which the candidate has."""

    digest: str
    form: int
    reason: str = ""
    detail: str = ""
    task: dict[str, Any] | None = None


class Journal:
    """The verdicts on candidates, in a file. Raises `UserError` where it holds something else or can't be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = files.read_given(path, "the journal") if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        try:
            lines = msgspec.json.Decoder(_Line).decode_lines(whole)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} is no journal of make-tasks ({error}): remove it, or give another --out"
            ) from error
        if whole != text:  # a killed run left a part of a line
            with files.writing(path):
                files.replace_file(path, whole)
        self._known = {line.digest: line for line in lines if line.form == FORM}

    def __len__(self) -> int:
        return len(self._known)

    def known(self, candidate: Candidate) -> Verdict | None:
        line = self._known.get(candidate.digest)
        if line is None:
            return None
        if line.task is None:
            return Verdict(candidate, None, line.reason, line.detail)
        task = Task.from_dict({**line.task, "workspace": {"files": candidate.broken_files()}})
        return Verdict(candidate, task)

    def add(self, verdict: Verdict) -> None:
        task = None
        if verdict.task is not None:
            task = replace(verdict.task, workspace=Workspace()).to_dict()
            del task["workspace"]
        line = _Line(verdict.candidate.digest, FORM, verdict.reason, verdict.detail, task)
        with files.writing(self.path):
            files.append(self.path, orjson.dumps(msgspec.to_builtins(line)) + b"\n")
        self._known[line.digest] = line


@asynccontextmanager
async def _batches(package: Package, sandboxes: Sandboxes) -> AsyncIterator[Batches]:
    """Yield batches in a sandbox of the package as it is, whose modules are compiled."""
    async with sandboxes.open(package.files, LIMITS) as sandbox:
        batches = Batches(sandbox, found_from(package.root))
        await batches.run([Job({}, [*package.tests, "--collect-only"], compile=True)])
        yield batches


def _pairs(newest: Package, others: Sequence[Path]) -> list[tuple[Package, Package]]:
    """Pair successive releases as (older, newer), of those that can be read."""
    packages = [newest]
    for path in others:
        try:
            packages.append(read_package(path))
        except UserError:
            continue
    return [(older, newer) for newer, older in pairwise(packages)]


def _ordered(proven: Sequence[Verdict]) -> list[Task]:
    """Order tasks by source, then by digest, whatever the order in which they were proven."""
    found = {verdict.candidate.digest: verdict for verdict in proven}
    order = {"releases": 0, "written": 1, "faults": 2}
    verdicts = sorted(found.values(), key=lambda one: (order[one.candidate.source], one.candidate.digest))
    return [verdict.task for verdict in verdicts if verdict.task is not None]


async def _checked(
    tasks: Sequence[Task], settings: FactorySettings, sandboxes: Sandboxes, outcome: Outcome
) -> list[Task]:
    """Leave out the tasks that the grader of training does not find sound, among a sample and all that agents wrote."""
    sample = random.Random(len(tasks)).sample(range(len(tasks)), min(settings.checked, len(tasks)))
    written = [number for number, task in enumerate(tasks) if task.source == "factory-written"]
    waiting = iter(sorted({*sample, *written}))
    wrong: set[int] = set()

    async def work() -> None:
        for number in waiting:
            finding = await validate(tasks[number], sandboxes, RUNS)
            outcome.checked += 1
            if finding.status is not Status.SOUND:
                wrong.add(number)
                outcome.unsound.append(finding)

    await _together([work() for _ in range(settings.jobs)])
    return [task for number, task in enumerate(tasks) if number not in wrong]


async def _together(works: Sequence[object]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)  # type: ignore[arg-type]
    except BaseExceptionGroup as group_error:
        raise group_error.exceptions[0] from None
