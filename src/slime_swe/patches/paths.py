"""Which files a patch names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from slime_swe.patches.model import QUOTED, PatchError, as_text, unquote
from slime_swe.patches.read import changes_of, read_patch

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
    """Every path that the patch changes, adds, removes, renames or copies, sorted. Raises `PatchError`."""
    changes = read_patch(patch)
    return tuple(
        sorted({path for change in changes for path in (change.old_path, change.new_path) if path is not None})
    )


def added_paths(patch: str) -> tuple[str, ...]:
    """The paths that were not there before, sorted. Raises `PatchError`."""
    return tuple(sorted({change.path for change in read_patch(patch) if change.old_path is None or change.moved}))


def binary_paths(patch: str) -> list[str]:
    """The files whose change the patch states but does not carry. Raises `PatchError`."""
    return [change.path for change in read_patch(patch) if change.only_stated]


def changed_lines(patch: str) -> Iterator[tuple[str, str]]:
    """(path, `+line` or `-line`) for every line that the patch adds or removes. Raises `PatchError` where it is
    malformed, after the lines before that."""
    for change in changes_of(patch):
        for hunk in change.hunks:
            yield from ((change.path, line.removesuffix("\n")) for line in hunk.lines if line[0] != " ")


def header_paths(patch: str) -> set[str]:
    """Every path that a line could name as a file's, to whichever program reads the patch: more than it changes.

    Names are taken with and without their first folder and what may be a date after them, from indented lines, and from
    hunks too (where `--- x` may be a removed `-- x`). Raises `PatchError` for what is no text.
    """
    words = {word for mark, line in _HEADER.findall(as_text(patch)) for word in _names(mark, line)}
    words = {re.sub("/+", "/", word) for word in words if len(word) <= _MAX_PATH}
    paths = {path for word in words for path in (word, word.partition("/")[2])}
    return {_normal(path) for path in paths if path and not path.startswith("/")}


def require_few_folders(paths: Iterable[str]) -> None:
    """Raises `PatchError` where the paths are in more than `MAX_FOLDERS`. Looks at no more than that."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            if len(folders) > MAX_FOLDERS:
                raise PatchError(f"the paths of a patch must not be in more than {MAX_FOLDERS} folders")
            folder = folder.rpartition("/")[0]


def _names(mark: str, line: str) -> Iterator[str]:
    """What may be a name: what is quoted, all up to a tab, the first word, all but the words of a date; of git's first
    line, which has two names, each half and each word."""
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
    """What stands in quotes from the start, after a blank, or from the first quote. None of those after blanks goes on
    beyond the next of them, so that this is done once over the line."""
    first = line.find('"')
    if first >= 0 and (match := _QUOTED.match(line, first)):
        yield match[0]
    yield from _QUOTED_AFTER_BLANK.findall(line)


def _is_pair(line: str) -> bool:
    """Whether it is `a/PATH b/PATH`, both the same."""
    middle = len(line) // 2
    return line[middle : middle + 1] == " " and line[:middle].partition("/")[2] == line[middle + 1 :].partition("/")[2]


def _normal(path: str) -> str:
    """Without `.` and empty parts, of which most paths have none."""
    return str(PurePosixPath(path)) if "." in path[:1] or "/." in path or path.endswith("/") else path
