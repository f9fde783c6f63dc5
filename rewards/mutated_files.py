"""The test files of a control run, whatever runs them: which are changed, how, and what the run recorded.

| the run | code | cases of data files | JSON |
| --- | --- | --- | --- |
| the control: tests must fail, and withhold values | `mutation.mutate` | `data_cases.mutate_cases` | as it is |
| a further run: nothing shows which form is true | `altered_tests.alter` | `data_cases.alter_cases` | `data_cases.alter_data` |
| the control of tests that none of these knows | `mutation.rewrite_literals`, of any file | | |
"""  # noqa: E501 (a table's row)

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import random
import secrets
import shlex
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slime_swe.data_sources.task import Task
from slime_swe.patches import PatchError
from slime_swe.rewards.altered_tests import FORMS, alter
from slime_swe.rewards.data_cases import JSON, SUFFIXES, alter_cases, alter_data, is_read_by, mutate_cases
from slime_swe.rewards.grade import GraderError
from slime_swe.rewards.mutation import Recording, mutate, rewrite_literals, tests_in
from slime_swe.rewards.negative_control import ControlRun
from slime_swe.rewards.room import UnwrittenError
from slime_swe.rewards.shared import cached
from slime_swe.rewards.withheld import Records, Withheld, read_records
from slime_swe.sandbox.base import Sandbox, Sandboxes

Files = Mapping[str, bytes]
Control = Callable[[Sequence[str]], Awaitable[ControlRun]]

MOST_CONTROLS = 8192  # that are cached, two of a task and up to 31 more where its deciding tests have no value
_RECORD_BYTES = 1 << 20  # read of what a run has recorded: some ten thousand values
_READ_SECONDS = 30.0


@dataclass(frozen=True)
class MutatedFiles:
    """The files that differ, and what `ControlRun` says of them."""

    files: Files = field(default_factory=dict)
    functions: tuple[frozenset[str], ...] = ()
    withheld: tuple[Withheld, ...] = ()
    rewritten: bool = False

    def reported(
        self, failed: frozenset[str], passed: frozenset[str], records: Records, *, timed_out: bool = False
    ) -> ControlRun:
        return ControlRun(self.functions, failed, passed, self.withheld, records, self.rewritten, timed_out)


def mutate_files(
    files: Files, places: Mapping[str, str], shown: Files | None = None, record_to: str = ""
) -> MutatedFiles:
    """Mutate tests of test files: the functions of Python files, and the cases of data files.

    places: where each test may be, as `path::Class::name` → its id. shown: the files as agents see them, if in another
    form. record_to: withhold values, and record to this file of the sandbox what is given instead.
    """
    made: dict[str, bytes] = {}
    functions: list[frozenset[str]] = []
    withheld: list[Withheld] = []
    for path, text in sorted(files.items(), key=lambda file: (file[0].endswith(SUFFIXES), file)):  # code first
        if path.endswith(JSON):
            continue
        if path.endswith(SUFFIXES):
            left = set(places.values()).difference(*functions)
            cases = mutate_cases(path, text, left, random.Random())
            if cases.functions:
                made[path] = cases.text
                functions += cases.functions
            continue
        recording = Recording(record_to, len(withheld)) if record_to else None
        found = mutate(text, tests_in(path, places), random.Random(), (shown or {}).get(path, b""), recording)
        if found.functions:
            made[path] = found.text
            functions += [_ids(function, places) for function in found.functions]
            withheld += [replace(value, tests=_ids(value.tests, places)) for value in found.withheld]
    return MutatedFiles(made, tuple(functions), tuple(withheld))


def alter_files(
    files: Files, places: Mapping[str, str], forms: Mapping[str, int], shown: Files | None = None
) -> MutatedFiles:
    """Alter these tests (ids) of test files, each into the form of its number.

    A process always makes the same of a number. A test that does not have so many forms stays as it is, unless it reads
    a JSON file: then the file has forms, too.

    places: as for `mutate_files`, of all tests that may be altered, the same in all calls. What two of them read stays
    as it is, since one may be altered while the other is not. shown: as for `mutate_files`.
    """
    made: dict[str, bytes] = {}
    functions: list[frozenset[str]] = []
    data = {path for path in files if path.endswith(JSON)}
    readers: dict[str, set[str]] = {path: set() for path in data}
    beyond: dict[str, tuple[frozenset[str], int]] = {}  # of each data file, the tests that it alters, and its number
    for path in sorted(files.keys() - data, key=lambda path: (path.endswith(SUFFIXES), path)):  # code first
        text, seed = files[path], f"{_secret()} {path}"
        if path.endswith(SUFFIXES):
            left = forms.keys() - frozenset().union(*functions)
            cases = alter_cases(path, text, {test: forms[test] for test in sorted(left)}, seed)
            made[path], found = cases.text, list(cases.functions)
        else:
            there = tests_in(path, places)
            numbers = {place: forms[places[place]] for place in there if places[place] in forms}
            read = [name for name in data if is_read_by(name, text)]
            most = FORMS // 3 if read else FORMS
            code = alter(text, numbers, seed, (shown or {}).get(path, b""), there, most)
            made[path], found = code.text, [_ids(function, places) for function in code.functions]
            for name in read:
                readers[name] |= {place.partition("[")[0] for place in there}
                for function, number in code.beyond.items():
                    beyond[name] = (_ids(function, places), number)
        functions += found
    for path, (function, number) in beyond.items():
        if len(readers[path]) == 1 and (changed := alter_data(files[path], number, f"{_secret()} {path}")) is not None:
            made[path] = changed
            functions += [function] * (function not in functions)
    return MutatedFiles({path: text for path, text in made.items() if text != files[path]}, tuple(functions))


@functools.cache
def _secret() -> str:
    """Return the secret that altered forms are drawn by: code under test that knew it would know these."""
    return secrets.token_hex(16)


def rewrite_files(files: Files, tests: Collection[str]) -> MutatedFiles:
    """Rewrite the literals of these files, for tests of which none can be mutated."""
    made = {path: rewrite_literals(path, content) for path, content in files.items()}
    changed = {path: content for path, content in made.items() if content != files[path]}
    return MutatedFiles(changed, (frozenset(tests),), rewritten=True) if changed else MutatedFiles()


def _ids(found: Collection[str], places: Mapping[str, str]) -> frozenset[str]:
    return frozenset(places[place] for place in found)


def pytest_options(only: Collection[str] = ()) -> str:
    """Return a line of shell that has pytest format no tracebacks, for a run that code may tell from the first.

    A test that fails may take a hundred times as long as its code if it has a traceback. What pytest says of each test
    stays as it is; other runners take no notice. only: leave out tests of other names than these (ids) have, as far as
    the command has no `-k` of its own.
    """
    functions = sorted({test.partition("[")[0].rpartition("::")[2] for test in only})
    chosen = f" -k '{' or '.join(functions)}'" if functions and all(map(str.isidentifier, functions)) else ""
    return f'export PYTEST_ADDOPTS="${{PYTEST_ADDOPTS-}} --tb=no{chosen}"\n'


async def read_files(sandbox: Sandbox, paths: Collection[str]) -> Files:
    """Read these files of a sandbox, but for those that can't be read."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found[path] = await sandbox.read_file(path)
    return found


async def records_in(sandbox: Sandbox, path: str) -> Records:
    """Read what a run has recorded; nothing where it was to record nothing, or where code under test has put something
    else in the place of the file, such as a FIFO, which would be waited for. No code under test is left to do so when
    the command that reads begins. The file is removed: a sandbox of plain processes has no /tmp of its own.
    """
    if not path:
        return {}
    file = shlex.quote(path)
    read = f"[ ! -L {file} ] && [ -f {file} ] && head -c {_RECORD_BYTES} {file} 2>/dev/null; rm -f {file}"
    return await asyncio.to_thread(read_records, (await sandbox.exec(read, timeout=_READ_SECONDS)).output)


async def known_control(
    task: Task, patch: str, sandboxes: Sandboxes, tests: Sequence[str], control: Control
) -> ControlRun:
    """Return the control of the gold patch or of none, made once for all patches of a task. That of the gold patch is
    made again if nothing came of it. Raises `GraderError` where the gold patch can't be applied, or `_settled` does."""
    decides = (task.id, task.oracle, sorted(task.workspace.files.items()), task.workspace.image, patch, tuple(tests))
    key = hashlib.sha256(
        repr(decides).encode(errors="backslashreplace")
    ).digest()  # the files would be kept for as long
    try:
        return await cached(
            "control",
            (sandboxes, key),
            lambda: _settled(lambda: control(tests)),
            keep=lambda run: run.reports or not patch,
            most=MOST_CONTROLS,
        )
    except (PatchError, UnwrittenError) as error:
        raise GraderError(f"the task's gold patch can't be applied: {error}") from error


async def _settled(control: Callable[[], Awaitable[ControlRun]]) -> ControlRun:
    """Return a control that all patches are held against: if its time ran out, a second one that came as far.

    On a busy machine a control may lack what it has on another, and a value that the unpatched code gives would then
    seem to be the patch's. Raises `GraderError` where two came to different places.
    """
    run = await control()
    if not run.timed_out:
        return run
    again = await control()
    if again.timed_out and again.records.keys() != run.records.keys():
        raise GraderError(
            "a control reached its time limit twice, at different places: the machine is too busy to judge"
        )
    return again
