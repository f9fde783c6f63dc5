"""Where sandboxes keep what is made once for an image, and how two processes don't make it twice."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from slime_swe import files


def cache_folder() -> Path:
    """That of sandboxes in the user's cache folder, made if need be."""
    folder = files.cache_folder("sandbox")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def made_once(place: Path, make: Callable[[Path], None]) -> Path:
    """The folder `place`. If it does not exist, `make` fills it under a temporary name. Blocks while another process
    makes it.
    """
    with locked(place):
        if not place.exists():
            half = place.with_name(f"{place.name}.half")
            remove_tree(half)
            half.mkdir(parents=True)
            make(half)
            half.rename(place)
    return place


@contextmanager
def locked(place: Path) -> Iterator[None]:
    """Exclusive access to this place among all processes of this machine, inside the context."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(place.with_name(f"{place.name}.lock")):
        yield


def disk_used(folder: Path) -> int:
    """Bytes that the files of a folder take on its disk, one of several names once."""
    seen = {}
    for place, _, names in os.walk(folder):
        for name in names:
            found = os.lstat(os.path.join(place, name))
            seen[found.st_dev, found.st_ino] = 512 * found.st_blocks
    return sum(seen.values())


def remove_tree(folder: Path) -> None:
    """Remove a folder, if it is there, whatever the modes of those in it."""

    def widen(remove: Callable[[str], object], path: str, error: object) -> None:
        os.chmod(os.path.dirname(path), stat.S_IRWXU)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, stat.S_IRWXU)
            shutil.rmtree(path, ignore_errors=True)
        else:
            remove(path)

    if folder.exists():
        shutil.rmtree(folder, onerror=widen)
