"""Search/replace blocks: edits as a language model writes them in a reply, beside prose, for several files.

    ### path/to/file.py
    <<<<<<< SEARCH
    lines as they are
    =======
    lines as they shall be
    >>>>>>> REPLACE

An empty SEARCH makes a new file. `### old -> new` moves a file, and `### old -> /dev/null` deletes it. Code fences
around blocks are left out, and blocks below one another are of one file if only the first names it. A file's last line
that does not end is followed by the line that unified diffs have for this. Text that has such markers of its own stands
between longer ones: all three of a block have one length, of seven characters or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from slime_swe.patches.edits import MAX_EDITS, Edit, Move, Replace
from slime_swe.patches.model import NO_NEWLINE, QUOTED, PatchError, as_text, quote, split_lines, unquote
from slime_swe.patches.read import checked_path

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
    """What a reply says. faults: blocks that are malformed, each with its line; at most twenty."""

    edits: tuple[Edit, ...] = ()
    faults: tuple[str, ...] = ()


def read_blocks(text: str) -> Answer:
    """Every block and move of a reply. Never raises: what is malformed is a fault."""
    try:
        return _Reader(as_text(text)).answer()
    except PatchError as error:
        return Answer(faults=(str(error),))


def write_blocks(edits: Iterable[Edit]) -> str:
    """`read_blocks` of it gives the same edits. Raises `PatchError` for text that ends in a line as `NO_NEWLINE`."""
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
    """In quotes where it could be read otherwise."""
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
        """From its first marker to its last. A new first marker, or the end, before that is a fault."""
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
        """The lines up to a marker, which is passed; None where there is none in the block."""
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
        """The file that the line above the block names, which a fence may stand between."""
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
    """One name, or two with an arrow between; none where it reads as prose."""
    match = re.fullmatch(rf"({QUOTED}|\S+)(?:{_ARROW}({QUOTED}|\S+))?", text.strip(_DECORATION))
    if match is None:
        return ()
    return tuple(_plain(name) for name in match.groups() if name is not None)


def _plain(name: str) -> str:
    return unquote(name) if re.fullmatch(QUOTED, name) else name.strip("`*")


def _looks_like_path(name: str) -> bool:
    return "." in name or "/" in name


def _ends_early(line: str, length: int) -> bool:
    """Whether a line of a block shows that the block was not ended: another block's marker of the same length."""
    return line in (f"{'<' * length} SEARCH", f"{'>' * length} REPLACE", "=" * length)


def _without_mark(lines: list[str]) -> str:
    if lines and lines[-1].rstrip("\r\n") == NO_NEWLINE:
        lines = [*lines[:-2], lines[-2].removesuffix("\n")] if len(lines) > 1 else []
    return "".join(lines)
