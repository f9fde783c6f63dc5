"""Unified diffs of a set of files, in git's form but without git: `git apply` takes what `make_patch` makes."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rollout.patch_reader import ESCAPES, NO_NEWLINE, Change, Hunk, PatchError, read_patch, split_lines

__all__ = ["MAX_PATCH_BYTES", "OVERSIZED", "PatchError", "apply_patch", "binary_paths", "bounded_patch", "make_patch"]

MAX_PATCH_BYTES = 1 << 20
OVERSIZED = f"The patch has more than {MAX_PATCH_BYTES} bytes and is left out.\n"  # as a patch it changes nothing

Files = Mapping[str, str | bytes]
Opcode = tuple[str, int, int, int, int]  # as difflib has it: kind, old start and end, new start and end

_CONTEXT_LINES = 3
_ODD = re.compile(r'[\x00-\x1f\x7f"\\\udc80-\udcff]')
_MAX_COMPARISONS = 2_000_000  # a change that needs more is written as one replacement: matching lines is quadratic


def make_patch(before: Files, after: Files) -> str:
    """The patch from `before` to `after`; empty where they are equal.

    A file that is not UTF-8 text, before or after, is only named, by git's line `Binary files … differ`.
    """
    return "".join(_file_patches(before, after))


def bounded_patch(before: Files, after: Files) -> str:
    """The same, but `OVERSIZED` in place of a patch of more than `MAX_PATCH_BYTES`."""
    pieces: list[str] = []
    size = 0
    for piece in _file_patches(before, after):
        size += len(piece.encode())
        if size > MAX_PATCH_BYTES:
            return OVERSIZED
        pieces.append(piece)
    return "".join(pieces)


def apply_patch(files: Files, patch: str) -> dict[str, bytes]:
    """The files with the patch applied, at the stated lines and with exactly the stated context.

    A file that the patch names as a binary change stays as it is (see `binary_paths`). Raises `PatchError`.
    """
    result = _encoded(files)
    for change in read_patch(patch):
        _apply(result, change)
    for path in result:
        for parent in _parents(path):
            if parent in result:
                raise PatchError(f"{parent} would be both a file and a folder, of {path}")
    return result


def binary_paths(patch: str) -> list[str]:
    """The files whose change the patch states but does not carry. Raises `PatchError`."""
    return [change.path for change in read_patch(patch) if change.binary]


def _encoded(files: Files) -> dict[str, bytes]:
    return {path: content.encode() if isinstance(content, str) else content for path, content in files.items()}


def _text(content: bytes) -> str | None:
    """None where the content is not text."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _apply(files: dict[str, bytes], change: Change) -> None:
    path = change.path
    if change.created == (path in files):
        raise PatchError(f"{path} {'exists already' if change.created else 'is not there'}")
    if change.binary:
        return
    text = _text(files.get(path, b""))
    if text is None:
        raise PatchError(f"{path} is not text")
    result = "".join(_patched(path, split_lines(text), change.hunks))
    if change.deleted and result:
        raise PatchError(f"{path} would be deleted, but the patch leaves {len(result)} characters of it")
    if change.deleted:
        del files[path]
    else:
        files[path] = result.encode()


def _patched(path: str, lines: list[str], hunks: Iterable[Hunk]) -> Iterator[str]:
    done = 0
    for hunk in hunks:
        end = hunk.start + len(hunk.old)
        if hunk.start < done or lines[hunk.start : end] != hunk.old:
            raise PatchError(f"{path} does not have the lines that the patch expects at line {hunk.start + 1}")
        yield from lines[done : hunk.start]
        yield from hunk.new
        done = end
    yield from lines[done:]


def _file_patches(before: Files, after: Files) -> Iterator[str]:
    old, new = _encoded(before), _encoded(after)
    for path in sorted({*old, *new}):
        if old.get(path) != new.get(path):
            yield _file_patch(path, old.get(path), new.get(path))


def _file_patch(path: str, before: bytes | None, after: bytes | None) -> str:
    old_name, new_name = _quote(f"a/{path}"), _quote(f"b/{path}")
    header = f"diff --git {old_name} {new_name}\n"
    if before is None:
        header, old_name = f"{header}new file mode 100644\n", "/dev/null"
    if after is None:
        header, new_name = f"{header}deleted file mode 100644\n", "/dev/null"
    old, new = _text(before or b""), _text(after or b"")
    if old is None or new is None:
        return f"{header}Binary files {old_name} and {new_name} differ\n"
    hunks = "".join(_hunks(split_lines(old), split_lines(new)))
    return f"{header}--- {_ended(old_name)}\n+++ {_ended(new_name)}\n{hunks}" if hunks else header


def _ended(name: str) -> str:
    """As git does, a tab after a name with spaces, so that its end can be told from a date."""
    return f"{name}\t" if " " in name else name


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, autojunk=False)
    matcher.opcodes = _opcodes(old, new)  # type: ignore[attr-defined]  # for the grouping alone
    for group in matcher.get_grouped_opcodes(_CONTEXT_LINES):
        first, last = group[0], group[-1]
        yield f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n"
        for kind, old_start, old_end, new_start, new_end in group:
            yield from _marked(" " if kind == "equal" else "-", old[old_start:old_end])
            if kind != "equal":
                yield from _marked("+", new[new_start:new_end])


def _opcodes(old: list[str], new: list[str]) -> list[Opcode]:
    """How to turn `old` into `new`; the common beginning and end cost nothing."""
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    tail = next((i for i in range(shorter - head) if old[-1 - i] != new[-1 - i]), shorter - head)
    old_end, new_end = len(old) - tail, len(new) - tail
    middle = [
        (kind, a + head, b + head, c + head, d + head)
        for kind, a, b, c, d in _matched(old[head:old_end], new[head:new_end])
    ]
    prefix: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    suffix: list[Opcode] = [("equal", old_end, len(old), new_end, len(new))] if tail else []
    return prefix + middle + suffix


def _matched(old: list[str], new: list[str]) -> Sequence[Opcode]:
    counts = Counter(new)
    if sum(counts[line] for line in old) + len(old) + len(new) > _MAX_COMPARISONS:
        return [("replace", 0, len(old), 0, len(new))]
    return list(difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes())


def _marked(mark: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line if line.endswith("\n") else f"{mark}{line}\n{NO_NEWLINE}\n"


def _range(start: int, end: int) -> str:
    count = end - start
    first = start + 1 if count else start
    return str(first) if count == 1 else f"{first},{count}"


def _quote(name: str) -> str:
    """A path as git writes it: in quotes, C-style, where it holds a control character, a quote, a backslash or a byte
    that is no UTF-8 (in a Python string a lone surrogate, as `os.fsdecode` has it)."""
    if not _ODD.search(name):
        return name
    return f'"{_ODD.sub(_escape, name)}"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in ESCAPES:
        return f"\\{ESCAPES[character]}"
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))
