"""`Follower`: the lines that are new in a file of JSON lines, which another process writes, cuts back or replaces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from slime_swe.errors import UserError

_PATIENCE = 3  # looks at which a whole line may be no JSON: over NFS its bytes may come after its length


class Follower:
    """Reads on from where it was, by opening the file anew at each look, as NFS wants it.

    A line that is still being written waits. Where the line that was read last is no more where it was, the file was
    cut back or replaced: it is then read again from its start, and what was given before is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end, self._last = 0, b""  # of what was read, in bytes; the last line of it
        self._given = set[tuple[Any, ...]]()
        self._damaged = 0

    def new(self) -> list[dict[str, Any]]:
        """Whole lines that were not given yet, in order; none where there is no file. Raises `UserError` where a line
        is no JSON and stays so."""
        try:
            with self.path.open("rb") as file:
                content = self._unread(file.fileno())
        except FileNotFoundError:
            return []
        return [record for record in self._records(content) if self._is_new(record)]

    def _unread(self, descriptor: int) -> bytes:
        start = self._end - len(self._last)
        if os.pread(descriptor, len(self._last), start) != self._last:
            self._end, self._last = 0, b""
        return _read(descriptor, self._end)

    def _records(self, content: bytes) -> Iterator[dict[str, Any]]:
        for line in content.splitlines(keepends=True):
            if not line.endswith(b"\n"):
                return
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                self._damaged += 1
                if self._damaged >= _PATIENCE:
                    raise UserError(f"{self.path} has a line that is no JSON ({error}): restore the file") from error
                return
            self._damaged = 0
            self._end, self._last = self._end + len(line), line
            yield record

    def _is_new(self, record: dict[str, Any]) -> bool:
        key = tuple(record.get(name) for name in ("kind", "name", "moment", "rollout_id", "attempt"))
        new = key not in self._given
        self._given.add(key)
        return new


def _read(descriptor: int, start: int) -> bytes:
    found = bytearray()
    while part := os.pread(descriptor, 1 << 20, start + len(found)):
        found += part
    return bytes(found)
