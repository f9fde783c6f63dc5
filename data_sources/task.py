"""`Task`: one problem for an agent, and the oracle that says whether it was solved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import PurePosixPath
from typing import Any

from data_sources.reader import Reader, is_inside


@dataclass(frozen=True)
class Image:
    """A container image that holds the task's repository.

    name: as Docker writes it. folder: where the repository lies, absolute. setup: shell commands, run once in a
    sandbox before anything else, whose environment every command inherits (such as `conda activate testbed`).
    """

    name: str
    folder: str = "/testbed"
    setup: str = ""


@dataclass(frozen=True)
class Workspace:
    """What the agent finds in its sandbox.

    files: repository files, as text, by relative POSIX path; they are laid over the image's.
    image: where the rest of the repository and its environment come from; None where the files are all there is.
    """

    files: Mapping[str, str]
    image: Image | None = None


@dataclass(frozen=True)
class TestOracle:
    """How a patch is graded: by these tests, with these files put back as they are here.

    `protected` names the workspace files that the grader restores (the tests); a patch to them counts for nothing.
    `held_out_tests` is a test file, in the form that `rewards.calls` reads, that no agent sees. It grades nothing, but
    code that is right on the calls of the tests alone does not solve the task.
    """

    __test__ = False  # the name starts with "Test", and pytest would collect it

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    protected: tuple[str, ...]
    command: str
    gold_patch: str
    timeout_seconds: float = 20.0
    held_out_tests: str = ""


@dataclass(frozen=True)
class HarnessOracle:
    """How the SWE-bench harness grades: a script in the task's image, whose log a parser of the harness reads.

    eval_script: bash; it restores the tests and prints the harness's markers around what the tests print.
    log_parser: a name in swebench's `PARSER_REGISTRY`. eval_type: `pass_and_fail`, or `fail_only` where the log tells
    of failures alone. protected: paths that the script restores. command: what an agent may run the project's own tests
    by; empty where nothing is known.
    """

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    protected: tuple[str, ...]
    repo: str
    version: str
    eval_script: str
    log_parser: str
    gold_patch: str
    command: str = ""
    eval_type: str = "pass_and_fail"
    timeout_seconds: float = 1800.0


EVAL_TYPES = ("pass_and_fail", "fail_only")
Oracle = TestOracle | HarnessOracle


@dataclass(frozen=True)
class Task:
    """One problem: what the agent is told, what it starts from, and how its patch is graded."""

    id: str
    statement: str
    workspace: Workspace
    oracle: Oracle
    source: str
    split: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The task as plain JSON types; `from_dict` is the inverse."""
        image = self.workspace.image
        return {
            "id": self.id,
            "statement": self.statement,
            "workspace": {"files": dict(self.workspace.files)} | ({"image": asdict(image)} if image else {}),
            "oracle": {key: list(value) if isinstance(value, tuple) else value
                       for key, value in asdict(self.oracle).items()},
            "source": self.source,
            "split": self.split,
            "metadata": dict(self.metadata),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, record: Any) -> Task:
        """Build a task from untrusted JSON. Raises `TaskError` naming the first field that is wrong."""
        reader = Reader(record)
        task_id = reader.get("id", str)
        workspace = Workspace(_files(reader), _image(reader))
        return cls(
            id=task_id,
            statement=reader.get("statement", str),
            workspace=workspace,
            oracle=_oracle(reader, workspace),
            source=reader.get("source", str),
            split=reader.get("split", str),
            metadata=reader.get("metadata", dict),
        )


def _files(reader: Reader) -> dict[str, str]:
    files: dict[str, str] = reader.get("workspace.files", dict)
    for path, text in files.items():
        reader.require(isinstance(text, str), f"workspace.files[{path!r}]", "text", text)
        reader.require(is_inside(path), "workspace.files", "normalised relative paths inside the repository", path)
        folders = map(str, PurePosixPath(path).parents)
        reader.require(files.keys().isdisjoint(folders), "workspace.files", "paths that are not below a file", path)
    return files


def _image(reader: Reader) -> Image | None:
    if not reader.has("workspace.image"):
        return None
    image = Image(**{name: reader.get(f"workspace.image.{name}", str) for name in ("name", "folder", "setup")})
    reader.require(bool(image.name), "workspace.image.name", "the name of an image", image.name)
    reader.require(image.folder.startswith("/"), "workspace.image.folder", "an absolute path", image.folder)
    return image


def _oracle(reader: Reader, workspace: Workspace) -> Oracle:
    """Of the kind that has an `eval_script`, or of the other."""
    return (_harness_oracle if reader.has("oracle.eval_script") else _test_oracle)(reader, workspace)


def _test_oracle(reader: Reader, workspace: Workspace) -> TestOracle:
    held_out = reader.get("oracle.held_out_tests", str) if reader.has("oracle.held_out_tests") else ""
    oracle = TestOracle(**_common(reader), held_out_tests=held_out)
    for path in oracle.protected:
        known = path in workspace.files or workspace.image is not None
        reader.require(known, "oracle.protected", "paths among workspace.files", path)
    return oracle


def _harness_oracle(reader: Reader, workspace: Workspace) -> HarnessOracle:
    texts = ("repo", "version", "eval_script", "log_parser", "eval_type")
    oracle = HarnessOracle(**_common(reader), **{name: reader.get(f"oracle.{name}", str) for name in texts})
    reader.require(workspace.image is not None, "workspace.image", "there for an oracle with an eval_script", None)
    allowed = f"one of {', '.join(EVAL_TYPES)}"
    reader.require(oracle.eval_type in EVAL_TYPES, "oracle.eval_type", allowed, oracle.eval_type)
    return oracle


def _common(reader: Reader) -> dict[str, Any]:
    """What every oracle has."""
    names = reader.strings("oracle.fail_to_pass")
    reader.require(bool(names), "oracle.fail_to_pass", "at least one test", [])
    seconds = float(reader.get("oracle.timeout_seconds", (int, float)))
    reader.require(0 < seconds < inf, "oracle.timeout_seconds", "a number of seconds above 0", seconds)
    return {
        "fail_to_pass": names,
        "pass_to_pass": reader.strings("oracle.pass_to_pass"),
        "protected": reader.strings("oracle.protected"),
        "command": reader.get("oracle.command", str),
        "gold_patch": reader.get("oracle.gold_patch", str),
        "timeout_seconds": seconds,
    }
