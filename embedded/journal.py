"""`Journal`: an append-only file of JSON lines that can be cut back to where a checkpoint left it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson

from slime_swe.files import FileError, append, writing


class Journal:
    """One JSON object a line. An append is durable at return, and whole or not at all in the eyes of `read`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        """Bytes; 0 where the file does not exist."""
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, record: dict[str, Any]) -> None:
        """Raises `FileError` where it can't be written; the file is then as it was."""
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
        with writing(self.path):
            append(self.path, line)

    def read(self) -> list[dict[str, Any]]:
        """All whole lines; a half-written last one is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        return [orjson.loads(line) for line in lines[:-1]]

    def cut(self, size: int) -> None:
        """Drop everything after the first `size` bytes, which a checkpoint vouches for."""
        have = self.size()
        if have < size:
            raise FileError(
                f"{self.path} has {have} bytes, and the checkpoint says {size}: records are missing from it. "
                "Restore the file, or start a new run"
            )
        if have > size:
            with writing(self.path):
                os.truncate(self.path, size)
