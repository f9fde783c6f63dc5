"""Packages that specification tasks are made of: those that are installed here, and source distributions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from slime_swe.data_sources.factory.packages import ARCHIVES, MAX_FILE_BYTES, MAX_PACKAGE_BYTES, Package, read_package
from slime_swe.errors import UserError

_TEST_FOLDERS = {"test", "tests", "testing"}
_TEST_FILE = re.compile(r"test_.*\.py|.*_tests?\.py|conftest\.py")


def project(name: str, version: str, files: Mapping[str, str], licence: str = "") -> Package:
    """The files told apart: a test is what is named so, or lies in a folder of tests. Raises `UserError` where there is
    no code."""
    modules = sorted(path for path in files if path.endswith(".py"))
    protected = tuple(sorted(path for path in files if _of_tests(path)))
    tests = tuple(path for path in protected if path.endswith(".py") and PurePosixPath(path).name.startswith("test"))
    code = tuple(path for path in modules if path not in protected)
    if not code:
        raise UserError(f"{name} has no Python code of its own: give a package that is written in Python")
    return Package(name, version, dict(files), licence, "", code, tests, protected)


def named(name: str) -> Package:
    """A source distribution by its path, which ends as its archive does, or else an installed package. Raises
    `UserError`."""
    return read_package(Path(name).expanduser()) if name.endswith(ARCHIVES) else installed(name)


def installed(name: str) -> Package:
    """The package of that name, as it is installed for this Python. Raises `UserError` where it is not, or where its
    text has more than `MAX_PACKAGE_BYTES`."""
    try:
        found = distribution(name)
    except (PackageNotFoundError, ValueError) as error:
        raise UserError(f"the package {name!r} is not installed for this Python: pip install {name}") from error
    files: dict[str, str] = {}
    for entry in found.files or ():
        path = PurePosixPath(entry)
        if ".." in path.parts or "__pycache__" in path.parts or path.parts[0].endswith((".dist-info", ".egg-info")):
            continue
        text = _text(found, str(path))
        if text is not None:
            files[str(path)] = text
    if sum(map(len, files.values())) > MAX_PACKAGE_BYTES:
        raise UserError(
            f"the package {name} has more than {MAX_PACKAGE_BYTES >> 20} MiB of text, which each task would hold"
        )
    licences = [*(found.metadata.get_all("License-Expression") or []), *(found.metadata.get_all("License") or [])]
    return project(found.name, found.version, dict(sorted(files.items())), next(iter(licences), "").partition("\n")[0])


def _text(found: Distribution, path: str) -> str | None:
    """None for what is too large, or is no UTF-8."""
    try:
        content = found.locate_file(path).read_bytes()  # type: ignore[attr-defined]
        text = str(content.decode("utf-8")) if len(content) <= MAX_FILE_BYTES else None
    except (OSError, UnicodeDecodeError):
        return None
    return None if text is None or "\0" in text or path.endswith(".pth") else text


def _of_tests(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return not _TEST_FOLDERS.isdisjoint(parts[:-1]) or bool(_TEST_FILE.fullmatch(parts[-1]))
