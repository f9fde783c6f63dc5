"""`Task`: one problem for an agent, and the oracle that says whether it was solved.

A task has a statement, a `Workspace` to start from (files, an `Image`, or both) and an `Oracle`, which says how a patch
is graded. Each kind of oracle is a class: what it needs, what grades it, and what is wrong with a record of it. The
three kinds that go by a project's tests are here; the others are beside their task sets (`ORACLES`).

Where tasks are from: `registry.py` finds a set by its name. `corpora/` reads the public ones. `synthetic/`,
`specification/`, `factory/`, `arc/`, `diff.py`, `vulnerability.py` and `humaneval.py` make theirs. `slime_plugin.py`
hands them out, in an order that a resumed run goes on with; `contamination.py` looks for what two sets share.

What tests hold:

- `Task.from_dict` is the inverse of `Task.to_dict`.
- A malformed record is a `UserError` that names the task and all its faults.
- No path of a workspace leads out of it, and no two name the same file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal, Self

from slime_swe.dotted import load_registered
from slime_swe.errors import UserError
from slime_swe.fields import Meta, read

TOGETHER = "together"  # in a task's metadata: tasks of a set with the same text here are handed out one after the other
MOST_LEVELS = 100  # of metadata: what writes it recurses
MOST_PATH = 4095  # bytes on Linux, PATH_MAX without its end; a path of more characters has more bytes, too


@dataclass(frozen=True)
class Task:
    """One problem: what the agent is asked, what it starts from, and how its patch is graded."""

    id: str
    statement: str
    workspace: Workspace
    oracle: Oracle
    source: str = ""
    split: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the task as plain JSON types; `from_dict` is the inverse."""
        return {**_plain(asdict(self)), "oracle": {"kind": self.oracle.kind, **_plain(asdict(self.oracle))}}

    @classmethod
    def from_dict(cls, record: Any) -> Self:
        """Build a task from untrusted JSON. Raises `UserError` that names the task and all its faults."""
        name = record.get("id", "<no id>") if isinstance(record, dict) else "<no id>"
        return read(cls, record, f"task {name!r:.80}")

    def faults(self) -> Iterator[str]:
        if not self.statement.strip():
            yield f"statement must say what the agent is asked, got {self.statement!r:.80}"
        yield from self.oracle.faults_in(self.workspace)
        if _nested_deeper(self.metadata, MOST_LEVELS):
            yield f"metadata must be nested at most {MOST_LEVELS} levels deep"


@dataclass(frozen=True)
class Workspace:
    """The files and the image that the agent finds in its sandbox.

    files: repository files, as text, by relative POSIX path; they are written over the image's.
    image: where the rest of the repository and its environment come from; None where the files are all there is.
    """

    files: Mapping[str, str] = field(default_factory=dict)
    image: Image | None = None

    def faults(self) -> Iterator[str]:
        for path in self.files:
            if len(path) > MOST_PATH:
                yield f"files must have paths of at most {MOST_PATH} characters, got one of {len(path)}"
            elif not _is_inside(path):
                yield f"files must have normalised relative paths inside the repository, got {path!r}"
            elif not self.files.keys().isdisjoint(map(str, PurePosixPath(path).parents)):
                yield f"files must have paths that are not below a file, got {path!r}"


@dataclass(frozen=True)
class Image:
    """A container image that holds the task's repository.

    name: as Docker writes it. folder: where the repository lies, absolute. setup: shell commands, run once in a
    sandbox before anything else, whose environment every command inherits (such as `conda activate testbed`).
    """

    name: str
    folder: str = "/testbed"
    setup: str = ""

    def faults(self) -> Iterator[str]:
        if not self.name:
            yield "name must be the name of an image, got ''"
        if not self.folder.startswith("/"):
            yield f"folder must be an absolute path, got {self.folder!r}"


@dataclass(frozen=True)
class Oracle:
    """The fields that every kind of oracle has: how a patch is graded. `kind` says in JSON which one it is.

    protected: the files that the grader restores (the tests); a patch to them counts for nothing. command: what runs
    the project's tests; empty where that is not known. gold_patch: a right solution, which proves the task.

    A kind of your own is a subclass whose `kind` is its dotted path. grader: the dotted path of what grades it
    (`slime_swe.rewards.grade` says how it is called). deterministic: what it says of a patch is always the same, so
    that a run need not ask twice (`slime_swe.rewards.score_cache`); the tests of a real project seldom promise that.
    by_degree: a patch that is not right is worth more or less (`Trial.quality`), and hardly any is right, so that a
    group teaches by how far its rewards lie apart.
    """

    kind: ClassVar[str] = ""
    grader: ClassVar[str] = ""
    deterministic: ClassVar[bool] = False
    by_degree: ClassVar[bool] = False

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    command: str = ""
    gold_patch: str = ""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 20.0

    @property
    def agent_command(self) -> str:
        """The command that an agent may run for itself; empty where there is none."""
        return self.command

    @property
    def grading_files(self) -> Mapping[str, str]:
        """The files that `command` needs and only the grader has."""
        return {}

    @property
    def refused_quality(self) -> float:
        """The worth of no patch, or of one that can't be applied, in mode `fraction`."""
        return 0.0

    @classmethod
    def class_of(cls, record: Mapping[str, Any]) -> type[Oracle]:
        """Return the class that a record's `kind` names. Raises `UserError` with the kinds that there are."""
        if cls is not Oracle:
            return cls
        if not isinstance(record.get("kind"), str):
            raise UserError(f".kind is missing: write {', '.join(ORACLES)}, as docs/tasks.md says")
        found = load_registered(record["kind"], ORACLES, ".kind")
        if not (isinstance(found, type) and issubclass(found, Oracle) and found.kind == record["kind"]):
            raise UserError(f".kind={record['kind']!r} must name a subclass of {__name__}.Oracle that has this kind")
        return found

    def faults(self) -> Iterator[str]:
        if not self.fail_to_pass:
            yield "fail_to_pass must be at least one test, got []"
        if not isfinite(self.timeout_seconds):
            yield f"timeout_seconds must be a finite number of seconds, got {self.timeout_seconds}"

    def faults_in(self, workspace: Workspace) -> Iterator[str]:
        """Yield what the oracle needs and the workspace lacks."""
        known = workspace.files.keys()
        for path in self.protected if workspace.image is None else ():
            if path not in known:
                yield f"oracle.protected must be paths among workspace.files, got {path!r}"

    def compared(self, workspace: Workspace) -> str:
        """Return the patch by which `contamination.py` compares a task with others: what another can't share."""
        return self.gold_patch

    def recorded(self) -> dict[str, Any]:
        """Return what the evidence of each score says of the oracle, as plain JSON types: what `figures` needs. Empty
        where the kind has no figures of its own."""
        return {}

    @staticmethod
    def figures(evidence: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return the kind's own figures of an evaluation, by its episodes' evidence in order of tasks and sampling."""
        return {}


@dataclass(frozen=True)
class CallsOracle(Oracle):
    """Grades by values: the tests are calls with literal answers, which are compared outside the sandbox.

    The tests (`rewards/call_values.py` describes their form) are in the workspace's files. held_out_tests: a test file
    that no agent sees, some of whose calls fail without the fix. It grades nothing, but code that is right only on the
    calls of the visible tests does not solve the task. The graded code has neither the files of its tests nor others
    that are protected, so it must not need them.
    """

    kind: ClassVar[str] = "calls"
    grader: ClassVar[str] = "slime_swe.rewards.call_values.try_patch"
    deterministic: ClassVar[bool] = True

    held_out_tests: str = ""

    def faults_in(self, workspace: Workspace) -> Iterator[str]:
        yield from super().faults_in(workspace)
        if workspace.image is not None:
            yield "workspace.image must be null for an oracle of kind 'calls'"
        tests = {test.partition("::")[0] for test in (*self.fail_to_pass, *self.pass_to_pass)}
        for path in sorted(tests - workspace.files.keys()):
            yield f"workspace.files must have {path!r}, which holds tests"


@dataclass(frozen=True)
class TestsOracle(Oracle):
    """Grades by the log of `command`: `PASSED file::test` or `FAILED file::test - why`, one line for each test.

    runner: what prints them: `pytest` (the command has `-rA`), or `lines` for any other program. hidden: files (path →
    text) that only the grader has, such as the tests; for tasks without an image. missing: what a test counts as that
    the log does not name: `failed`, or `as_gold`: passed where the gold patch's log does not name it either, and this
    one names every test that the gold patch's does.
    """

    __test__ = False  # the name starts with "Test", and pytest would collect it
    kind: ClassVar[str] = "tests"
    grader: ClassVar[str] = "slime_swe.rewards.test_log.try_patch"

    runner: Literal["pytest", "lines"] = "pytest"
    hidden: Mapping[str, str] = field(default_factory=dict)
    missing: Literal["failed", "as_gold"] = "failed"

    @property
    def agent_command(self) -> str:
        return "" if self.hidden else self.command

    @property
    def grading_files(self) -> Mapping[str, str]:
        return self.hidden

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if not self.command.strip():
            yield "command must be what runs the tests, got ''"
        if self.missing == "as_gold" and not self.gold_patch.strip():
            yield "gold_patch is missing: missing='as_gold' looks at what its log names"
        yield from (f"hidden: {fault.removeprefix('files ')}" for fault in Workspace(self.hidden).faults())

    def faults_in(self, workspace: Workspace) -> Iterator[str]:
        yield from super().faults_in(workspace)
        if self.hidden and workspace.image is not None:
            yield "oracle.hidden must be empty where workspace.image is given"
        for path in self.hidden.keys() & workspace.files.keys():
            yield f"oracle.hidden must hold none of workspace.files, got {path!r}"


@dataclass(frozen=True)
class HarnessOracle(Oracle):
    """Grades as the SWE-bench harness does: a script in the task's image, whose log a parser of the harness reads.

    eval_script: bash; it restores the tests and prints the harness's markers around what the tests print.
    log_parser: a name in swebench's `PARSER_REGISTRY`. eval_type: `pass_and_fail`, or `fail_only` where the log names
    only the tests that fail. repo, version: as the harness knows the project.
    """

    kind: ClassVar[str] = "harness"
    grader: ClassVar[str] = "slime_swe.rewards.swebench.grader.try_patch"

    repo: str = ""
    version: str = ""
    eval_script: str = ""
    log_parser: str = ""
    eval_type: Literal["pass_and_fail", "fail_only"] = "pass_and_fail"
    timeout_seconds: Annotated[float, Meta(gt=0)] = 1800.0

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        for name in ("eval_script", "log_parser"):
            if not getattr(self, name):
                yield f"{name} is missing"

    def faults_in(self, workspace: Workspace) -> Iterator[str]:
        if workspace.image is None:
            yield "workspace.image is missing: an oracle of kind 'harness' runs in an image"


# Kind in JSON -> dotted path of its class.
ORACLES = {
    "calls": "slime_swe.data_sources.task.CallsOracle",
    "tests": "slime_swe.data_sources.task.TestsOracle",
    "harness": "slime_swe.data_sources.task.HarnessOracle",
    "diff": "slime_swe.data_sources.diff.DiffOracle",
    "vulnerability": "slime_swe.data_sources.vulnerability.VulnerabilityOracle",
    "arc": "slime_swe.data_sources.arc.tasks.ArcOracle",
    "step": "slime_swe.data_sources.steps.StepOracle",
    "written": "slime_swe.data_sources.factory.writing.WrittenOracle",
}


def _nested_deeper(value: Any, levels: int) -> bool:
    inner = [value]
    for _ in range(levels):
        held = [one for one in inner if isinstance(one, Mapping | list)]
        inner = [part for one in held for part in (one.values() if isinstance(one, Mapping) else one)]
    return any(isinstance(one, Mapping | list) for one in inner)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _is_inside(path: str) -> bool:
    """Say whether a path is written as the sandbox and a patch write it, so that a file has one name only."""
    pure = PurePosixPath(path)
    return str(pure) == path != "." and not pure.is_absolute() and ".." not in pure.parts and "\0" not in path
