"""Functions before and after the fixes of vulnerabilities that Debian's source packages carry as patches.

The folder holds what `apt-get source --download-only PACKAGE` leaves, or unpacked packages; and, where they are to name
the weaknesses, NVD's or CVE's JSON (`data_sources/vulnerability.py`).
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

from slime_swe.data_sources.corpora.corpus import Corpus, NotFetched, Split
from slime_swe.data_sources.task import Task
from slime_swe.data_sources.vulnerability import Pair, tasks_of, weaknesses_in
from slime_swe.errors import UserError
from slime_swe.patches import Change, Hunk, PatchError, read_patch

CORPUS = Corpus(
    name="debian_cve",
    title="Fixes in Debian's source packages",
    licence="each package's own",
    home="https://www.debian.org",
    counted="nowhere: it is as large as the packages that the folder holds",
    needs="tree-sitter to cut the functions",
    splits={"one": Split(None, "C"), "all": Split(None, "C")},
    brought_by="apt-get source --download-only PACKAGE",
    in_images=False,
)


def load(split: str, folder: Path | None = None) -> list[Task]:
    """Return the tasks of patches that change one function, which must be the faulty one (`one`), or of all (`all`).

    Raises `UserError`; `NotFetched` where the folder is not there.
    """
    CORPUS.split(split)
    root = CORPUS.folder(folder)
    if not root.is_dir():
        raise NotFetched(CORPUS, split, folder, "there is no such folder")
    known = weaknesses_in(root)
    pairs = []
    for _, fixes in groupby(fixes_in(root), key=lambda fix: (fix.package, fix.patch)):
        found = [pair for fix in fixes for pair in _pairs(fix, known)]
        pairs += found if split == "all" or len(found) == 1 else []
    return tasks_of({pair.name: pair for pair in pairs}.values(), CORPUS.name, split)


def _pairs(fix: Fix, known: dict[str, tuple[str, ...]]) -> Iterator[Pair]:
    """Yield a pair for each function of a C file that the fix changes by more than comments and white space."""
    if not fix.path.endswith((".c", ".h")):
        return
    before, after = functions_of(fix.before), functions_of(fix.after)
    cwes = tuple(sorted({*fix.cwes, *(cwe for cve in fix.cves for cwe in known.get(cve, ()))}))
    for name, text in before.items():
        fixed = after.get(name, text)
        if text == fixed or without_comments(text) == without_comments(fixed) or not _is_utf8(text + fixed):
            continue
        metadata = {"repo": fix.package, "cves": [*fix.cves], "file": fix.path, "function": name}
        dated = {"created_at": fix.date} if fix.date else {}
        yield Pair(f"{fix.package}-{'-'.join(fix.cves)}-{name}", text, fixed, cwes, metadata=metadata | dated)


# Debian's fixes of vulnerabilities: `debian/patches/CVE-*.patch` of a source package, as files before and after each.
#
# A package is given as Debian has it (`NAME_VERSION.debian.tar.xz` beside `NAME_VERSION.orig.tar.*`, which `apt-get
# source --download-only NAME` leaves) or as an unpacked tree, whose patches may be applied (`dpkg-source` keeps in
# `.pc` what was there before each) or not. Patches are applied in the order of `debian/patches/series`.
CVE = re.compile(r"CVE-\d{4}-\d{4,7}")
_PREPARES = re.compile(r"\d-pre")  # CVE-2025-24928-pre1.patch is what the fix needs, not the fix
_WEAKNESS = re.compile(r"\bCWE-[1-9]\d{0,4}\b")
_DATE = re.compile(r"^(?:Date|Last-Update): *(.+)$", re.MULTILINE)
_SIDE = r"(/dev/null|(?:\./)?[^/\s]+/+\S+).*\n"
_NAMES = re.compile(rf"^--- {_SIDE}\+\+\+ {_SIDE}", re.MULTILINE)
_EXTENDED = re.compile(
    r"^(?:diff --git|index|Index:|=====|old mode|new mode|new file mode|deleted file mode).*\n", re.MULTILINE
)
_BODY = re.compile(r"^(?:--- |diff |Index: )", re.MULTILINE)
_ARCHIVE = re.compile(r"(?P<name>[a-z0-9][a-z0-9.+-]+)_(?P<version>[^_]+)\.debian\.tar\.(?:xz|gz|bz2)")
_MOST_BYTES = 4 << 20  # of a file
_Read = Callable[[str], str | None]  # a path in the unpatched source -> its text


@dataclass(frozen=True)
class Fix:
    """The change of one file by one patch. cves: those that the patch names. date: ISO 8601, empty where the patch has
    none."""

    package: str
    patch: str
    path: str
    before: str
    after: str
    cves: tuple[str, ...]
    cwes: tuple[str, ...]
    date: str


def fixes_in(folder: Path) -> Iterator[Fix]:
    """Yield the fixes of every package in a folder, or of the tree that the folder is, in the order of names.

    Raises `UserError` where there is none, where an archive is damaged, and where the source beside it is missing.
    """
    packages = [folder] if _is_tree(folder) else sorted(folder.iterdir()) if folder.is_dir() else []
    chosen = [path for path in packages if _is_tree(path) or _ARCHIVE.fullmatch(path.name)]
    if not chosen:
        raise UserError(
            f"{folder} holds no source package of Debian: no NAME_VERSION.debian.tar.xz and no tree with debian/patches"
        )
    for path in chosen:
        yield from _of_tree(path) if path.is_dir() else _of_archive(path)


def _is_tree(path: Path) -> bool:
    return (path / "debian" / "patches" / "series").is_file()


def _of_tree(tree: Path) -> Iterator[Fix]:
    patches = _ordered({
        str(path.relative_to(tree / "debian/patches")): _text(path.read_bytes())
        for path in (tree / "debian/patches").rglob("*") if path.is_file()
    })  # fmt: skip
    name = _package_of(tree)
    kept = tree / ".pc"
    if not (kept / "applied-patches").is_file():
        yield from _applied(name, patches, lambda path: _given(tree / path))
        return
    applied = (kept / "applied-patches").read_text(encoding="utf-8").split()
    for number, patch in enumerate(applied):
        for path in sorted(_paths(patches.get(patch, ""))):
            later = [kept / one / path for one in applied[number + 1 :]]
            after = next((_given(place) for place in later if place.is_file()), _given(tree / path))
            before = _given(kept / patch / path)
            if before and after:
                yield from _fix(name, patch, patches[patch], path, before, after)


def _package_of(tree: Path) -> str:
    """Name the package by the first line of `debian/changelog`, else by the folder."""
    changelog = tree / "debian" / "changelog"
    line = _text(changelog.read_bytes()).partition("\n")[0] if changelog.is_file() else ""
    return line.partition(" (")[0] or tree.name


def _of_archive(path: Path) -> Iterator[Fix]:
    found = _ARCHIVE.fullmatch(path.name)
    assert found is not None, path
    name, version = found["name"], found["version"]
    upstream = version.rpartition("-")[0] or version
    originals = sorted(path.parent.glob(f"{name}_{upstream}.orig.tar.*[z2]"))
    if not originals:
        raise UserError(
            f"{path} has patches alone, and the functions are in {name}_{upstream}.orig.tar.*, which is not beside it: "
            f"`apt-get source --download-only {name}` brings both"
        )
    inside = _members(path, lambda inner: inner.startswith("debian/patches/"))
    patches = _ordered({inner.removeprefix("debian/patches/"): text for inner, text in inside.items()})
    wanted = {file for patch in patches.values() for file in _paths(patch)}
    source = {
        inner.partition("/")[2]: text
        for inner, text in _members(originals[0], lambda inner: inner.partition("/")[2] in wanted).items()
    }
    yield from _applied(name, patches, source.get)


def _members(archive: Path, wanted: Callable[[str], bool]) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                inner = member.name.removeprefix("./")
                if member.isfile() and member.size <= _MOST_BYTES and wanted(inner):
                    file = tar.extractfile(member)
                    found[inner] = _text(file.read()) if file else ""
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise UserError(f"{archive} can't be read: {error}") from error
    return found


def _ordered(patches: Mapping[str, str]) -> dict[str, str]:
    """Return the patches in the order of the series; what it does not name is not applied."""
    names = (line.partition("#")[0].split() for line in patches.get("series", "").splitlines())
    return {words[0]: patches[words[0]] for words in names if words and words[0] in patches}


def _applied(name: str, patches: Mapping[str, str], read: _Read) -> Iterator[Fix]:
    """Yield the series' fixes, file by file. A file to which a patch can't be applied is not followed any further."""
    files: dict[str, str | None] = {}
    for patch, text in patches.items():
        for path, change in _changes(text):
            before = files[path] if path in files else read(path)
            after = _patched(before, change.hunks) if before is not None else None
            files[path] = after
            if before and after:
                yield from _fix(name, patch, text, path, before, after)


def _changes(text: str) -> Iterator[tuple[str, Change]]:
    """Yield the changes of files that stay where they are, within the source. Debian applies patches by `-p1`: the
    first part of a path is cut off, whatever it is called."""
    body = _EXTENDED.sub("", text[len(_head(text)) :])
    try:
        changes = read_patch(_NAMES.sub(lambda found: f"--- {_in('a', found[1])}\n+++ {_in('b', found[2])}\n", body))
    except PatchError:
        return
    for change in changes:
        stays = change.old_path == change.new_path and ".." not in PurePosixPath(change.path).parts
        if stays and change.hunks:
            yield change.path, change


def _in(folder: str, name: str) -> str:
    """Return a name with another first part."""
    return name if name == "/dev/null" else f"{folder}/{name.removeprefix('./').partition('/')[2].lstrip('/')}"


def _paths(text: str) -> set[str]:
    return {path for path, _ in _changes(text)}


def _patched(text: str, hunks: Sequence[Hunk]) -> str | None:
    """Apply the hunks where they fit best, as `patch` does without fuzz; None where one fits nowhere."""
    lines, done, offset = text.splitlines(keepends=True), 0, 0
    out: list[str] = []
    for hunk in hunks:
        expected = hunk.old_start - bool(hunk.old) + offset
        at = _place(lines, done, hunk.old, expected)
        if at is None:
            return None
        out += [*lines[done:at], *hunk.new]
        done, offset = at + len(hunk.old), offset + at - expected
    return "".join([*out, *lines[done:]])


def _place(lines: Sequence[str], start: int, wanted: Sequence[str], expected: int) -> int | None:
    """Find the wanted lines, from `start` on, as near as possible to the expected place."""
    last = len(lines) - len(wanted)
    near = (place for away in range(len(lines) + 1) for place in {expected - away, expected + away})
    return next((at for at in near if start <= at <= last and lines[at : at + len(wanted)] == wanted), None)


def _fix(package: str, patch: str, text: str, path: str, before: str, after: str) -> Iterator[Fix]:
    """Yield the fix, or nothing where the patch's name has no CVE, or the file is no part of the program."""
    cves = tuple(sorted(set(CVE.findall(patch))))
    parts = PurePosixPath(path).parts
    if (
        cves
        and not _PREPARES.search(patch)
        and not any(part.startswith(("test", "fuzz", "example", "doc")) for part in parts)
    ):
        yield Fix(package, patch, path, before, after, cves, _weaknesses(text), _date(text))


def _weaknesses(text: str) -> tuple[str, ...]:
    return tuple(sorted(set(_WEAKNESS.findall(_head(text)))))


def _date(text: str) -> str:
    """Read the date of the patch's header."""
    for found in _DATE.findall(_head(text)):
        for read in (parsedate_to_datetime, datetime.fromisoformat):
            try:
                date: datetime = read(found.strip())
            except ValueError:
                continue
            return (date if date.tzinfo else date.replace(tzinfo=UTC)).isoformat()
    return ""


def _head(text: str) -> str:
    """Return the text that stands before the changes."""
    start = _BODY.search(text)
    return text[: start.start()] if start else text


def _given(path: Path) -> str | None:
    return _text(path.read_bytes()) if path.is_file() and path.stat().st_size <= _MOST_BYTES else None


def _text(content: bytes) -> str:
    """Decode any bytes: what is no UTF-8 can be encoded again as it was."""
    return content.decode("utf-8", "surrogateescape")


@cache
def _parser() -> Any:
    """Return tree-sitter's parser of C (extra `vulnerability`). Raises `UserError` where it is not installed."""
    try:
        import tree_sitter
        import tree_sitter_c
    except ImportError as error:
        raise UserError("C functions are cut by tree-sitter: pip install 'slime-swe[vulnerability]'") from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_c.language()))


@lru_cache(maxsize=8)  # what a patch leaves is what the next one finds
def functions_of(source: str) -> Mapping[str, str]:
    """Return each function's text by its name; of those that a file defines several times, as behind an #ifdef, none.

    Raises `UserError` where tree-sitter is not installed.
    """
    content = source.encode("utf-8", "surrogateescape")
    found: dict[str, list[str]] = {}
    for node in _definitions(_parser().parse(content).root_node):
        if name := _name(node):
            text = content[node.start_byte : node.end_byte].decode("utf-8", "surrogateescape")
            found.setdefault(name, []).append(text)
    return {name: texts[0] for name, texts in found.items() if len(texts) == 1}


def _definitions(root: Any) -> Iterator[Any]:
    """Yield whole functions. What tree-sitter could not read, as for a macro that it does not know, is left out."""
    pending = [root]
    while pending:
        node = pending.pop()
        if node.type == "function_definition":
            if not node.has_error:
                yield node
        else:
            pending += reversed(node.named_children)


def _name(node: Any) -> str:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "identifier":
        declarator = declarator.child_by_field_name("declarator")
    return declarator.text.decode() if declarator is not None else ""


def without_comments(source: str) -> list[str]:
    """Return the words of a C text, to tell whether two differ in more than comments and white space."""
    words: list[str] = []
    pending = [_parser().parse(source.encode("utf-8", "surrogateescape")).root_node]
    while pending:
        node = pending.pop()
        if node.type == "comment":
            continue
        if node.child_count:
            pending += reversed(node.children)
        else:
            words.append(node.text.decode("utf-8", "surrogateescape"))
    return words


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
