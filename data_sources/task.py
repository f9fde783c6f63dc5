"""`Task`: one problem for an agent, and the oracle that says whether it was solved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import PurePosixPath
from typing import Any


class TaskError(ValueError):
    """A task record is malformed; the message names the task, the field and what is allowed."""


@dataclass(frozen=True)
class Workspace:
    """What the agent finds in its sandbox: repository files, as text, by relative POSIX path."""

    files: Mapping[str, str]


@dataclass(frozen=True)
class TestOracle:
    """How a patch is graded: by these tests, with these files put back as they are here.

    `protected` names the workspace files that the grader restores (the tests); a patch to them counts for nothing.
    """

    __test__ = False  # the name starts with "Test", and pytest would collect it

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    protected: tuple[str, ...]
    command: str
    gold_patch: str
    timeout_seconds: float = 20.0


@dataclass(frozen=True)
class Task:
    """One problem: what the agent is told, what it starts from, and how its patch is graded."""

    id: str
    statement: str
    workspace: Workspace
    oracle: TestOracle
    source: str
    split: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The task as plain JSON types; `from_dict` is the inverse."""
        return {
            "id": self.id,
            "statement": self.statement,
            "workspace": {"files": dict(self.workspace.files)},
            "oracle": {
                "fail_to_pass": list(self.oracle.fail_to_pass),
                "pass_to_pass": list(self.oracle.pass_to_pass),
                "protected": list(self.oracle.protected),
                "command": self.oracle.command,
                "gold_patch": self.oracle.gold_patch,
                "timeout_seconds": self.oracle.timeout_seconds,
            },
            "source": self.source,
            "split": self.split,
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_dict(cls, record: Any) -> Task:
        """Build a task from untrusted JSON. Raises `TaskError` naming the first field that is wrong."""
        reader = _Reader(record)
        task_id = reader.get("id", str)
        files = reader.get("workspace.files", dict)
        for path, text in files.items():
            reader.require(isinstance(text, str), f"workspace.files[{path!r}]", "text", text)
            reader.require(_is_inside(path), "workspace.files", "normalised relative paths inside the repository", path)
            folders = map(str, PurePosixPath(path).parents)
            reader.require(files.keys().isdisjoint(folders), "workspace.files", "paths that are not below a file", path)
        oracle = TestOracle(
            fail_to_pass=reader.strings("oracle.fail_to_pass"),
            pass_to_pass=reader.strings("oracle.pass_to_pass"),
            protected=reader.strings("oracle.protected"),
            command=reader.get("oracle.command", str),
            gold_patch=reader.get("oracle.gold_patch", str),
            timeout_seconds=float(reader.get("oracle.timeout_seconds", (int, float))),
        )
        seconds = oracle.timeout_seconds
        reader.require(0 < seconds < inf, "oracle.timeout_seconds", "a number of seconds above 0", seconds)
        reader.require(bool(oracle.fail_to_pass), "oracle.fail_to_pass", "at least one test", [])
        for path in oracle.protected:
            reader.require(path in files, "oracle.protected", "paths among workspace.files", path)
        return cls(
            id=task_id,
            statement=reader.get("statement", str),
            workspace=Workspace(files),
            oracle=oracle,
            source=reader.get("source", str),
            split=reader.get("split", str),
            metadata=reader.get("metadata", dict),
        )


class _Reader:
    """Reads typed fields out of an untrusted record, so that each error says where and what."""

    def __init__(self, record: Any) -> None:
        if not isinstance(record, dict):
            raise TaskError(f"a task must be a JSON object, not {type(record).__name__}")
        self._record = record
        self._name = record.get("id") if isinstance(record.get("id"), str) else "<no id>"

    def get(self, dotted: str, kind: type | tuple[type, ...]) -> Any:
        value: Any = self._record
        for key in dotted.split("."):
            if not isinstance(value, dict) or key not in value:
                raise TaskError(f"task {self._name!r}: field {dotted!r} is missing")
            value = value[key]
        kinds = kind if isinstance(kind, tuple) else (kind,)
        self.require(
            isinstance(value, kinds) and not isinstance(value, bool),
            dotted,
            " or ".join(k.__name__ for k in kinds),
            value,
        )
        return value

    def strings(self, dotted: str) -> tuple[str, ...]:
        values = self.get(dotted, list)
        for value in values:
            self.require(isinstance(value, str), dotted, "a list of strings", value)
        return tuple(values)

    def require(self, ok: bool, where: str, allowed: str, given: Any) -> None:
        if not ok:
            raise TaskError(f"task {self._name!r}: field {where!r} must be {allowed}, got {str(given)[:80]!r}")


def _is_inside(path: str) -> bool:
    """Whether a path is written as the sandbox and a patch write it, so that a file has one name only."""
    pure = PurePosixPath(path)
    return str(pure) == path != "." and not pure.is_absolute() and ".." not in pure.parts and "\0" not in path
