"""Single steps of solved episodes: the policy is shown an episode up to a step, and takes that step itself.

`slime-swe sft` writes the episodes (`steps:FILE`). Nothing is run: a step is worth how far its calls agree with those
that the episode made there (`rewards/steps.py`). The prompt is the episode's own tokens, so it is of one vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from slime_swe.data_sources.task import Oracle, Task, Workspace
from slime_swe.errors import UserError
from slime_swe.journal import Place
from slime_swe.patches import make_patch

ANSWER = "step.json"  # in which an agent leaves its calls
STEP = "step"  # in a task's metadata: `Step`
MOST_ALIKE = 0.05  # of a file's steps, those with the same calls: else one answer to all of them would earn something


class Call(msgspec.Struct, frozen=True):
    """One tool call of a step."""

    name: str
    arguments: dict[str, Any]


class Step(msgspec.Struct, frozen=True):
    """Where a step's prompt is: the first `prompt` tokens of a line of `file`."""

    file: str
    line: Place
    prompt: int


class _Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class _ToolCall(msgspec.Struct, frozen=True):
    function: _Function


class Message(msgspec.Struct, frozen=True):
    """A chat message of the file. step_loss_mask: 1 where an assistant's is trained."""

    role: str
    content: str | None = ""
    tool_calls: list[_ToolCall] = []
    step_loss_mask: int = 0


class Line(msgspec.Struct, frozen=True):
    """A line of the file, as far as it is needed (docs/warm_start.md). replies: the first token of each reply that is
    trained, and the one behind it."""

    episode: str
    messages: list[Message]
    tokens: list[int] = []
    replies: list[tuple[int, int]] = []
    tools: list[dict[str, Any]] = []
    vocabulary: str = ""


def read_calls(text: str) -> list[Call]:
    """Read the calls of an answer. Raises `ValueError`, and nothing else."""
    try:
        calls = msgspec.json.decode(text.encode(), type=list[Call])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{error}"[:200]) from None
    return calls


@dataclass(frozen=True)
class StepOracle(Oracle):
    """Grades one step by its tool calls. calls: those of the episode, as JSON: a list of `name` and `arguments`."""

    kind: ClassVar[str] = "step"
    grader: ClassVar[str] = "slime_swe.rewards.steps.try_patch"
    deterministic: ClassVar[bool] = True
    by_degree: ClassVar[bool] = True

    fail_to_pass: tuple[str, ...] = ("same_calls",)
    calls: str = "[]"

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        try:
            if not read_calls(self.calls):
                yield "calls must be at least one call, got []"
        except ValueError as error:
            yield f"calls must be a JSON list of objects with name and arguments: {error}"


def load(path: str) -> list[Task]:
    """Return a task for each step of the episodes in a file that `slime-swe sft` has written, in order.

    A step is a reply that is trained there and has calls. Of steps with the same calls at most `MOST_ALIKE` of all are
    taken, the first ones. Raises `UserError` where the file is not there, or was written without tokens.
    """
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise UserError(f"there is no file {path}: `slime-swe sft RUN ... --out {path}` writes one of solved episodes")
    found, start = list[Task](), 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            place = Place.of(line, start)
            found += _steps(read_line(line, f"{path}, line {number}"), file, place)
            start = place.end
    most, alike = ceil(MOST_ALIKE * len(found)), Counter[str]()
    taken = []
    for task in found:
        assert isinstance(task.oracle, StepOracle)
        alike[task.oracle.calls] += 1
        if alike[task.oracle.calls] <= most:
            taken.append(task)
    return taken


def read_line(line: bytes, where: str) -> Line:
    """Read a line of the file. Raises `UserError` for what is none, or has no tokens."""
    try:
        found = msgspec.json.decode(line, type=Line)
    except msgspec.DecodeError as error:
        raise UserError(f"{where} is no line that `slime-swe sft` has written: {error}") from error
    if not found.tokens:
        raise UserError(
            f"{where} has no tokens, as an endpoint gives none: a step's prompt is the episode's own tokens"
        )
    return found


def _steps(line: Line, file: Path, place: Place) -> Iterator[Task]:
    """Yield the steps of a line."""
    replies = [at for at, message in enumerate(line.messages) if message.step_loss_mask]
    if len(line.replies) != len(replies) or any(not 0 < start < len(line.tokens) for start, _ in line.replies):
        raise UserError(
            f"{file}: {line.episode} has {len(replies)} replies to train, and names the places of {len(line.replies)}: "
            "write the file anew by `slime-swe sft`"
        )
    for number, (at, (start, _)) in enumerate(zip(replies, line.replies, strict=True), 1):
        calls = calls_of(line.messages[at])
        if calls:
            step = Step(str(file), place, start)
            yield _task(f"{line.episode}-step{number}", line.messages[:at], calls, step)


def calls_of(message: Message) -> str:
    """Return the calls of a message as an answer; empty where it has none, or one that the policy wrote wrongly."""
    calls = []
    for call in message.tool_calls:
        try:
            arguments = msgspec.json.decode(call.function.arguments, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError):
            return ""
        calls.append(Call(call.function.name, arguments))
    return written(calls) if calls else ""


def written(calls: Sequence[Call]) -> str:
    return msgspec.json.encode(calls).decode()


def _task(name: str, shown: Sequence[Message], calls: str, step: Step) -> Task:
    last = next((message.content or "" for message in reversed(shown) if message.role != "assistant"), "")
    statement = f"Take the next step of an episode, {name}. What it saw last:\n{last[-500:]}"
    oracle = replace(StepOracle(), calls=calls, gold_patch=make_patch({}, {ANSWER: calls}))
    return Task(name, statement, Workspace(), oracle, "steps", step.file, {STEP: msgspec.to_builtins(step)})


def prompt_of(task: Task) -> tuple[list[int], Line]:
    """Read a step's prompt, and the line that it is of. Raises `UserError` where the file has changed, or is gone."""
    step = msgspec.convert(task.metadata[STEP], Step)
    try:
        found = step.line.read(Path(step.file))
    except OSError as error:
        raise UserError(f"can't read {step.file}, whose steps are trained on: {error.strerror}") from error
    if found is None:
        raise UserError(f"{step.file} has changed since its steps were read: bring it back, or start a new run")
    line = read_line(found, step.file)
    return line.tokens[: step.prompt], line
