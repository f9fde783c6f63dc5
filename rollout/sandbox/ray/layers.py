"""Layers on other nodes: the same folder where the node sees it too, else a copy in the node's cache, made once."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from slime_swe.rollout.sandbox.cache import cache_folder, made_once


def identity(folder: Path) -> str:
    """Of a layer's names, modes, sizes, times (to the microsecond) and links: the same on every node that sees the
    folder, and another when a file is written anew. Raises `OSError`.
    """
    digest = hashlib.sha256()
    for path in _below(folder):
        state = path.lstat()
        target = os.readlink(path) if path.is_symlink() else ""
        content = (state.st_size, state.st_mtime_ns // 1000) if stat.S_ISREG(state.st_mode) else ()
        digest.update(f"{path.relative_to(folder)}\0{state.st_mode}\0{content}\0{target}\0".encode("utf-8", "replace"))
    return digest.hexdigest()[:24]


def find(folder: Path, wanted: str) -> Path | None:
    """Where this machine has the layer; None where it has not."""
    copy = _place(wanted)
    if copy.exists():
        return copy
    try:
        return folder if folder.is_dir() and identity(folder) == wanted else None
    except OSError:  # it is another's folder, or changes
        return None


def pack(folder: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(folder, ".")
    return packed.getvalue()


def unpack(wanted: str, packed: bytes) -> Path:
    """The copy in this machine's cache, made if need be. Its bytes are the driver's own, and are trusted as such."""

    def fill(place: Path) -> None:
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            # Before 3.11.4 Python has no filters, and extracts as this one does.
            tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
            tar.extractall(place)

    return made_once(_place(wanted), fill)


def _place(wanted: str) -> Path:
    return cache_folder() / "layers" / wanted


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *names]):
            yield Path(place, name)
