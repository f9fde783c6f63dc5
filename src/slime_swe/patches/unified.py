"""A patch file by file, as a unified diff states it: `read_patch` of what `write_patch` writes is the same.

Diffs in git's form and plain ones are read. What git refuses is refused here too, and so is what git reads only by
guessing. Upstream: git's apply.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from slime_swe.errors import UserError

NO_NEWLINE = "\\ No newline at end of file"
ESCAPES = {"\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}
QUOTED = r'"(?:[^"\\]|\\(?:[abtnvfr"\\]|[0-3][0-7]{2}))*"'  # what `unquote` takes
_UNESCAPES = {letter: character for character, letter in ESCAPES.items()}
_ODD = re.compile(r'[\x00-\x1f\x7f"\\\udc80-\udcff]')
_SWAPPED = {"+": "-", "-": "+", " ": " "}
_FILE = "100644"  # the mode of a plain file


class PatchError(UserError):
    """The patch is malformed or does not fit the files; the message names the file or the line."""


@dataclass
class Hunk:
    """Changed lines with their context.

    old_start, new_start: line numbers as git writes them, counted from 1; the line before where a side is empty.
    lines: each begins with " ", "-" or "+" and ends with a newline, unless the file ends there without one.
    section: what stands behind the second `@@`.
    """

    old_start: int
    new_start: int
    lines: list[str] = field(default_factory=list)
    section: str = ""

    @property
    def old(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] != "+"]

    @property
    def new(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] != "-"]


@dataclass
class Binary:
    """A change of bytes: git's `literal` or `delta` block, and that of the way back. Both are empty where the patch
    says `Binary files … differ`: the change is stated and not carried."""

    forward: str = ""
    backward: str = ""


@dataclass
class Change:
    """The change that a patch makes to one file. old_path is None where the file is new, new_path where it is deleted.

    Modes are octal text, empty where the patch does not state them. index: what follows `index `.
    """

    old_path: str | None
    new_path: str | None
    old_mode: str = ""
    new_mode: str = ""
    index: str = ""
    copied: bool = False
    hunks: list[Hunk] = field(default_factory=list)
    binary: Binary | None = None

    def __post_init__(self) -> None:
        if self.old_path is None:
            self.new_mode = self.new_mode or _FILE
        if self.new_path is None:
            self.old_mode = self.old_mode or _FILE

    @property
    def path(self) -> str:
        path = self.new_path if self.new_path is not None else self.old_path
        assert path is not None
        return path

    @property
    def moved(self) -> bool:
        """The file is renamed or copied."""
        return None not in (self.old_path, self.new_path) and self.old_path != self.new_path

    @property
    def only_stated(self) -> bool:
        """The patch says that the file changes, but not how."""
        return self.binary is not None and not self.binary.forward


def write_patch(changes: Iterable[Change]) -> str:
    return "".join(piece for change in changes for piece in _written(change))


def _written(change: Change) -> Iterator[str]:
    old = quote(f"a/{change.path if change.old_path is None else change.old_path}")
    new = quote(f"b/{change.path}")
    yield f"diff --git {old} {new}\n"
    yield from _header(change)
    old, new = ("/dev/null" if change.old_path is None else old), ("/dev/null" if change.new_path is None else new)
    if change.only_stated:
        yield f"Binary files {old} and {new} differ\n"
    elif change.binary is not None:
        yield f"GIT binary patch\n{change.binary.forward}\n"
        yield f"{change.binary.backward}\n" if change.binary.backward else ""
    elif change.hunks:
        yield f"--- {_ended(old)}\n+++ {_ended(new)}\n"
        for hunk in change.hunks:
            yield from _written_hunk(hunk)


def _header(change: Change) -> Iterator[str]:
    if change.old_path is None:
        yield f"new file mode {change.new_mode}\n"
    elif change.new_path is None:
        yield f"deleted file mode {change.old_mode}\n"
    elif change.old_mode != change.new_mode:
        yield f"old mode {change.old_mode}\nnew mode {change.new_mode}\n"
    if change.moved:
        verb = "copy" if change.copied else "rename"
        yield f"{verb} from {quote(change.old_path or '')}\n{verb} to {quote(change.path)}\n"
    if change.index:
        yield f"index {change.index}\n"


def _written_hunk(hunk: Hunk) -> Iterator[str]:
    old = sum(line[0] != "+" for line in hunk.lines)
    new = sum(line[0] != "-" for line in hunk.lines)
    section = f" {hunk.section}" if hunk.section else ""
    yield f"@@ -{_range(hunk.old_start, old)} +{_range(hunk.new_start, new)} @@{section}\n"
    for line in hunk.lines:
        yield line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}\n"


def _range(start: int, count: int) -> str:
    return str(start) if count == 1 else f"{start},{count}"


def _ended(name: str) -> str:
    """Put a tab after a name with spaces, as git does, so that a reader knows where it ends and a date begins."""
    return f"{name}\t" if " " in name else name


def reversed_change(change: Change) -> Change:
    """Return what undoes `change`. Raises `PatchError` for a copy, and for a binary change without the way back."""
    if change.copied or (change.binary is not None and not change.binary.backward):
        what = "copied" if change.copied else "a binary change"
        raise PatchError(f"{change.path} is {what}: the patch does not hold what it was before")
    before, dots, after = change.index.partition(" ")[0].partition("..")
    index = change.index.replace(f"{before}..{after}", f"{after}..{before}") if dots else change.index
    return replace(
        change,
        old_path=change.new_path,
        new_path=change.old_path,
        old_mode=change.new_mode,
        new_mode=change.old_mode,
        index=index,
        hunks=[_reversed_hunk(hunk) for hunk in change.hunks],
        binary=change.binary and Binary(change.binary.backward, change.binary.forward),
    )


def _reversed_hunk(hunk: Hunk) -> Hunk:
    lines = [_SWAPPED[line[0]] + line[1:] for line in hunk.lines]
    return Hunk(hunk.new_start, hunk.old_start, lines, hunk.section)


def quote(name: str) -> str:
    """Write a path as git does: in quotes, C-style, where it holds a control character, a quote, a backslash or a byte
    that is no UTF-8 (in a Python string a lone surrogate, as `os.fsdecode` has it)."""
    return f'"{_ODD.sub(_escape, name)}"' if _ODD.search(name) else name


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in ESCAPES:
        return f"\\{ESCAPES[character]}"
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def unquote(name: str) -> str:
    """Read a name that git writes in quotes (`QUOTED`). Octal escapes are bytes: `é` is `\\303\\251`. What is no UTF-8
    is read as `os.fsdecode` reads it."""
    parts = re.findall(r"\\([0-3][0-7]{2})|\\(.)|([^\\]+)", name[1:-1], re.DOTALL)
    raw = b"".join(
        bytes([int(octal, 8)]) if octal else (_UNESCAPES.get(escape, "") + text).encode("utf-8", "surrogateescape")
        for octal, escape, text in parts
    )
    return raw.decode("utf-8", "surrogateescape")


def as_text(patch: str) -> str:
    """Make each byte that is no UTF-8 one lone surrogate. Raises `PatchError` for any other surrogate."""
    try:
        return patch.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise PatchError(f"the patch is no text: {error}") from error


def split_lines(text: str) -> list[str]:
    """Split at "\\n" alone, and keep it: `str.splitlines` knows nine more ends of a line, and git none of them."""
    lines = text.split("\n")
    last = lines.pop()
    return [line + "\n" for line in lines] + ([last] if last else [])


_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@ ?(.*)", re.ASCII)
_EXTENDED = re.compile(
    r"(old mode|new mode|deleted file mode|new file mode|rename (?:from|to|old|new)|copy (?:from|to)|similarity index"
    r"|dissimilarity index|index) (.*)"
)
_VERBS = ("rename", "copy")
_OLD_FORM = ("rename old", "rename new")
_INDEX = re.compile(r"\S+( [0-7]{6})?")
_BLOCK = re.compile(r"(literal|delta) \d{1,9}\n", re.ASCII)
_DATE = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? [+-]\d{4}$", re.ASCII)
_PREFIX = re.compile(r"[abciow12]/")  # `a/` and `b/`, and those of git's diff.mnemonicPrefix
_MODE = re.compile(r"[0-7]{6}")
_EPOCH = re.compile(r"\t(1969-12-31|1970-01-01) (00:00:00(?:\.0+)? \+0000$)?", re.ASCII)  # says that there is no file
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOTHING = "/dev/null"
_PATH_BYTES, _NAME_BYTES = 4095, 255  # of a whole path and of each part; what has more can't be opened
_MARK_LENGTH = 11  # at least, of a line such as "\\ No newline at end of file"


def read_patch(patch: str) -> list[Change]:
    """Read the changes in order. Text before and between them is skipped, as git does. Raises `PatchError`."""
    return list(changes_of(patch))


def changes_of(patch: str) -> Iterator[Change]:
    """Yield the changes one at a time, so that those before a malformed one can be had. Raises `PatchError`."""
    return _Reader(patch).changes()


def reverse_patch(patch: str) -> str:
    """Return the patch that undoes this one. Raises `PatchError` where it does not hold what was there before."""
    return write_patch(map(reversed_change, reversed(read_patch(patch))))


def checked_path(path: str) -> str:
    """Return the path, each slash once. Raises `PatchError` where it is none of a file inside a repository."""
    path = re.sub("/+", "/", path)
    parts = path.split("/")
    size = len(path.encode("utf-8", "surrogateescape"))
    if (
        not {"", ".", ".."}.isdisjoint(parts)
        or any(part.lower() == ".git" for part in parts)
        or "\0" in path
        or size > _PATH_BYTES
        or (size > _NAME_BYTES and any(len(part.encode("utf-8", "surrogateescape")) > _NAME_BYTES for part in parts))
    ):
        raise PatchError(f"{path[:_NAME_BYTES]!r} is not a path inside the repository")
    return path


class _Reader:
    def __init__(self, patch: str) -> None:
        self._lines = split_lines(as_text(patch))
        self._at = 0
        self._prefixed: bool | None = None  # whether the names have prefixes such as `a/`

    def changes(self) -> Iterator[Change]:
        while line := self._peek():
            if line.startswith("diff --git "):
                yield self._git_change()
            elif line.startswith("--- ") and self._peek(1).startswith("+++ ") and self._peek(2).startswith("@@ -"):
                yield self._plain_change()
            elif line.startswith("@@ "):
                raise self._error("a hunk without the file that it belongs to")
            else:
                self._at += 1

    def _plain_change(self) -> Change:
        old, new = self._without_prefix(*self._sides(dated=True))
        if old is None and new is None:
            raise self._error("it names no file")
        path = new if new is not None else old
        return self._change(None if old is None else path, None if new is None else path, hunks=self._hunks())

    def _git_change(self) -> Change:
        names = self._next()[len("diff --git ") :].rstrip("\n")
        head = self._extended_header()
        binary = self._binary()
        sides = self._sides() if binary is None and self._peek().startswith("--- ") else None
        if self._peek().startswith("+++ ") or (sides and not self._peek().startswith("@@ -")):
            raise self._error("its header is not in git's order")
        old, new = self._paths(names, head, sides)
        change = self._change(
            old,
            new,
            old_mode=head.get("old mode") or head.get("deleted file mode", ""),
            new_mode=head.get("new mode") or head.get("new file mode", ""),
            index=head.get("index", ""),
            copied="copy from" in head,
            hunks=self._hunks() if sides else [],
            binary=binary,
        )
        if not (
            change.hunks or binary or old != new or (change.old_mode and change.new_mode not in ("", change.old_mode))
        ):
            raise self._error(f"it says nothing of {change.path}")
        return change

    def _change(self, old: str | None, new: str | None, **values: object) -> Change:
        checked = (None if path is None else self._checked(path) for path in (old, new))
        return Change(*checked, **values)  # type: ignore[arg-type]

    def _extended_header(self) -> dict[str, str]:
        head: dict[str, str] = {}
        while match := _EXTENDED.match(self._peek()):
            form = _MODE if match[1].endswith("mode") else _INDEX if match[1] == "index" else None
            if match[1] in head or match[1] in _OLD_FORM or (form and not form.fullmatch(match[2])):
                raise self._error(f"{match[1]!r} twice, or of no known form")
            head[match[1]] = match[2]
            self._at += 1
        if len({"new file mode", "deleted file mode", "rename from", "copy from"} & head.keys()) > 1:
            raise self._error("its header says that two things become of one file")
        if any((f"{verb} from" in head) != (f"{verb} to" in head) for verb in _VERBS):
            raise self._error("a rename or copy of which one side is missing")
        return head

    def _paths(
        self, names: str, head: dict[str, str], sides: tuple[str | None, str | None] | None
    ) -> tuple[str | None, str | None]:
        """Return the paths before and after: by `rename` or `copy`, else by `---` and `+++`, else by the first line."""
        created, deleted = "new file mode" in head, "deleted file mode" in head
        named = self._without_prefix(*sides) if sides else None
        for verb in _VERBS:
            if f"{verb} from" in head:
                moved = self._plain(head[f"{verb} from"]), self._plain(head[f"{verb} to"])
                if named not in (None, moved) or moved[0] == moved[1]:
                    raise self._error("its header names different files")
                return moved
        stated = self._same_path(names)
        if named is None:
            if stated is None:
                raise self._error("it does not say which file it changes")
            return (None if created else stated), (None if deleted else stated)
        known = {path for path in (*named, stated) if path is not None}
        if len(known) != 1 or (created, deleted) != (named[0] is None, named[1] is None):
            raise self._error("its header names different files")
        return named

    def _binary(self) -> Binary | None:
        if self._peek().startswith("Binary files ") and self._peek().endswith(" differ\n"):
            self._at += 1
            return Binary()
        if self._peek() != "GIT binary patch\n":
            return None
        self._at += 1
        forward = self._block()
        if not forward:
            raise self._error("a binary patch without its data")
        return Binary(forward, self._block())

    def _block(self) -> str:
        """Read a `literal` or `delta` block without the empty line behind it; empty where there is none."""
        if not self._peek().startswith(("literal ", "delta ")):
            return ""
        if not _BLOCK.fullmatch(self._peek()):
            raise self._error("a malformed binary patch")
        start = self._at
        while self._next() != "\n":
            pass
        return "".join(self._lines[start : self._at - 1])

    def _sides(self, *, dated: bool = False) -> tuple[str | None, str | None]:
        return self._name("--- ", dated), self._name("+++ ", dated)

    def _name(self, mark: str, dated: bool) -> str | None:
        """Read the name after `mark`; None for `/dev/null`, and where a date says that there is no file."""
        line = self._next().removesuffix("\n")
        if not line.startswith(mark):
            raise self._error(f"{mark.strip()!r} expected")
        if dated and (epoch := _EPOCH.search(line)):
            if not epoch[2]:
                raise self._error("a date that could say that there is no file: write /dev/null")
            return None
        quoted = re.match(QUOTED, line[4:])
        name = unquote(quoted[0]) if quoted else self._plain(_DATE.sub("", line[4:].partition("\t")[0]))
        return None if name == _NOTHING else name

    def _plain(self, name: str) -> str:
        """Read a name that ends with its line."""
        if re.fullmatch(QUOTED, name):
            return unquote(name)
        if name.startswith('"') or _CONTROL.search(name):
            raise self._error(f"{name!r} would have to be quoted as git quotes names")
        return name

    def _without_prefix(self, old: str | None, new: str | None) -> tuple[str | None, str | None]:
        """Return the paths of names such as `a/PATH` and `b/PATH`; names without such prefixes are paths themselves."""
        prefixed = all(name is None or _PREFIX.match(name) for name in (old, new))
        if self._prefixed not in (None, prefixed):
            raise self._error("some of its names have prefixes such as a/ and b/, and others have none")
        self._prefixed = prefixed
        return ((old and old[2:]), (new and new[2:])) if prefixed else (old, new)

    def _same_path(self, names: str) -> str | None:
        """Return the path of `a/PATH b/PATH`, both the same; None where they are not, or have no clear end."""
        quoted = re.fullmatch(rf"({QUOTED}|\S+) ({QUOTED}|\S+)", names)
        middle = len(names) // 2
        old, new = (quoted[1], quoted[2]) if quoted else (names[:middle], names[middle + 1 :])
        if not quoted and (names[middle : middle + 1] != " " or old[2:] != new[2:]):
            return None
        old, new = self._without_prefix(self._plain(old), self._plain(new))
        return old if old == new else None

    def _hunks(self) -> list[Hunk]:
        hunks = []
        while self._peek().startswith("@@ -"):
            hunks.append(self._hunk())
        return hunks

    def _hunk(self) -> Hunk:
        match = _HUNK.match(self._next())
        if match is None:
            raise self._error("a malformed hunk header")
        old_left, new_left = (1 if match[group] is None else int(match[group]) for group in (2, 4))
        hunk = Hunk(int(match[1]), int(match[3]), section=match[5])
        if old_left and not hunk.old_start:
            raise self._error("a hunk that begins before the first line")
        while old_left > 0 or new_left > 0:
            line = self._hunk_line()
            old_left -= line[0] != "+"
            new_left -= line[0] != "-"
            hunk.lines.append(line)
            unended = not line.endswith("\n")
            if unended and ((line[0] != "+" and old_left) or (line[0] != "-" and new_left)):
                raise self._error("a line without a newline that is not the last one")
        if old_left or new_left:
            raise self._error("a hunk whose lines are not as many as its header says")
        if all(line[0] == " " for line in hunk.lines):
            raise self._error("a hunk that changes nothing")
        return hunk

    def _hunk_line(self) -> str:
        line = self._next()
        line = f" {line}" if line == "\n" else line  # some editors strip the blank that marks an empty context line
        if line[0] not in " +-":
            raise self._error("a hunk that ends before its header says")
        line = line.removesuffix("\n")
        if self._peek().startswith("\\"):
            if not self._peek().startswith("\\ ") or len(self._peek()) <= _MARK_LENGTH:
                raise self._error("a malformed mark of a line without a newline")
            self._at += 1
            return line
        return f"{line}\n"

    def _checked(self, path: str) -> str:
        try:
            return checked_path(path)
        except PatchError as error:
            raise self._error(str(error)) from error

    def _peek(self, ahead: int = 0) -> str:
        """Return the line `ahead` of this one; empty at the end."""
        return self._lines[self._at + ahead] if self._at + ahead < len(self._lines) else ""

    def _next(self) -> str:
        line = self._peek()
        if not line:
            raise self._error("it ends too early")
        self._at += 1
        return line

    def _error(self, what: str) -> PatchError:
        return PatchError(f"line {self._at} of the patch: {what}")


# Which files a patch names.
_HEADER = re.compile(
    r"^[ \tX]*"  # GNU patch takes a patch that is indented, by blanks or by the letter
    r"(--- |\+\+\+ |\*\*\* |Index:|rename from |rename to |copy from |copy to |diff --git )[ \t\v\f\r]*(.*)",
    re.MULTILINE,
)
_QUOTED = re.compile(QUOTED)
_QUOTED_AFTER_BLANK = re.compile(rf"(?<=[ \t\v\f\r]){QUOTED}")
_BLANKS = re.compile(r"[ \t\v\f\r]+")
MAX_FOLDERS = 10_000  # that the paths of one patch are in; a sandbox would take minutes to make what fits in a megabyte
_MAX_PATH = 4096  # bytes; nothing that is longer can be opened
_DATE_WORDS = 3  # a date, a time and a zone


def paths_of(patch: str) -> tuple[str, ...]:
    """Return every path that the patch changes, adds, removes, renames or copies, sorted. Raises `PatchError`."""
    changes = read_patch(patch)
    return tuple(
        sorted({path for change in changes for path in (change.old_path, change.new_path) if path is not None})
    )


def added_paths(patch: str) -> tuple[str, ...]:
    """Return the paths that were not there before, sorted. Raises `PatchError`."""
    return tuple(sorted({change.path for change in read_patch(patch) if change.old_path is None or change.moved}))


def binary_paths(patch: str) -> list[str]:
    """Return the files whose change the patch states but does not carry. Raises `PatchError`."""
    return [change.path for change in read_patch(patch) if change.only_stated]


def changed_lines(patch: str) -> Iterator[tuple[str, str]]:
    """Yield (path, `+line` or `-line`) for every line that the patch adds or removes. Raises `PatchError` where it is
    malformed, after the lines before that."""
    for change in changes_of(patch):
        for hunk in change.hunks:
            yield from ((change.path, line.removesuffix("\n")) for line in hunk.lines if line[0] != " ")


def header_paths(patch: str) -> set[str]:
    """Return every path that a line could name as a file's, to whichever program reads the patch: more than it changes.

    Names are taken with and without their first folder and what may be a date after them, from indented lines, and from
    hunks too (where `--- x` may be a removed `-- x`). Raises `PatchError` for what is no text.
    """
    words = {word for mark, line in _HEADER.findall(as_text(patch)) for word in _names(mark, line)}
    words = {re.sub("/+", "/", word) for word in words if len(word) <= _MAX_PATH}
    paths = {path for word in words for path in (word, word.partition("/")[2])}
    return {_normal(path) for path in paths if path and not path.startswith("/")}


def require_few_folders(paths: Iterable[str]) -> None:
    """Raise `PatchError` where the paths are in more than `MAX_FOLDERS`. Looks at no more than that."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            if len(folders) > MAX_FOLDERS:
                raise PatchError(f"the paths of a patch must not be in more than {MAX_FOLDERS} folders")
            folder = folder.rpartition("/")[0]


def _names(mark: str, line: str) -> Iterator[str]:
    """Yield what may be a name: what is quoted, all up to a tab, the first word, all but the words of a date; of git's
    first line, which has two names, each half and each word."""
    yield from map(unquote, _quoted(line))
    for text in {line, line.partition("\t")[0].rstrip()}:
        yield text
        yield _BLANKS.split(text, maxsplit=1)[0]
        for words in range(1, _DATE_WORDS + 1):
            yield text.rsplit(maxsplit=words)[0] if text.strip() else ""
    if mark == "diff --git ":
        yield from (line[: len(line) // 2], line[len(line) // 2 + 1 :]) if _is_pair(line) else ()
        yield from _BLANKS.split(line)


def _quoted(line: str) -> Iterator[str]:
    """Yield what stands in quotes after a blank, or from the first quote. None of those after blanks goes on beyond the
    next of them, so that this is done once over the line."""
    first = line.find('"')
    if first >= 0 and (match := _QUOTED.match(line, first)):
        yield match[0]
    yield from _QUOTED_AFTER_BLANK.findall(line)


def _is_pair(line: str) -> bool:
    """Say whether the line is `a/PATH b/PATH`, both the same."""
    middle = len(line) // 2
    return line[middle : middle + 1] == " " and line[:middle].partition("/")[2] == line[middle + 1 :].partition("/")[2]


def _normal(path: str) -> str:
    """Return the path without `.` and empty parts, of which most paths have none."""
    return str(PurePosixPath(path)) if "." in path[:1] or "/." in path or path.endswith("/") else path
