"""The parts of a patch, file by file, and how it is written: `read_patch` of what `write_patch` writes is the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

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
