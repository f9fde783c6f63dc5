"""The native agent's tools. `TOOLS` lists them in prompt order."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any, Protocol

from slime_swe.data_sources.task import Task
from slime_swe.data_sources.test_log import parse_test_log
from slime_swe.sandbox.base import ExecResult, Sandbox

MAX_FILE = 20_000  # characters of a file that `view` shows
MAX_LOG = 8_000  # characters of a test log


@dataclass(frozen=True)
class ToolResult:
    """The text that the policy is shown. `ok` is False where the call did nothing; `submitted` ends the episode."""

    text: str
    ok: bool = True
    submitted: bool = False


@dataclass(frozen=True)
class ToolSpec:
    """A tool as the chat template sees it. Every parameter is a string; all are required unless in `optional`."""

    name: str
    description: str
    parameters: dict[str, str] = field(default_factory=dict)  # name -> description
    optional: frozenset[str] = frozenset()

    def schema(self) -> dict[str, Any]:
        """Return the OpenAI function-calling JSON schema, as chat templates take it."""
        properties = {name: {"type": "string", "description": text} for name, text in self.parameters.items()}
        required = [name for name in self.parameters if name not in self.optional]
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {"type": "object", "properties": properties, "required": required},
            },
        }

    def check(self, arguments: dict[str, Any]) -> str | None:
        """Return what is wrong with the arguments, said to the policy; None when nothing is."""
        for name in self.parameters:
            if name not in arguments:
                if name in self.optional:
                    continue
                return f"{self.name}: argument {name!r} is missing"
            if not isinstance(arguments[name], str):
                return f"{self.name}: argument {name!r} must be a string, got {type(arguments[name]).__name__}"
            try:
                arguments[name].encode("utf-8")
            except UnicodeEncodeError:  # JSON can spell it; no file, command or tokenizer can take it
                return f"{self.name}: argument {name!r} must be text, got half of a surrogate pair"
        unknown = [name for name in arguments if name not in self.parameters]
        if unknown:
            return f"{self.name}: unknown argument {unknown[0]!r}; allowed: {', '.join(self.parameters) or 'none'}"
        return None


class Tool(Protocol):
    spec: ToolSpec

    async def __call__(self, sandbox: Sandbox, task: Task, arguments: dict[str, Any]) -> ToolResult:
        """Act. A mistake of the policy is a `ToolResult` with `ok=False`; only `SandboxError` is raised."""
        ...


class Bash:
    spec = ToolSpec("bash", "Run a shell command in the repository.", {"command": "The command."})

    async def __call__(self, sandbox: Sandbox, task: Task, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(describe(await sandbox.exec(arguments["command"])))


def describe(result: ExecResult) -> str:
    """Return the command's output, then how it ended where that was not plain success."""
    lines = [result.output.rstrip("\n")] if result.output.strip() else []
    if result.timed_out:
        lines.append(f"[killed after {result.seconds:.0f} s]")
    elif result.exit_code:
        lines.append(f"[exit code {result.exit_code}]")
    return "\n".join(lines) or "[no output]"


class View:
    spec = ToolSpec("view", "Show a file.", {"path": "Relative path."})

    async def __call__(self, sandbox: Sandbox, task: Task, arguments: dict[str, Any]) -> ToolResult:
        path = arguments["path"]
        try:
            content = await sandbox.read_file(path)
        except FileNotFoundError:
            return ToolResult(f"No such file: {path}", ok=False)
        except IsADirectoryError:
            listing = await sandbox.exec(f"ls -p -- {shlex.quote(path)}")
            return ToolResult(listing.output.rstrip("\n"))
        return ToolResult(render_file(content))


def render_file(content: bytes) -> str:
    """Cut a file for the policy: its text without the last newline, up to `MAX_FILE` characters."""
    text = content.decode("utf-8", errors="replace").rstrip("\n")
    if len(text) > MAX_FILE:
        text = f"{text[:MAX_FILE]}\n[cut: {len(text) - MAX_FILE} more characters]"
    return text


class StrReplace:
    spec = ToolSpec(
        "str_replace",
        "Replace text that occurs once in a file; without old_str, write the whole file.",
        {"path": "Relative path.", "old_str": "Text to replace.", "new_str": "Text to put there."},
        optional=frozenset({"old_str"}),
    )

    async def __call__(self, sandbox: Sandbox, task: Task, arguments: dict[str, Any]) -> ToolResult:
        path, old, new = arguments["path"], arguments.get("old_str"), arguments["new_str"]
        if old is None:
            await sandbox.write_file(path, (new.rstrip("\n") + "\n").encode("utf-8"))
            return ToolResult(f"Edited {path}")
        try:
            content = (await sandbox.read_file(path)).decode("utf-8")
        except (FileNotFoundError, IsADirectoryError):
            return ToolResult(f"No such file: {path}", ok=False)
        except UnicodeDecodeError:
            return ToolResult(f"{path} is not text", ok=False)
        edited, message = replace(content, path, old, new)
        if edited is None:
            return ToolResult(message, ok=False)
        await sandbox.write_file(path, edited.encode("utf-8"))
        return ToolResult(message)


def replace(content: str, path: str, old: str, new: str) -> tuple[str | None, str]:
    """Return the edited text and what the policy is shown; the text is None where nothing was replaced."""
    count = content.count(old) if old else 0
    if count == 1:
        if old == new:
            return None, "old_str and new_str are the same"
        return content.replace(old, new), f"Edited {path}"
    if count == 0:
        return None, f"old_str not found in {path}"
    return None, f"old_str occurs {count} times in {path}: make it longer"


class RunTests:
    spec = ToolSpec("run_tests", "Run the tests.")

    async def __call__(self, sandbox: Sandbox, task: Task, arguments: dict[str, Any]) -> ToolResult:
        command = task.oracle.agent_command
        if not command:
            return ToolResult("No test command is known here: use bash.", ok=False)
        result = await sandbox.exec(command, timeout=task.oracle.timeout_seconds)
        return ToolResult(render_log(describe(result)))


def render_log(output: str) -> str:
    """Return the runner's output without its PASSED lines; of a long one, the end, where the summary is."""
    text = "\n".join(line for line in output.splitlines() if not line.startswith("PASSED "))
    return text if len(text) <= MAX_LOG else f"[cut]\n{text[-MAX_LOG:]}"


class Submit:
    spec = ToolSpec("submit", "Finish.")

    async def __call__(self, sandbox: Sandbox, task: Task, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult("Submitted", submitted=True)


TOOLS: tuple[Tool, ...] = (Bash(), View(), StrReplace(), RunTests(), Submit())


# A further try after the test output of the last, as Aider's benchmark gives a second one.
async def failing_tests(sandbox: Sandbox, task: Task) -> str | None:
    """Run the task's tests and return what they print; None where all pass, or where no command is known.

    Hidden tests lie in the agent's sandbox while they run. What is printed decides whether there is another try, never
    the reward. Raises `SandboxError`.
    """
    oracle, hidden = task.oracle, task.oracle.grading_files
    if not oracle.command:
        return None
    try:
        for path, text in hidden.items():
            await sandbox.write_file(path, text.encode())
        result = await sandbox.exec(oracle.command, timeout=oracle.timeout_seconds)
    except OSError as error:  # something is in the way of a test
        return error.strerror or str(error)
    finally:
        if hidden:
            await sandbox.exec(f"rm -rf -- {shlex.join(hidden)}")
    passed = parse_test_log(result.output)
    if not result.timed_out and all(passed.get(name) for name in (*oracle.fail_to_pass, *oracle.pass_to_pass)):
        return None
    return render_log(describe(result))
