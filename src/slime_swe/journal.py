"""Journals: files of JSON lines that are only appended to.

`encoded` makes a line of what hooks leave in samples, with numpy's numbers and texts that are no UTF-8. `Journal` is
cut back to where a checkpoint left it, and of a large one `LineIndex` finds each line by its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO, Generic, Self, TypeVar
from zlib import crc32

import msgspec
import orjson

from slime_swe.errors import UserError
from slime_swe.files import FileError, append, replace_file, writing

A = TypeVar("A")
_LAST = 1 << 16  # bytes of an index, among which its last line is; and of a journal, read at once from its end
_OPTIONS = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def encoded(values: Any) -> bytes:
    """Return a line of JSON, with its newline. Raises `TypeError` for what has no JSON type."""
    try:
        return orjson.dumps(values, option=_OPTIONS, default=_plain)
    except TypeError:
        return orjson.dumps(_escaped(values), option=_OPTIONS, default=_plain)


def printable(value: Any) -> Any:
    """Escape lone surrogates, which JSON can't hold: a file whose name is no UTF-8 brings them in."""
    try:
        orjson.dumps(value, option=_OPTIONS, default=_plain)
    except TypeError:
        return _escaped(value)
    return value  # it has none


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_escaped(key): _escaped(inner) for key, inner in value.items()}
    return [_escaped(inner) for inner in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a trajectory holds {type(value).__name__}, which is no JSON type")


def as_json(values: Any) -> Any:
    """Return the values in JSON's types alone: what `encoded` writes, read back. Raises `TypeError` as it does."""
    return orjson.loads(encoded(values))


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


# `LineIndex`: where each line of a journal is, and what it is about, in a file beside the journal.
#
# One line of a journal is then found and read without the others. The index is a help and never the truth: it is
# written after the journal, and what of it does not fit the journal is made anew from the journal's own lines.


class Place(msgspec.Struct, frozen=True, array_like=True):
    """A line: its first byte, its length with the newline, and its CRC-32."""

    start: int
    length: int
    check: int

    @classmethod
    def of(cls, line: bytes, start: int) -> Self:
        return cls(start, len(line), crc32(line))

    @property
    def end(self) -> int:
        return self.start + self.length

    def read(self, journal: Path) -> bytes | None:
        """Read the line that is here; None where another one is."""
        with journal.open("rb") as file:
            return self.within(file)

    def within(self, journal: BinaryIO) -> bytes | None:
        """Do what `read` does in an open file."""
        journal.seek(self.start)
        line = journal.read(self.length)
        return line if self == Place.of(line, self.start) else None


class LineIndex(Generic[A]):
    """The index of one journal: `NAME.index` beside `NAME.jsonl`.

    about: makes what the index keeps of a line; it is given the line, and a name of it for errors. kind: the type of
    that. A journal may be appended to, by `append`, and cut back to the end of a line. Another change is noticed where
    the last line is no more what it was, or when the changed line is read; not when only `read` is called.
    """

    def __init__(self, journal: Path, about: Callable[[bytes, str], A], kind: type[A]) -> None:
        self.journal, self.path = journal, journal.with_suffix(".index")
        self._about = about
        self._decoder = msgspec.json.Decoder(tuple[Place, kind])  # type: ignore[valid-type]

    def append(self, lines: Sequence[bytes]) -> None:
        """Append whole lines to the journal, all of them or none, durably, and then to the index.

        First the index is made to fit the journal, as it may be short, or have lines that the journal has no more. An
        index that can't be written stays as it is: readers make up for it. Raises `UserError`, and appends nothing,
        where a line is not what journals hold. What a crash has left of a line is removed.
        """
        size = self._without_half_line()
        fits = self._ends_at(size) or self._repair()
        entries = [*self._entries(lines, size, "appended line", first=1)]
        append(self.journal, b"".join(lines))
        if fits:
            with suppress(OSError):
                append(self.path, _written(entries))

    def read(self) -> list[tuple[Place, A]]:
        """Return each line's place, and what it is about. A line that is still being written is left out.

        Raises `UserError` where a line is not what journals hold.
        """
        if not self.journal.exists():
            return []
        with self.journal.open("rb") as journal:
            known = self._known(journal)
            end = known[-1][0].end if known else 0
            journal.seek(end)
            whole = (line for line in journal if line.endswith(b"\n"))
            return [*known, *self._entries(whole, end, "line", first=len(known) + 1)]

    def line(self, place: Place) -> bytes:
        """Read the line at a place, and no other. Raises `UserError` where another one stands there."""
        line = place.read(self.journal)
        if line is None:
            raise UserError(
                f"{self.journal} has changed since {self.path.name} was written: remove {self.path}, which is made anew"
            )
        return line

    def _without_half_line(self) -> int:
        """Cut the journal back to the end of a line, as the next one would be glued to what is there. Returns its size
        in bytes."""
        if not self.journal.exists():
            return 0
        with self.journal.open("r+b") as journal:
            end = size = journal.seek(0, 2)
            while end:
                start = max(0, end - _LAST)
                journal.seek(start)
                newline = journal.read(end - start).rfind(b"\n")
                if newline >= 0:
                    end = start + newline + 1
                    break
                end = start
            if end < size:
                journal.truncate(end)
        return end

    def _entries(self, lines: Iterable[bytes], start: int, what: str, first: int) -> Iterator[tuple[Place, A]]:
        for number, line in enumerate(lines, first):
            yield Place.of(line, start), self._about(line, f"{self.journal}, {what} {number}")
            start += len(line)

    def _known(self, journal: BinaryIO) -> list[tuple[Place, A]]:
        """Return what the index has of the journal's lines; nothing where the last of them is another one now."""
        size, end = journal.seek(0, 2), 0
        entries = []
        for line in self._lines():
            entry = self._decoded(line)
            if entry is None or entry[0].start != end or entry[0].end > size:
                break
            entries.append(entry)
            end = entry[0].end
        return entries if entries and entries[-1][0].within(journal) else []

    def _lines(self) -> list[bytes]:
        """Read the lines of the index; none where it can't be read."""
        try:
            return self.path.read_bytes().splitlines(keepends=True)
        except OSError:
            return []

    def _decoded(self, line: bytes) -> tuple[Place, A] | None:
        """Decode a line of the index; None for what is half written, or of another version."""
        try:
            return self._decoder.decode(line) if line.endswith(b"\n") else None
        except msgspec.DecodeError:
            return None

    def _ends_at(self, size: int) -> bool:
        """Say whether the index's last line is about the last one of the journal, which has `size` bytes."""
        if not size or not self.path.is_file():
            return not size and not self.path.exists()
        with self.path.open("rb") as index, self.journal.open("rb") as journal:
            index.seek(max(0, index.seek(0, 2) - _LAST))
            *_, last = index.read().splitlines(keepends=True) or [b""]
            entry = self._decoded(last)
            return entry is not None and entry[0].end == size and entry[0].within(journal) is not None

    def _repair(self) -> bool:
        """Make the index fit the journal. Returns False where it can't be done: then it is removed, if that can be."""
        try:
            self.journal.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, _written(self.read()))
            return True
        except (OSError, UserError):
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            return False


def _written(entries: Iterable[tuple[Place, A]]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
