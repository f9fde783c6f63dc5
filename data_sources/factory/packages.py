"""`Package`: the files of a source distribution, and which of them are code, tests, or neither."""

from __future__ import annotations

import hashlib
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Literal

import orjson

from slime_swe.errors import UserError
from slime_swe.patches import make_patch, read_patch

MAX_FILE_BYTES = 512 << 10
MAX_PACKAGE_BYTES = 8 << 20
ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
_LEFT_OUT = {"doc", "docs", "example", "examples", "benchmark", "benchmarks", ".github", ".git", "__pycache__"}
_PROSE = {".rst", ".md", ".html", ".ipynb", ".svg", ".css", ".lock"}
_TEST_FOLDERS = {"test", "tests", "testing"}
_NO_CODE = {"setup.py", "conftest.py", "noxfile.py", "fabfile.py", "tasks.py", "versioneer.py", "release.py"}
_TEST_FILE = re.compile(r"test_.*\.py|.*_tests?\.py|tests?\.py")
_LICENCE_CLASSIFIER = "License :: "


@dataclass(frozen=True)
class Package:
    """A source distribution. name, version, licence: as its metadata say. files: path → text; prose, and what is not
    UTF-8, is left out.

    root: the folder that the tests import from, empty for the repository's own. code: the modules that may be changed.
    tests: the files that pytest collects. protected: these, and all else in folders of tests.
    """

    name: str
    version: str
    files: dict[str, str] = field(repr=False)
    licence: str = ""
    root: str = ""
    code: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"{self.name}-{self.version}"

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the package's files."""
        return hashlib.sha256(orjson.dumps(self.files, option=orjson.OPT_SORT_KEYS)).hexdigest()


def read_package(archive: Path) -> Package:
    """Read an archive. Raises `UserError` where it is no source distribution, or has no code or no tests in it."""
    files = {path: text for path, text in _texts(archive)}
    about = HeaderParser().parsestr(files.get("PKG-INFO", ""))
    name, version = about["Name"], about["Version"]
    if not name or not version:
        raise UserError(f"{archive} is no source distribution: it has no PKG-INFO with a name and a version")
    files = {path: text for path, text in files.items() if _is_kept(path)}
    if sum(map(len, files.values())) > MAX_PACKAGE_BYTES:
        raise UserError(f"{archive}: its text has more than {MAX_PACKAGE_BYTES >> 20} MiB, which every task would hold")
    return layout(Package(_normal(name), version, files, _licence(about.get_all("Classifier") or [], about)), archive)


def layout(package: Package, where: Path | str) -> Package:
    """Return the package with its files told apart. Raises `UserError` where it has no code or no tests."""
    files = package.files
    modules = [path for path in files if path.endswith(".py")]
    root = "src" if any(path.startswith("src/") for path in modules) else ""
    tests = tuple(sorted(path for path in modules if _is_test(path)))
    protected = tuple(sorted(path for path in files if _is_protected(path)))
    code = tuple(sorted(path for path in modules if path not in protected and _is_code(path, root, files)))
    if not code or not tests:
        missing = "tests" if code else "Python code"
        raise UserError(f"{where} has no {missing} in it: give a package whose source distribution has both")
    return Package(package.name, package.version, files, package.licence, root, code, tests, protected)


def _texts(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield paths below the archive's one folder, and their UTF-8 text."""
    try:
        for path, content in _members(archive):
            inside = path.partition("/")[2]
            parts = PurePosixPath(inside).parts
            if not inside or ".." in parts or inside.startswith("/") or str(PurePosixPath(inside)) != inside:
                continue
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError:
                continue
            if "\0" not in text:
                yield inside, text
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"can't read {archive}: {error}") from error
    except OSError as error:
        raise UserError(f"can't read {archive}: {error.strerror or error}") from error


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.name.endswith(".zip"):
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                if not entry.is_dir() and entry.file_size <= MAX_FILE_BYTES:
                    yield entry.filename, packed.read(entry)
        return
    with tarfile.open(archive) as bundle:
        for member in bundle:
            if member.isfile() and member.size <= MAX_FILE_BYTES and (opened := bundle.extractfile(member)):
                yield member.name.removeprefix("./"), opened.read()


def _is_kept(path: str) -> bool:
    parts = PurePosixPath(path).parts
    if _in_tests(path):
        return True
    return _LEFT_OUT.isdisjoint(parts[:-1]) and PurePosixPath(path).suffix not in _PROSE


def _is_protected(path: str) -> bool:
    return _is_test(path) or _in_tests(path) or _name(path) == "conftest.py"


def _is_test(path: str) -> bool:
    return bool(_TEST_FILE.fullmatch(_name(path)))


def _in_tests(path: str) -> bool:
    return not _TEST_FOLDERS.isdisjoint(PurePosixPath(path).parts[:-1])


def _is_code(path: str, root: str, files: dict[str, str]) -> bool:
    """Say whether a path is a module at the root, or in a package there."""
    inside = path.removeprefix(f"{root}/") if root else path
    if root and inside == path:
        return False
    folder, slash, _ = inside.partition("/")
    top = f"{root}/{folder}" if root else folder
    return f"{top}/__init__.py" in files if slash else inside not in _NO_CODE


def _name(path: str) -> str:
    return PurePosixPath(path).name


def _normal(name: str) -> str:
    """Normalise a name as PEP 503 does."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _licence(classifiers: list[str], about: object) -> str:
    given = about["License-Expression"] or about["License"] or ""  # type: ignore[index]
    named = [line.rsplit(" :: ", 1)[-1] for line in classifiers if line.startswith(_LICENCE_CLASSIFIER)]
    first = str(given).strip().splitlines()
    return first[0][:80] if first and first[0] != "UNKNOWN" else ", ".join(named)


# `Candidate`: a changed package that may be a task, before anything has run.
Source = Literal["faults", "releases", "written"]


@dataclass(frozen=True)
class Span:
    """Lines of a file, 1-based, both ends in it."""

    path: str
    first: int
    last: int

    def meets(self, other: Span) -> bool:
        return self.path == other.path and self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Candidate:
    """A changed package that may be a task. package: right. changes: path → text of the broken state, None for a file
    that it lacks.

    kind: of the change: a modifier's name, or whatever made it. spans: where in the right code the change is; the tests
    that run these lines are its tests.
    """

    package: Package
    source: Source
    kind: str
    changes: Mapping[str, str | None] = field(repr=False)
    spans: Sequence[Span]
    about: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """A SHA-256 that is the same for the same change of the same package."""
        parts = [self.package.label, self.package.fingerprint, self.source, self.kind, sorted(self.changes.items())]
        return hashlib.sha256(orjson.dumps(parts)).hexdigest()

    @property
    def id(self) -> str:
        return f"{self.package.label}-{self.kind.removeprefix('func_pm_').replace('_', '-')}-{self.digest[:8]}"

    def broken_files(self) -> dict[str, str]:
        files = {**self.package.files, **self.changes}
        return {path: text for path, text in files.items() if text is not None}

    def gold_patch(self) -> str:
        """Make the patch from the broken state to the package."""
        broken = {path: text for path, text in self.changes.items() if text is not None}
        right = {path: self.package.files[path] for path in self.changes if path in self.package.files}
        return make_patch(broken, right)


# Releases: the code of one release under the tests of the next. What people changed between them is the fix.
KIND = "release"


def between(older: Package, newer: Package) -> Candidate | None:
    """Return the newer release with the older one's code; None where the code is the same, or lies elsewhere.

    Code that the newer release no longer has comes back with it, and what is new is missing. `conftest.py`, settings
    and data stay as in the newer one.
    """
    if older.root != newer.root:
        return None
    paths = sorted({*older.code, *newer.code})
    changes = {path: older.files.get(path) for path in paths if older.files.get(path) != newer.files.get(path)}
    changes = {path: text for path, text in changes.items() if path not in newer.protected}
    if not changes:
        return None
    spans = tuple(span for path, text in changes.items() for span in changed_spans(path, text, newer.files.get(path)))
    about = {"before": older.version}
    return Candidate(newer, "releases", KIND, changes, spans, about)


def changed_spans(path: str, broken: str | None, right: str | None) -> list[Span]:
    """Return where the right file differs, each hunk with its context; nothing where there is no right file."""
    if right is None:
        return []
    if broken is None:
        return [Span(path, 1, right.count("\n") + 1)]
    patch = make_patch({path: broken}, {path: right})
    hunks = [hunk for change in read_patch(patch) for hunk in change.hunks]
    return [Span(path, hunk.new_start, hunk.new_start + len(hunk.lines)) for hunk in hunks]
