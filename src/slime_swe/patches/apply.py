"""Apply a patch to files, as `git apply` does: at the stated lines, with exactly the stated context."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from slime_swe.patches.model import Change, Hunk, PatchError, split_lines
from slime_swe.patches.read import read_patch

Files = Mapping[str, str | bytes]
_MAX_GROWTH = 64 << 20  # bytes; a small patch could copy or unpack far more
_SPECIAL = ("120000", "160000")  # modes of links and submodules


def apply_patch(files: Files, patch: str) -> dict[str, bytes]:
    """The files with the patch applied. Raises `PatchError`.

    A file whose binary change is stated and not carried stays as it is (see `binary_paths`). Files have no modes here.
    """
    tree = _Tree(encoded(files), read_patch(patch))
    result = tree.patched()
    for path in result:
        for parent in _parents(path):
            if parent in result:
                raise PatchError(f"{parent} would be both a file and a folder, of {path}")
    return result


def encoded(files: Files) -> dict[str, bytes]:
    return {path: content.encode() if isinstance(content, str) else content for path, content in files.items()}


class _Tree:
    """Renames and copies read what was there before the patch, other changes what earlier ones have made."""

    def __init__(self, before: dict[str, bytes], changes: Sequence[Change]) -> None:
        self._before = before
        self._changes = changes
        self._leaving = {change.old_path for change in changes if _leaves(change)}
        self._written: dict[str, bytes] = {}
        self._gone: set[str] = set()
        self._room = _MAX_GROWTH + sum(map(len, before.values()))

    def patched(self) -> dict[str, bytes]:
        for change in self._changes:
            self._apply(change)
        return {path: content for path, content in self._before.items() if path not in self._gone} | self._written

    def _apply(self, change: Change) -> None:
        old, new = change.old_path, change.new_path
        if {change.old_mode, change.new_mode}.intersection(_SPECIAL):
            raise PatchError(f"{change.path} is a link or a submodule, which is not supported")
        content = b"" if old is None else self._before.get(old) if change.moved else self._now(old)
        if content is None:
            raise PatchError(f"{old} is not there")
        if new is not None and new != old and self._now(new) is not None and new not in self._leaving:
            raise PatchError(f"{new} exists already")
        if change.only_stated:
            return
        result = _binary(change, content) if change.binary else _text(change, content)
        if old is not None and _leaves(change):
            self._gone.add(old)
            if not change.moved:
                self._written.pop(old, None)
        if new is not None:
            self._write(new, result)
        elif result:
            raise PatchError(f"{old} would be deleted, but the patch leaves {len(result)} bytes of it")

    def _now(self, path: str) -> bytes | None:
        return self._written.get(path, None if path in self._gone else self._before.get(path))

    def _write(self, path: str, content: bytes) -> None:
        self._room -= len(content)
        if self._room < 0:
            raise PatchError(f"the files would grow by more than {_MAX_GROWTH} bytes")
        self._written[path] = content


def _leaves(change: Change) -> bool:
    return change.new_path is None or (change.moved and not change.copied)


def _text(change: Change, content: bytes) -> bytes:
    if not change.hunks:
        return content
    lines = split_lines(content.decode("utf-8", "surrogateescape"))
    return "".join(_patched(change.path, lines, change.hunks)).encode("utf-8", "surrogateescape")


def _patched(path: str, lines: list[str], hunks: Iterable[Hunk]) -> Iterator[str]:
    done = 0
    for hunk in hunks:
        old = hunk.old
        start = hunk.old_start - 1 if old else hunk.old_start
        if start < done or start > len(lines) or lines[start : start + len(old)] != old:
            raise PatchError(f"{path} does not have the lines that the patch expects at line {start + 1}")
        yield from lines[done:start]
        yield from hunk.new
        done = start + len(old)
    yield from lines[done:]


def _binary(change: Change, content: bytes) -> bytes:
    """Upstream: git's apply.c (`apply_binary_fragment`) and patch-delta.c."""
    assert change.binary is not None
    head, *lines = change.binary.forward.splitlines()
    kind, size = head.split(" ")
    try:
        packed = b"".join(base64.b85decode(line[1:])[: _length(line[0])] for line in lines)
        unpacked = zlib.decompressobj().decompress(packed, min(int(size) + 1, _MAX_GROWTH))
        if len(unpacked) != int(size):
            raise ValueError(f"{size} bytes are stated, {len(unpacked)} are there")
        return unpacked if kind == "literal" else _from_delta(content, unpacked)
    except (ValueError, IndexError, zlib.error) as error:
        raise PatchError(f"{change.path}: the binary patch can't be read, or is of another file: {error}") from error


def _length(letter: str) -> int:
    """Bytes in a line of a binary patch: A to Z are 1 to 26, a to z are 27 to 52."""
    return ord(letter) - 64 if letter <= "Z" else ord(letter) - 70


def _from_delta(before: bytes, delta: bytes) -> bytes:
    """Git's delta: the sizes before and after, then commands that copy a piece of `before` or insert what follows."""
    old_size, at = _size(delta, 0)
    new_size, at = _size(delta, at)
    if old_size != len(before) or new_size > _MAX_GROWTH:
        raise ValueError(f"it is of a file of {old_size} bytes")
    result = bytearray()
    while at < len(delta) and len(result) <= new_size:
        command, at = delta[at], at + 1
        if command & 0x80:
            flags = [bool(command & 1 << bit) for bit in range(7)]
            numbers = [delta[at + sum(flags[:bit])] if flags[bit] else 0 for bit in range(7)]
            at += sum(flags)
            start = int.from_bytes(bytes(numbers[:4]), "little")
            count = int.from_bytes(bytes(numbers[4:]), "little") or 0x10000
            if start + count > len(before):
                raise ValueError("it copies what is not there")
            result += before[start : start + count]
        else:
            result += delta[at : at + command]
            at += command
    if len(result) != new_size:
        raise ValueError(f"{new_size} bytes are stated, {len(result)} are made")
    return bytes(result)


def _size(delta: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    number = shift = 0
    while True:
        byte = delta[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
        if shift > 63:
            raise ValueError("a number is too large")


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]
