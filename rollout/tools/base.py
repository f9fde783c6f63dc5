"""`Tool`: one thing the agent can do. Each tool is a sibling file; `rollout.tools.TOOLS` lists them in prompt order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from data_sources.task import Task
from rollout.sandbox.base import Sandbox


@dataclass(frozen=True)
class ToolResult:
    """What the policy is shown. `ok` is False where the call did nothing; `submitted` ends the episode."""

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
        """The OpenAI function-calling JSON schema, as chat templates take it."""
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
        """What is wrong with the arguments, said to the policy; None when nothing is."""
        for name in self.parameters:
            if name not in arguments:
                if name in self.optional:
                    continue
                return f"{self.name}: argument {name!r} is missing"
            if not isinstance(arguments[name], str):
                return f"{self.name}: argument {name!r} must be a string, got {type(arguments[name]).__name__}"
            if not _is_text(arguments[name]):
                return f"{self.name}: argument {name!r} must be text, got half of a surrogate pair"
        unknown = [name for name in arguments if name not in self.parameters]
        if unknown:
            return f"{self.name}: unknown argument {unknown[0]!r}; allowed: {', '.join(self.parameters) or 'none'}"
        return None


def _is_text(value: str) -> bool:
    """JSON can spell half of a surrogate pair, which no file, command or tokenizer can take."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class Tool(Protocol):
    spec: ToolSpec

    async def __call__(self, sandbox: Sandbox, task: Task, arguments: dict[str, Any]) -> ToolResult:
        """Act. A mistake of the policy is a `ToolResult` with `ok=False`; only `SandboxError` is raised."""
        ...
