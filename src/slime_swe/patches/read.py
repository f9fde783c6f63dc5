"""Read a unified diff in git's form, or a plain one, into the changes that it states. Strict: what git refuses is
refused here too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from slime_swe.patches.model import (
    QUOTED,
    Binary,
    Change,
    Hunk,
    PatchError,
    as_text,
    reversed_change,
    split_lines,
    unquote,
    write_patch,
)

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@ ?(.*)", re.ASCII)
_EXTENDED = re.compile(
    r"(old mode|new mode|deleted file mode|new file mode|rename from|rename to|copy from|copy to|similarity index"
    r"|dissimilarity index|index) (.*)"
)
_BLOCK = re.compile(r"(literal|delta) \d{1,9}\n", re.ASCII)
_DATE = re.compile(r"\s\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? [+-]\d{4}$", re.ASCII)
_PREFIX = re.compile(r"[abciow12]/")  # `a/` and `b/`, and those of git's diff.mnemonicPrefix
_MODE = re.compile(r"[0-7]{6}")
_NOTHING = "/dev/null"


def read_patch(patch: str) -> list[Change]:
    """The changes in order. Text before and between them is skipped, as git does. Raises `PatchError`."""
    return list(changes_of(patch))


def changes_of(patch: str) -> Iterator[Change]:
    """The same, one at a time, so that those before a malformed one can be had."""
    return _Reader(patch).changes()


def reverse_patch(patch: str) -> str:
    """The patch that undoes this one. Raises `PatchError` where it does not hold what was there before."""
    return write_patch(map(reversed_change, reversed(read_patch(patch))))


class _Reader:
    def __init__(self, patch: str) -> None:
        self._lines = split_lines(as_text(patch))
        self._at = 0

    def changes(self) -> Iterator[Change]:
        while line := self._peek():
            if line.startswith("diff --git "):
                yield self._git_change()
            elif line.startswith("--- ") and self._peek(1).startswith("+++ ") and self._peek(2).startswith("@@ "):
                yield self._plain_change()
            elif line.startswith("@@ "):
                raise self._error("a hunk without the file that it belongs to")
            else:
                self._at += 1

    def _plain_change(self) -> Change:
        old, new = _without_prefix(*self._sides())
        if old is None and new is None:
            raise self._error("it names no file")
        path = new if new is not None else old
        return self._change(None if old is None else path, None if new is None else path, hunks=self._hunks())

    def _git_change(self) -> Change:
        names = self._next()[len("diff --git ") :].rstrip("\n")
        head = self._extended_header()
        binary = self._binary()
        has_sides = binary is None and self._peek().startswith("--- ")
        old, new = self._paths(names, head, self._sides() if has_sides else None)
        return self._change(
            old,
            new,
            old_mode=head.get("old mode") or head.get("deleted file mode", ""),
            new_mode=head.get("new mode") or head.get("new file mode", ""),
            index=head.get("index", ""),
            copied="copy from" in head,
            hunks=self._hunks() if has_sides else [],
            binary=binary,
        )

    def _change(self, old: str | None, new: str | None, **values: object) -> Change:
        checked = (None if path is None else self._checked(path) for path in (old, new))
        return Change(*checked, **values)  # type: ignore[arg-type]

    def _extended_header(self) -> dict[str, str]:
        head: dict[str, str] = {}
        while match := _EXTENDED.match(self._peek()):
            if match[1] in head or (match[1].endswith("mode") and not _MODE.fullmatch(match[2])):
                raise self._error(f"{match[1]!r} twice, or of no known form")
            head[match[1]] = match[2]
            self._at += 1
        return head

    def _paths(
        self, names: str, head: dict[str, str], sides: tuple[str | None, str | None] | None
    ) -> tuple[str | None, str | None]:
        """The paths before and after: by `rename` or `copy`, else by `---` and `+++`, else by the first line."""
        created, deleted = "new file mode" in head, "deleted file mode" in head
        for verb in ("rename", "copy"):
            if f"{verb} from" in head and f"{verb} to" in head:
                return _plain(head[f"{verb} from"]), _plain(head[f"{verb} to"])
        stated = _same_path(names)
        if sides is None:
            if stated is None:
                raise self._error("it does not say which file it changes")
            return (None if created else stated), (None if deleted else stated)
        old, new = _without_prefix(*sides)
        known = {path for path in (old, new, stated) if path is not None}
        if len(known) != 1 or (created and old is not None) or (deleted and new is not None):
            raise self._error("its header names different files")
        return old, new

    def _binary(self) -> Binary | None:
        if self._peek().startswith("Binary files "):
            self._at += 1
            return Binary()
        if not self._peek().startswith("GIT binary patch"):
            return None
        self._at += 1
        forward = self._block()
        if not forward:
            raise self._error("a binary patch without its data")
        return Binary(forward, self._block())

    def _block(self) -> str:
        """A `literal` or `delta` block and the empty line behind it, which is left out; empty where there is none."""
        if not _BLOCK.fullmatch(self._peek()):
            return ""
        start = self._at
        while self._peek() not in ("", "\n"):
            self._at += 1
        block = self._lines[start : self._at]
        self._at += 1
        return "".join(block)

    def _sides(self) -> tuple[str | None, str | None]:
        return self._name("--- "), self._name("+++ ")

    def _name(self, mark: str) -> str | None:
        """None for `/dev/null`."""
        line = self._next().rstrip("\n")
        if not line.startswith(mark):
            raise self._error(f"{mark.strip()!r} expected")
        quoted = re.match(QUOTED, line[4:])
        name = unquote(quoted[0]) if quoted else _DATE.sub("", line[4:].partition("\t")[0])
        return None if name == _NOTHING else name

    def _hunks(self) -> list[Hunk]:
        hunks = []
        while self._peek().startswith("@@ "):
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
        if old_left or new_left:
            raise self._error("a hunk whose lines are not as many as its header says")
        return hunk

    def _hunk_line(self) -> str:
        line = self._next()
        line = f" {line}" if line == "\n" else line  # some editors strip the blank that marks an empty context line
        if line[0] not in " +-":
            raise self._error("a hunk that ends before its header says")
        line = line.removesuffix("\n")
        if self._peek().startswith("\\ "):
            self._at += 1
            return line
        return f"{line}\n"

    def _checked(self, path: str) -> str:
        pure = PurePosixPath(path)
        if (
            not pure.parts
            or pure.is_absolute()
            or {"..", ".git"} & {part.lower() for part in pure.parts}
            or "\0" in path
        ):
            raise self._error(f"{path!r} is not a path inside the repository")
        return str(pure)

    def _peek(self, ahead: int = 0) -> str:
        """Empty at the end."""
        return self._lines[self._at + ahead] if self._at + ahead < len(self._lines) else ""

    def _next(self) -> str:
        line = self._peek()
        if not line:
            raise self._error("it ends too early")
        self._at += 1
        return line

    def _error(self, what: str) -> PatchError:
        return PatchError(f"line {self._at} of the patch: {what}")


def _without_prefix(old: str | None, new: str | None) -> tuple[str | None, str | None]:
    """The paths of names such as `a/PATH` and `b/PATH`; of names without such prefixes, themselves."""
    if all(name is None or _PREFIX.match(name) for name in (old, new)):
        return (old and old[2:]), (new and new[2:])
    return old, new


def _same_path(names: str) -> str | None:
    """The path of `a/PATH b/PATH`, both the same; None where they are not, or it is not clear where they end."""
    quoted = re.fullmatch(rf"({QUOTED}|\S+) ({QUOTED}|\S+)", names)
    both = (quoted[1], quoted[2]) if quoted else (names[: len(names) // 2], names[len(names) // 2 + 1 :])
    old, new = _without_prefix(*map(_plain, both))
    return old if old == new else None


def _plain(name: str) -> str:
    return unquote(name) if re.fullmatch(QUOTED, name) else name
