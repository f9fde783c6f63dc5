"""Edits that name a place by its text and not by its line: what search/replace blocks say (`blocks.py`).

edits_of(files, patch) -> edits      apply_edits(files, edits) -> files      placed_edits(patch) -> edits
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slime_swe.patches.apply import Files, apply_patch, encoded, require_no_file_in_file
from slime_swe.patches.model import Change, Hunk, PatchError, split_lines
from slime_swe.patches.read import read_patch

MAX_EDITS = 1_000  # each looks through its file
_SHOWN = 60  # characters of a text in a message


@dataclass(frozen=True)
class Replace:
    """Lines of a file, with their newlines, and what comes in their place. An empty `search` makes the file anew, or
    fills it where it is empty."""

    path: str
    search: str
    replace: str


@dataclass(frozen=True)
class Move:
    """new_path: where the file goes; None where it is deleted."""

    path: str
    new_path: str | None


Edit = Replace | Move
Finder = Callable[[bytes, bytes], tuple[int, bool]]


def apply_edits(files: Files, edits: Sequence[Edit]) -> dict[str, bytes]:
    """The files with the edits applied, one after the other. Raises `PatchError` for the first that does not fit.

    A search is whole lines that the file has once. Lines that it has nowhere are looked for without their last newline,
    as a part of a line too, and with the file's own `\\r\\n`; they must be there once as well.
    """
    if len(edits) > MAX_EDITS:
        raise PatchError(f"there are {len(edits)} edits, more than {MAX_EDITS}")
    result = encoded(files)
    for edit in edits:
        if isinstance(edit, Move):
            _move(result, edit)
        else:
            result[edit.path] = _replaced(result.get(edit.path), edit)
    require_no_file_in_file(result)
    return result


def edits_of(files: Files, patch: str) -> list[Edit]:
    """What a patch does to these files, as edits: each search has as much context as makes it occur once.

    Raises `PatchError` where the patch does not fit, or does what no edit says: a change of bytes that are no text, or
    of a mode alone.
    """
    before, after = encoded(files), apply_patch(files, patch)
    edits: list[Edit] = []
    for change in read_patch(patch):
        edits += _edits_of_change(before, after, change)
    if apply_edits(before, edits) != after:
        raise PatchError("files that take each other's names can't be said by edits, one after the other")
    return edits


def placed_edits(patch: str) -> list[Edit]:
    """The hunks of a patch by their text alone, whatever its line numbers say. Raises `PatchError`."""
    edits: list[Edit] = []
    for change in read_patch(patch):
        _require_text(change)
        edits += _headings(change)
        if change.new_path is not None:
            edits += [Replace(change.new_path, "".join(hunk.old), "".join(hunk.new)) for hunk in change.hunks]
    return edits


def paths_of_edits(edits: Sequence[Edit]) -> list[str]:
    """Every file that they name, sorted."""
    named = {path for edit in edits for path in (edit.path, getattr(edit, "new_path", None)) if path is not None}
    return sorted(named)


def _move(files: dict[str, bytes], move: Move) -> None:
    if move.path not in files:
        raise PatchError(f"{move.path} is not there")
    if move.new_path is not None and move.new_path in files:
        raise PatchError(f"{move.new_path} exists already")
    content = files.pop(move.path)
    if move.new_path is not None:
        files[move.new_path] = content


def _replaced(content: bytes | None, edit: Replace) -> bytes:
    if not edit.search or (content is None and not edit.search.strip()):
        if content:
            raise PatchError(f"{edit.path}: an empty search is for a new file, and this one has text")
        return _bytes(edit.replace)
    if content is None:
        raise PatchError(f"{edit.path} is not there")
    start, search, replace = _place(edit.path, content, _bytes(edit.search), _bytes(edit.replace))
    return content[:start] + replace + content[start + len(search) :]


def _place(path: str, content: bytes, search: bytes, replace: bytes) -> tuple[int, bytes, bytes]:
    """Where the text stands, with the text and its replacement as they are written in this file."""
    for find, old, new in _readings(content, search, replace):
        start, more = find(content, old)
        if more:
            raise PatchError(f"{path} has what is searched for several times: give more lines around {_shown(search)}")
        if start >= 0:
            return start, old, new
    raise PatchError(f"{path} does not have what is searched for: {_shown(search)}")


def _readings(content: bytes, search: bytes, replace: bytes) -> Iterator[tuple[Finder, bytes, bytes]]:
    forms = [(search, replace)]
    if b"\r\n" in content and b"\r" not in search:
        forms.append((search.replace(b"\n", b"\r\n"), replace.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")))
    for old, new in forms:
        yield _find_lines, old, new
    for old, new in forms:
        if bare := old.removesuffix(b"\n").removesuffix(b"\r"):
            yield _find_text, bare, new.removesuffix(b"\n").removesuffix(b"\r")


def _find_lines(content: bytes, lines: bytes) -> tuple[int, bool]:
    """Where these whole lines begin, -1 where they are not; and whether there is a further place."""
    if not lines.endswith(b"\n"):
        start = len(content) - len(lines)
        return (start if content.endswith(lines) and content[start - 1 : start] in (b"", b"\n") else -1), False
    if content.startswith(lines):
        return 0, content.find(b"\n" + lines) >= 0
    at = content.find(b"\n" + lines)
    return (at + 1 if at >= 0 else -1), at >= 0 and content.find(b"\n" + lines, at + 1) >= 0


def _find_text(content: bytes, text: bytes) -> tuple[int, bool]:
    at = content.find(text)
    return at, at >= 0 and content.find(text, at + 1) >= 0


def _edits_of_change(before: Mapping[str, bytes], after: Mapping[str, bytes], change: Change) -> Iterator[Edit]:
    _require_text(change)
    old, new = change.old_path, change.new_path
    if old is None or change.copied:
        assert new is not None
        yield Replace(new, "", _text(after[new]))
        return
    yield from _headings(change)
    if new is None:
        return
    if not (change.hunks or change.moved):
        raise PatchError(f"{new}: no edit changes a mode alone")
    lines = split_lines(_text(before[old]))
    for hunk in change.hunks:
        yield _unique(new, lines, hunk)


def _unique(path: str, lines: list[str], hunk: Hunk) -> Replace:
    """The hunk as an edit of these lines, which it changes. Context is added on both sides, twice as much each time."""
    start = hunk.new_start - bool(hunk.new)
    end = start + len(hunk.old)
    content, more = _bytes("".join(lines)), 0
    while True:
        first, last = max(start - more, 0), min(end + more, len(lines))
        search = "".join(lines[first:last])
        if (first, last) == (0, len(lines)) or (search and not _find_lines(content, _bytes(search))[1]):
            break
        more = 2 * more + 1
    replace = "".join([*lines[first:start], *hunk.new, *lines[end:last]])
    lines[start:end] = hunk.new
    return Replace(path, search, replace)


def _headings(change: Change) -> Iterator[Edit]:
    """What becomes of the file as a whole."""
    if change.old_path is not None and change.new_path is None:
        yield Move(change.old_path, None)
    elif change.moved and change.old_path is not None and not change.copied:
        yield Move(change.old_path, change.new_path)
    elif change.old_path is None and not change.hunks:
        yield Replace(change.path, "", "")


def _require_text(change: Change) -> None:
    if change.binary is not None:
        raise PatchError(f"{change.path}: no edit changes what is no text")


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise PatchError(f"an edit is no text: {error}") from error


def _shown(text: bytes) -> str:
    line = text.decode("utf-8", "replace").strip().partition("\n")[0]
    return repr(line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…")
