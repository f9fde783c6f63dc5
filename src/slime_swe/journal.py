"""`Journal`: an append-only file of JSON lines that can be cut back to where a checkpoint left it."""

from __future__ import annotations

import os
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import orjson

from slime_swe.files import FileError, append, writing


class Journal:
    """One JSON object a line. An append is durable at return, and whole or not at all in the eyes of `read`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        """Return the file's size in bytes; 0 where it does not exist."""
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, record: dict[str, Any]) -> None:
        """Append a record. Raises `FileError` where it can't be written; the file is then as it was."""
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
        with writing(self.path):
            append(self.path, line)

    def read(self) -> list[dict[str, Any]]:
        """Read all whole lines; a half-written last one is left out. Raises `FileError` where another is no JSON."""
        if not self.path.exists():
            return []
        *lines, _ = self.path.read_bytes().split(b"\n")
        try:
            return [orjson.loads(line) for line in lines]
        except orjson.JSONDecodeError as error:
            raise FileError(f"{self.path} has a line that is no JSON ({error}): restore the file") from error

    def cut(self, size: int, attempt: int = 0) -> None:
        """Drop everything after the first `size` bytes, which a checkpoint of that attempt vouches for.

        Raises `FileError` where they are not what the checkpoint saw: whole lines, none of a later attempt.
        """
        have = self.size()
        if have < size:
            raise FileError(
                f"{self.path} has {have} bytes, and the checkpoint says {size}: records are missing from it. "
                "Restore the file, or start a new run"
            )
        if size:
            last = self._line_before(size)
            if last is None or (attempt and (last.get("attempt") or 0) > attempt):
                raise FileError(
                    f"{self.path} is not what the checkpoint saw: its first {size} bytes end "
                    f"{'within a line' if last is None else 'with a record of a later attempt'}. Restore the file, or "
                    "start a new run"
                )
        if have > size:
            with writing(self.path):
                os.truncate(self.path, size)

    def _line_before(self, size: int) -> dict[str, Any] | None:
        """Return the record that ends at `size` bytes; None where none does."""
        with self.path.open("rb") as file, mmap(file.fileno(), size, access=ACCESS_READ) as content:
            line = content[content.rfind(b"\n", 0, size - 1) + 1 :]
        try:
            found = orjson.loads(line) if line.endswith(b"\n") else None
        except orjson.JSONDecodeError:
            return None
        return found if isinstance(found, dict) else None
