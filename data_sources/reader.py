"""`Reader`: typed fields out of an untrusted record, so that each error says where it is and what is allowed."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any


class TaskError(ValueError):
    """A task record is malformed; the message names the task, the field and what is allowed."""


class Reader:
    """Reads one record. Fields are named by dotted keys; `key` is the one that holds the task's name."""

    def __init__(self, record: Any, *, key: str = "id") -> None:
        if not isinstance(record, dict):
            raise TaskError(f"a task must be a JSON object, not {type(record).__name__}")
        self._record = record
        self.name: str = record[key] if isinstance(record.get(key), str) else "<no id>"

    def has(self, dotted: str) -> bool:
        """Whether the field is there and not null."""
        value: Any = self._record
        for key in dotted.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        return value is not None

    def get(self, dotted: str, kind: type | tuple[type, ...]) -> Any:
        value: Any = self._record
        for key in dotted.split("."):
            if not isinstance(value, dict) or key not in value:
                raise TaskError(f"task {self.name!r}: field {dotted!r} is missing")
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
            raise TaskError(f"task {self.name!r}: field {where!r} must be {allowed}, got {str(given)[:80]!r}")


def is_inside(path: str) -> bool:
    """Whether a path is written as the sandbox and a patch write it, so that a file has one name only."""
    pure = PurePosixPath(path)
    return str(pure) == path != "." and not pure.is_absolute() and ".." not in pure.parts and "\0" not in path
