"""`FolderRoom`: unpacked images that may go when their disk is nearly full."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from slime_swe import files
from slime_swe.rollout.sandbox.cache import locked, remove_tree
from slime_swe.rollout.sandbox.room import Room


class FolderRoom(Room):
    """A process that has a sandbox of an image holds a lock on its folder, which ends with the process at the latest;
    what any process of this machine holds stays.

    Not covered: what Docker or Apptainer keeps of an image that was unpacked, and machines that share the cache folder
    over a file system without locks.
    """

    def __init__(self, cache: Path, keep_free: float) -> None:
        super().__init__(cache / "unpacked", keep_free)
        self._cache = cache

    def unpacked(self, name: str, unpack: Callable[[], Path]) -> Path:
        """The folder that `unpack` puts an image into, with room made for it before. Blocks."""
        self.make(self._cache)
        place = unpack()
        self.got(name)
        self.made(name, str(place))
        return place

    def remove(self, name: str, made: Sequence[str]) -> bool:
        """made: the image's folder, and those of what was made of it."""
        place, *others = map(Path, made)
        try:
            with files.locked(_use_of(place), wait=False):
                for folder in (*others, place):
                    with locked(folder):
                        _remove_at_once(folder)
        except BlockingIOError:
            return False
        return True


def hold(place: Path) -> int:
    """A descriptor: until it is closed, the image's folder is in use. Blocks while the folder is removed."""
    descriptor = os.open(_use_of(place), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _use_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.use")


def _remove_at_once(folder: Path) -> None:
    """A process that is killed at it leaves no half of the folder under its name (see `cache.made_once`)."""
    half = folder.with_name(f"{folder.name}.half")
    remove_tree(half)
    if folder.exists():
        folder.rename(half)
        remove_tree(half)
