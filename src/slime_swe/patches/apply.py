"""Apply a patch to files, as `git apply` does, but at the stated lines only: what does not fit there is refused.

What is accepted, git accepts too (where names have no prefix, with `-p0`), with the same result. Three things are
accepted beside that: a binary change that is stated and not carried, a last line that does not end, and no change.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slime_swe.patches.unified import (
    Binary,
    Change,
    Hunk,
    PatchError,
    read_patch,
    require_few_folders,
    split_lines,
    write_patch,
)

Files = Mapping[str, str | bytes]
_MAX_GROWTH = 16 << 20  # bytes; a small patch could copy or unpack far more
_MAX_CHANGES = 10_000  # files
_PLAIN_FILE = "100"  # what its mode begins with; those of links and submodules do not
_HASHES = {40: "sha1", 64: "sha256"}  # hexadecimal digits -> of git's names of contents
_LINE = re.compile(r"([A-Za-z])((?:[!-~]{5}){1,13})\n")


def apply_patch(files: Files, patch: str) -> dict[str, bytes]:
    """Return the files with the patch applied. Raises `PatchError`.

    A file whose binary change is stated and not carried stays as it is (see `binary_paths`). Files have no modes here.
    """
    changes = read_patch(patch)
    if len(changes) > _MAX_CHANGES:
        raise PatchError(f"the patch changes {len(changes)} files, more than {_MAX_CHANGES}")
    require_few_folders(change.path for change in changes)
    result = _Tree(encoded(files), changes).patched()
    require_no_file_in_file(result)
    return result


def require_no_file_in_file(paths: Iterable[str]) -> None:
    """Raise `PatchError` where one of the paths would be a folder of another."""
    for path, following in pairwise(sorted(f"{path}/" for path in paths)):  # what is in a folder follows it
        if following.startswith(path):
            raise PatchError(f"{path[:-1]} would be both a file and a folder, of {following[:-1]}")


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
        modes = {change.old_mode, change.new_mode, change.index.partition(" ")[2]} - {""}
        if not all(mode.startswith(_PLAIN_FILE) for mode in modes):
            raise PatchError(f"{change.path} is a link or a submodule, which is not supported")
        if old in self._written and not change.moved and _leaves(change):
            raise PatchError(f"{old} is deleted after it was changed")
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
    """Return the content with the hunks applied."""
    pieces: list[bytes] = []
    place = line = moved = 0  # bytes and lines of the content that are done; lines that it has grown by
    for number, hunk in enumerate(change.hunks):
        old, new = (_joined(lines) for lines in (hunk.old, hunk.new))
        start = hunk.old_start - 1 if hunk.old else hunk.old_start
        at = _after_lines(content, place, start - line)
        unended = not old.endswith(b"\n") and old != content[at:]
        if at < 0 or not content.startswith(old, at) or (old and unended):
            raise PatchError(f"{change.path} does not have the lines that the patch expects at line {start + 1}")
        if hunk.new_start != start + moved + bool(hunk.new):
            raise PatchError(f"{change.path}: the line numbers of a hunk, {hunk.new_start} the new one, do not fit")
        # As git has it without `--unidiff-zero`: a hunk for the first line begins the file, one without context behind
        # its changes ends it.
        if hunk.lines[-1][0] != " " and (at + len(old) < len(content) or number + 1 < len(change.hunks)):
            raise PatchError(f"{change.path}: a hunk has no context behind it, and is not at the end")
        if not hunk.old and hunk.old_start == 1:
            raise PatchError(f"{change.path}: a hunk has no context before it, and is not at the start")
        pieces += [content[place:at], new]
        place, line, moved = at + len(old), start + len(hunk.old), moved + len(hunk.new) - len(hunk.old)
    return b"".join([*pieces, content[place:]])


def _joined(lines: list[str]) -> bytes:
    return "".join(lines).encode("utf-8", "surrogateescape")


def _after_lines(content: bytes, place: int, lines: int) -> int:
    """Return the place so many lines after `place`; -1 where there are fewer, or the number is negative."""
    for _ in range(lines):
        if place == len(content):
            return -1
        end = content.find(b"\n", place)
        place = end + 1 if end >= 0 else len(content)
    return place if lines >= 0 else -1


def _binary(change: Change, content: bytes) -> bytes:
    """Apply a binary change, for which git wants the whole names of both contents. Upstream: git's apply.c
    (`apply_binary`) and patch-delta.c."""
    assert change.binary is not None
    before, _, after = change.index.partition(" ")[0].partition("..")
    if not {len(before), len(after)} <= _HASHES.keys():
        raise PatchError(f"{change.path}: a binary patch has to say whole in its index line what it changes")
    if before != _object_name(change.old_path, content, len(before)):
        raise PatchError(f"{change.path}: the binary patch is of another file")
    try:
        kind, unpacked = _unpacked(change.binary.forward)
        if change.binary.backward:
            _unpacked(change.binary.backward)
        result = unpacked if kind == "literal" else _from_delta(content, unpacked)
    except (ValueError, IndexError, zlib.error) as error:
        raise PatchError(f"{change.path}: the binary patch can't be read, or is of another file: {error}") from error
    if after != _object_name(change.new_path, result, len(after)):
        raise PatchError(f"{change.path}: the binary patch does not make what it says")
    return result


def _object_name(path: str | None, content: bytes, digits: int) -> str:
    """Return git's name of a content, with so many hexadecimal digits; zeros where there is no file."""
    if path is None:
        return "0" * digits
    return hashlib.new(_HASHES[digits], b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()


def _unpacked(block: str) -> tuple[str, bytes]:
    """Return a block's kind, `literal` or `delta`, and its data. Raises `ValueError`, `zlib.error`."""
    head, _, body = block.partition("\n")
    kind, size = head.split(" ")
    packed = []
    for line in body.splitlines(keepends=True):
        match = _LINE.fullmatch(line)
        count = _length(line[0]) if match else 0
        if match is None or not len(match[2]) // 5 * 4 - 4 < count <= len(match[2]) // 5 * 4:
            raise ValueError(f"a line of it is {line!r}")
        packed.append(base64.b85decode(match[2])[:count])
    stream = zlib.decompressobj()
    data = stream.decompress(b"".join(packed), min(int(size) + 1, _MAX_GROWTH))
    if len(data) != int(size) or not stream.eof:
        raise ValueError(f"{size} bytes are stated, {len(data)} are there")
    return kind, data


def _length(letter: str) -> int:
    """Return how many bytes a line of a binary patch has: A to Z are 1 to 26, a to z are 27 to 52."""
    return ord(letter) - 64 if letter <= "Z" else ord(letter) - 70


def _from_delta(before: bytes, delta: bytes) -> bytes:
    """Apply a delta: the sizes before and after, then commands that copy a piece of `before` or insert what follows."""
    old_size, at = _size(delta, 0)
    new_size, at = _size(delta, at)
    if old_size != len(before) or new_size > _MAX_GROWTH:
        raise ValueError(f"it is of a file of {old_size} bytes")
    result = bytearray()
    while at < len(delta) and len(result) <= new_size:
        command, at = delta[at], at + 1
        if not command:
            raise ValueError("it holds a command of no kind")
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
            if at + command > len(delta):
                raise ValueError("it ends too early")
            result += delta[at : at + command]
            at += command
    if len(result) != new_size:
        raise ValueError(f"{new_size} bytes are stated, {len(result)} are made")
    return bytes(result)


def _size(delta: bytes, at: int) -> tuple[int, int]:
    """Read a number of seven bits a byte, the lowest first; return it and where it ends."""
    number = shift = 0
    while True:
        byte = delta[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
        if shift > 63:
            raise ValueError("a number is too large")


# Make the patch between two sets of files, in time that grows with their size and no faster.
#
# Lines are matched as in `git diff --patience`: those that occur once on either side are anchors, and what lies between
# is matched in the same way. Where there is no anchor, the fewest edits are sought, if they are `_EDITS` at most. Files
# that would take more than `_WORK` together are matched as far as that goes, and what is left of each is one
# replacement.
MAX_PATCH_BYTES = 1 << 20
OVERSIZED = f"The patch has more than {MAX_PATCH_BYTES} bytes and is left out.\n"  # as a patch it changes nothing

_CONTEXT = 3  # lines
_EDITS = 500  # between two anchors
_WORK = 6_000_000  # lines compared for one patch: some three seconds

Pair = tuple[int, int]
Edit = tuple[int, int, int, int]  # old lines from, to; new lines from, to


@dataclass
class _Work:
    left: int = _WORK


def make_patch(before: Files, after: Files) -> str:
    """Return the patch from `before` to `after`; empty where they are equal.

    A file that is not UTF-8 text, before or after, is only named, by git's line `Binary files … differ`.
    """
    return "".join(_file_patches(before, after))


def bounded_patch(before: Files, after: Files) -> str:
    """Make a patch as `make_patch` does; return `OVERSIZED` in place of one of more than `MAX_PATCH_BYTES`."""
    pieces: list[str] = []
    size = 0
    for piece in _file_patches(before, after):
        size += len(piece.encode())
        if size > MAX_PATCH_BYTES:
            return OVERSIZED
        pieces.append(piece)
    return "".join(pieces)


def _file_patches(before: Files, after: Files) -> Iterator[str]:
    old, new = encoded(before), encoded(after)
    work = _Work()
    for path in sorted({*old, *new}):
        if old.get(path) != new.get(path):
            yield write_patch([_change(path, old.get(path), new.get(path), work)])


def _change(path: str, before: bytes | None, after: bytes | None, work: _Work) -> Change:
    change = Change(None if before is None else path, None if after is None else path)
    old, new = _diff_text(before or b""), _diff_text(after or b"")
    if old is None or new is None:
        change.binary = Binary()
    else:
        change.hunks = list(_hunks(split_lines(old), split_lines(new), work))
    return change


def _diff_text(content: bytes) -> str | None:
    """Decode the content as UTF-8; None where it is not text."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _hunks(old: list[str], new: list[str], work: _Work) -> Iterator[Hunk]:
    for group in _groups(_edits(old, new, work)):
        old_from, new_from = max(group[0][0] - _CONTEXT, 0), max(group[0][2] - _CONTEXT, 0)
        old_to, new_to = min(group[-1][1] + _CONTEXT, len(old)), min(group[-1][3] + _CONTEXT, len(new))
        hunk = Hunk(old_from + (old_to > old_from), new_from + (new_to > new_from))
        at = old_from
        for old_start, old_end, new_start, new_end in group:
            hunk.lines += [f" {line}" for line in old[at:old_start]]
            hunk.lines += [f"-{line}" for line in old[old_start:old_end]]
            hunk.lines += [f"+{line}" for line in new[new_start:new_end]]
            at = old_end
        hunk.lines += [f" {line}" for line in old[at:old_to]]
        yield hunk


def _groups(edits: Sequence[Edit]) -> list[list[Edit]]:
    """Group the edits whose context meets: they stand in one hunk."""
    groups: list[list[Edit]] = []
    for edit in edits:
        if groups and edit[0] - groups[-1][-1][1] <= 2 * _CONTEXT:
            groups[-1].append(edit)
        else:
            groups.append([edit])
    return groups


def _edits(old: list[str], new: list[str], work: _Work) -> list[Edit]:
    """Return the edits, which lie between the lines that both sides have in common."""
    edits, old_at, new_at = [], 0, 0
    for old_next, new_next in [*sorted(_common(old, new, work)), (len(old), len(new))]:
        if old_next > old_at or new_next > new_at:
            edits.append((old_at, old_next, new_at, new_next))
        old_at, new_at = old_next + 1, new_next + 1
    return edits


def _common(old: list[str], new: list[str], work: _Work) -> Iterator[Pair]:
    """Yield pairs of equal lines (index in old, index in new); sorted, each follows the one before on both sides."""
    parts = [(0, len(old), 0, len(new))]
    while parts:
        a, a_end, b, b_end = parts.pop()
        while a < a_end and b < b_end and old[a] == new[b]:
            yield a, b
            a, b = a + 1, b + 1
        while a < a_end and b < b_end and old[a_end - 1] == new[b_end - 1]:
            a_end, b_end = a_end - 1, b_end - 1
            yield a_end, b_end
        work.left -= a_end - a + b_end - b
        if a == a_end or b == b_end or work.left < 0:
            continue
        if anchors := _anchors(old[a:a_end], new[b:b_end]):
            bounds = [(-1, -1), *anchors, (a_end - a, b_end - b)]
            yield from ((a + x, b + y) for x, y in anchors)
            parts += [(a + x + 1, a + next_x, b + y + 1, b + next_y) for (x, y), (next_x, next_y) in pairwise(bounds)]
        else:
            yield from ((a + x, b + y) for x, y in _shortest_edit(old[a:a_end], new[b:b_end], work))


def _anchors(old: list[str], new: list[str]) -> list[Pair]:
    """Return the longest sequence of lines that occur once on each side and are in the same order on both."""
    old_counts, new_counts = Counter(old), Counter(new)
    places = {line: number for number, line in enumerate(new) if new_counts[line] == 1}
    pairs = [(x, places[line]) for x, line in enumerate(old) if old_counts[line] == 1 and line in places]
    return _longest_rising(pairs)


def _longest_rising(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the longest subsequence whose second numbers rise, by patience sorting."""
    tops: list[int] = []  # of each pile, the second number on top
    piles: list[int] = []  # of each pile, the pair on top
    before: list[int] = []  # of each pair, the one on top of the pile to the left
    for number, (_, y) in enumerate(pairs):
        pile = bisect_left(tops, y)
        tops[pile : pile + 1] = [y]
        piles[pile : pile + 1] = [number]
        before.append(piles[pile - 1] if pile else -1)
    chosen, at = [], piles[-1] if piles else -1
    while at >= 0:
        chosen.append(pairs[at])
        at = before[at]
    return chosen[::-1]


def _shortest_edit(old: list[str], new: list[str], work: _Work) -> list[Pair]:
    """Return the pairs that the fewest edits leave; none where they are too many, or no work is left.

    Myers, "An O(ND) difference algorithm and its variations" (1986): on each diagonal k = x - y, how far d edits reach.
    """
    reach = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(_EDITS):
        trace.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
            x = start = reach[k + 1] if down else reach[k - 1] + 1
            while x < len(old) and x - k < len(new) and old[x] == new[x - k]:
                x += 1
            reach[k] = x
            work.left -= x - start + 2
            if x >= len(old) and x - k >= len(new):
                return _way_back(trace, len(old), len(new))
        if work.left < 0:
            break
    return []


def _way_back(trace: list[dict[int, int]], x: int, y: int) -> list[Pair]:
    pairs: list[Pair] = []
    for edits in range(len(trace) - 1, -1, -1):
        reach, k = trace[edits], x - y
        down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
        before_x = reach[k + 1] if down else reach[k - 1]
        before_y = before_x - (k + 1 if down else k - 1)
        while x > max(before_x, 0) and y > max(before_y, 0):
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = before_x, before_y
    return pairs
