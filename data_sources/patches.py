"""Which files a patch names, and which lines it changes. Applying one is `rollout.patch`."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HEADER = re.compile(r"^diff --git a/(.+?) b/(.+)$")
_FILE = re.compile(r"^(?:---|\+\+\+) (?:[ab]/)?([^\t\n]+)")
_RANGE = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_CANT_TURN = re.compile(r"^(rename|copy|GIT binary patch|Binary files)\b")
_RENAME = re.compile(r"^(?:rename|copy) (?:from|to) (.+)$")


def paths_of(patch: str) -> tuple[str, ...]:
    """Every path that a unified diff changes, adds, removes or renames, sorted."""
    found: set[str] = set()
    for kind, text in _lines(patch):
        match = (_HEADER.match(text) or _FILE.match(text) or _RENAME.match(text)) if kind == "header" else None
        found |= {path.strip() for path in match.groups()} if match else set()
    return tuple(sorted(found - {"/dev/null"}))


def added_paths(patch: str) -> tuple[str, ...]:
    """The paths that were not there before, sorted."""
    added: set[str] = set()
    path = ""
    for kind, text in _lines(patch):
        if kind == "header" and (match := _HEADER.match(text)):
            path = match[2]
        elif kind == "header" and path and text.startswith(("new file mode", "rename to", "copy to", "--- /dev/null")):
            added.add(path)
    return tuple(sorted(added))


def changed_lines(patch: str) -> Iterator[tuple[str, str]]:
    """(path, `+line` or `-line`) for every line that a unified diff adds or removes, in its order."""
    path = ""
    for kind, text in _lines(patch):
        if kind == "header":
            match = _FILE.match(text)
            path = match[1].strip() if match and match[1].strip() != "/dev/null" else path
        elif kind == "hunk" and text[:1] in ("+", "-"):
            yield path, text


def reverse(patch: str) -> str:
    """The patch that undoes this one. Raises `ValueError` where it renames, copies or is binary."""
    lines = list(_lines(patch))
    if any(kind == "header" and _CANT_TURN.match(text) for kind, text in lines):
        raise ValueError("a patch that renames, copies or is binary can't be reversed")
    turned = [_TURN[kind](text) for kind, text in lines]
    for number, (kind, text) in enumerate(lines[:-1]):
        following = lines[number + 1][1]
        if kind == "header" and text.startswith("--- ") and following.startswith("+++ "):
            turned[number : number + 2] = _turned_sides(text[4:], following[4:])
        elif kind == "header" and text.startswith("old mode ") and following.startswith("new mode "):
            turned[number : number + 2] = [f"old mode {following[9:]}", f"new mode {text[9:]}"]
    return "\n".join(turned) + "\n"


def _lines(patch: str) -> Iterator[tuple[str, str]]:
    """Each line, and whether it is a `header`, the `range` of a hunk or in a `hunk`, whose counts say where it ends."""
    old = new = 0
    for line in patch.removesuffix("\n").split("\n"):
        if old > 0 or new > 0 or line.startswith("\\"):
            old -= line[:1] in (" ", "-", "")
            new -= line[:1] in (" ", "+", "")
            yield "hunk", line
        elif match := _RANGE.match(line):
            old, new = (1 if match[group] is None else int(match[group]) for group in (2, 4))
            yield "range", line
        else:
            yield "header", line


def _turn_header(line: str) -> str:
    for before, after in (("new file mode", "deleted file mode"), ("deleted file mode", "new file mode")):
        if line.startswith(before):
            return after + line[len(before) :]
    return re.sub(r"^index (\w+)\.\.(\w+)", r"index \2..\1", line)


def _turn_range(line: str) -> str:
    return re.sub(r"^@@ -(\S+) \+(\S+) @@", r"@@ -\2 +\1 @@", line)


def _turn_line(line: str) -> str:
    return {"+": "-", "-": "+"}.get(line[:1], line[:1]) + line[1:]


def _turned_sides(old: str, new: str) -> list[str]:
    before = new if new == "/dev/null" else f"a/{new.removeprefix('b/')}"
    after = old if old == "/dev/null" else f"b/{old.removeprefix('a/')}"
    return [f"--- {before}", f"+++ {after}"]


_TURN = {"header": _turn_header, "range": _turn_range, "hunk": _turn_line}
