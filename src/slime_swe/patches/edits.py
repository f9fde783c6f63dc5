"""Edits that name a place by its text and not by its line: what search/replace blocks say.

edits_of(files, patch) -> edits      apply_edits(files, edits) -> files      placed_edits(patch) -> edits
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slime_swe.patches.apply import Files, apply_patch, encoded, require_no_file_in_file
from slime_swe.patches.unified import (
    NO_NEWLINE,
    QUOTED,
    Change,
    Hunk,
    PatchError,
    as_text,
    checked_path,
    paths_of,
    quote,
    read_patch,
    split_lines,
    unquote,
)

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
    """A file that goes to `new_path`, or is deleted where that is None."""

    path: str
    new_path: str | None


Edit = Replace | Move
Finder = Callable[[bytes, bytes], tuple[int, bool]]


def apply_edits(files: Files, edits: Sequence[Edit]) -> dict[str, bytes]:
    """Apply the edits to the files, one after the other. Raises `PatchError` for the first that does not fit.

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
    """Write what a patch does to these files as edits: each search has as much context as makes it occur once.

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
    """Return the hunks of a patch as edits, by their text alone, whatever its line numbers say. Raises `PatchError`."""
    edits: list[Edit] = []
    for change in read_patch(patch):
        _require_text(change)
        edits += _headings(change)
        if change.new_path is not None:
            edits += [Replace(change.new_path, "".join(hunk.old), "".join(hunk.new)) for hunk in change.hunks]
    return edits


def paths_of_edits(edits: Sequence[Edit]) -> list[str]:
    """Return every file that the edits name, sorted."""
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
    """Find where the text stands; return that, the text and its replacement as they are written in this file."""
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
    """Return where these whole lines begin, -1 where they are not; and whether there is a further place."""
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
    """Return the hunk as an edit, and apply it to `lines`. Context is added on both sides, twice as much each time."""
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
    """Yield the edit that deletes or moves the file, or makes an empty one, where the change does that."""
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


# Search/replace blocks: edits as a language model writes them in a reply, beside prose, for several files.
#
#     ### path/to/file.py
#     <<<<<<< SEARCH
#     lines as they are
#     =======
#     lines as they shall be
#     >>>>>>> REPLACE
#
# An empty SEARCH makes a new file. `### old -> new` moves a file, and `### old -> /dev/null` deletes it. Code fences
# around blocks are left out, and blocks below one another are of one file if only the first names it. A file's last
# line that does not end is followed by the line that unified diffs have for this. Text that has such markers of its own
# stands between longer ones: all three of a block have one length, of seven characters or more.
MARKER = 7  # characters of a marker, at least
_OPEN = re.compile(r"(<{5,}) ?SEARCH[ \t\r]*\n?")
_ANY_MARKER = re.compile(r"(<{5,} ?SEARCH|={5,}|>{5,} ?REPLACE)[ \t\r]*\n?")
_LINE_START = re.compile(r"^(<{5,}|={5,}|>{5,})", re.MULTILINE)
_FENCE = re.compile(r"[ \t]*(```|~~~)")
_HEADING = re.compile(r"#{3,6} ")
_DECORATION = " \t\r\n*`:"
_ARROW = " -> "
_NOTHING = "/dev/null"
_MAX_FAULTS = 20


@dataclass(frozen=True)
class Answer:
    """The edits of a reply. `faults` are its malformed blocks, each with its line; at most twenty."""

    edits: tuple[Edit, ...] = ()
    faults: tuple[str, ...] = ()


def read_blocks(text: str) -> Answer:
    """Read every block and move of a reply. Never raises: what is malformed is a fault."""
    try:
        return _Reader(as_text(text)).answer()
    except PatchError as error:
        return Answer(faults=(str(error),))


def write_blocks(edits: Iterable[Edit]) -> str:
    """Write what `read_blocks` reads as these edits. Raises `PatchError` for text ending in the line `NO_NEWLINE`."""
    return "\n".join(map(_written, edits))


def _written(edit: Edit) -> str:
    if isinstance(edit, Move):
        target = _NOTHING if edit.new_path is None else _named(edit.new_path)
        return f"### {_named(edit.path)}{_ARROW}{target}\n"
    found = _LINE_START.findall(f"{edit.search}\n{edit.replace}")
    length = max([MARKER, *(len(marks) + 1 for marks in found)])
    search, replace = (_section(part) for part in (edit.search, edit.replace))
    return f"### {_named(edit.path)}\n{'<' * length} SEARCH\n{search}{'=' * length}\n{replace}{'>' * length} REPLACE\n"


def _section(text: str) -> str:
    if text.endswith(f"{NO_NEWLINE}\n"):
        raise PatchError(f"a block can't say text whose last line is {NO_NEWLINE!r}")
    return text if not text or text.endswith("\n") else f"{text}\n{NO_NEWLINE}\n"


def _named(path: str) -> str:
    """Put the path in quotes where it could be read otherwise."""
    quoted = quote(path)
    plain = path == path.strip(_DECORATION) and not re.search(r"\s", path) and path != _NOTHING
    return quoted if quoted != path or (plain and not path.startswith("#")) else f'"{path}"'


class _Reader:
    def __init__(self, text: str) -> None:
        self._lines = split_lines(text)
        self._at = 0
        self._path: str | None = None  # of the file that was named last
        self._edits: list[Edit] = []
        self._faults: list[str] = []

    def answer(self) -> Answer:
        while self._at < len(self._lines) and len(self._edits) <= MAX_EDITS and len(self._faults) < _MAX_FAULTS:
            line = self._lines[self._at]
            if opening := _OPEN.fullmatch(line):
                self._block(len(opening[1]))
            elif _ANY_MARKER.fullmatch(line) and line[0] == ">":
                self._fault("the end of a block that did not begin")
                self._at += 1
            else:
                self._heading(line)
                self._at += 1
        return Answer(tuple(self._edits), tuple(self._faults))

    def _heading(self, line: str) -> None:
        match = _HEADING.match(line)
        names = _names(line[match.end() :]) if match else ()
        if len(names) == 2:
            self._moved(*names)
        elif names:
            self._path = names[0]

    def _moved(self, old: str, new: str) -> None:
        try:
            target = None if new == _NOTHING else checked_path(new)
            self._edits.append(Move(checked_path(old), target))
            self._path = target
        except PatchError as error:
            self._fault(str(error))

    def _block(self, length: int) -> None:
        """Read a block from its first marker to its last. A new first marker, or the end, before that is a fault."""
        start = self._at
        path = self._name_above() or self._path
        self._at += 1
        search = self._until("=" * length)
        replace = None if search is None else self._until(f"{'>' * length} REPLACE")
        if self._lines[start].endswith("\r\n"):  # the reply's way to end a line, and not the file's
            search, replace = (part and part.replace("\r\n", "\n") for part in (search, replace))
        if search is None or replace is None:
            what = "=" if search is None else "> REPLACE"
            self._fault(f"a block without its marker of {length} {what}", start)
        elif path is None:
            self._fault("a block that names no file", start)
        else:
            self._path = path
            self._keep(path, search, replace, start)

    def _keep(self, path: str, search: str, replace: str, start: int) -> None:
        try:
            edit = Replace(checked_path(path), search, replace)
        except PatchError as error:
            self._fault(str(error), start)
            return
        if search and search == replace:
            self._fault("a block that changes nothing", start)
        else:
            self._edits.append(edit)

    def _until(self, marker: str) -> str | None:
        """Return the lines up to a marker, which is passed; None where there is none in the block."""
        lines: list[str] = []
        length = len(marker.split(" ")[0])
        while self._at < len(self._lines):
            line = self._lines[self._at]
            bare = line.rstrip()
            if bare == marker or bare == marker.replace(" ", ""):
                self._at += 1
                return _without_mark(lines)
            if _ends_early(bare, length):
                return None
            lines.append(line)
            self._at += 1
        return None

    def _name_above(self) -> str | None:
        """Return the file that the line above the block names; a fence may stand between. None where it names none."""
        at = self._at - 1
        while at >= 0 and (_FENCE.match(self._lines[at]) or not self._lines[at].strip()):
            at -= 1
        if at < 0 or self._at - at > 4:
            return None
        line = self._lines[at].strip(_DECORATION)
        if _ANY_MARKER.fullmatch(self._lines[at]) or _HEADING.match(self._lines[at]):
            return None  # a heading was read already
        names = _names(line.removeprefix("File: ").removeprefix("# "))
        return names[0] if len(names) == 1 and _looks_like_path(names[0]) else None

    def _fault(self, what: str, at: int | None = None) -> None:
        self._faults.append(f"line {(self._at if at is None else at) + 1} of the reply: {what}")


def _names(text: str) -> tuple[str, ...]:
    """Return one name, or two with an arrow between; none where the text reads as prose."""
    match = re.fullmatch(rf"({QUOTED}|\S+)(?:{_ARROW}({QUOTED}|\S+))?", text.strip(_DECORATION))
    if match is None:
        return ()
    return tuple(_plain(name) for name in match.groups() if name is not None)


def _plain(name: str) -> str:
    return unquote(name) if re.fullmatch(QUOTED, name) else name.strip("`*")


def _looks_like_path(name: str) -> bool:
    return "." in name or "/" in name


def _ends_early(line: str, length: int) -> bool:
    """Say whether a line shows that its block was not ended: it is another block's marker of the same length."""
    return line in (f"{'<' * length} SEARCH", f"{'>' * length} REPLACE", "=" * length)


def _without_mark(lines: list[str]) -> str:
    if lines and lines[-1].rstrip("\r\n") == NO_NEWLINE:
        lines = [*lines[:-2], lines[-2].removesuffix("\n")] if len(lines) > 1 else []
    return "".join(lines)


# A whole answer in one reply of a model: search/replace blocks, or a unified diff.
_DIFF = re.compile(r"^(diff --git |--- .*\n\+\+\+ )", re.MULTILINE)


def paths_in_reply(reply: str) -> list[str]:
    """List the files that a reply's edits name, sorted. Raises `PatchError` where it holds none, or a malformed one."""
    answer = _blocks(reply)
    return paths_of_edits(answer.edits) if answer.edits else list(paths_of(reply))


def apply_reply(files: Files, reply: str) -> dict[str, bytes]:
    """Change the files as a reply says. Raises `PatchError` where any part of it is malformed or does not fit.

    A unified diff whose line numbers are wrong is placed by its text, which must then occur once.
    """
    answer = _blocks(reply)
    if answer.edits:
        return apply_edits(files, answer.edits)
    try:
        return apply_patch(files, reply)
    except PatchError:
        return apply_edits(files, placed_edits(reply))


def _blocks(reply: str) -> Answer:
    """Read a reply's blocks; the answer has no edits where a unified diff is in their place. Raises `PatchError`."""
    answer = read_blocks(reply)
    if answer.faults:
        raise PatchError("; ".join(answer.faults))
    if not answer.edits and not _DIFF.search(reply):
        raise PatchError("the reply holds no search/replace block and no unified diff")
    return answer
