"""What a sandbox of an image started with, and how its files differ from that."""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from slime_swe.rollout.sandbox.guest.files import Changes, is_left_out

MAX_PATH_BYTES = 4095  # what the system opens


def is_tracked(path: str) -> bool:
    """Whether a file is part of a diff: caches are not, nor what is git's, nor what no path reaches."""
    *folders, name = path.split("/")
    left_out = is_left_out(name, folder=False) or any(is_left_out(each, folder=True) for each in folders)
    return not left_out and len(os.fsencode(path)) <= MAX_PATH_BYTES


class Originals:
    """The regular files of an image's repository, except caches, in a folder of this machine that nothing changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def paths(self) -> Set[str]:
        return self._sizes.keys()

    def size(self, path: str) -> int:
        """0 where there is no such file."""
        return self._sizes.get(path, 0)

    def read(self, path: str) -> bytes | None:
        """None where there is no such file."""
        return (self._folder / path).read_bytes() if path in self._sizes else None

    @functools.cached_property
    def _sizes(self) -> Mapping[str, int]:
        sizes = {}
        for folder, _, names in os.walk(self._folder):
            for name in names:
                place = os.path.join(folder, name)
                path = os.path.relpath(place, self._folder)
                found = os.stat(place, follow_symlinks=False)
                if stat.S_ISREG(found.st_mode) and is_tracked(path):
                    sizes[path] = found.st_size
        return sizes


@dataclass(frozen=True)
class Found:
    """How a container's repository differs from its image's, as seen from outside.

    files: the regular files that may be new or different; None for a file with more bytes than were asked for. hidden:
    paths at which, and below which, nothing of the image is left.
    """

    files: Mapping[str, bytes | None]
    hidden: frozenset[str]


class Start:
    """The files that a sandbox started with: its image's, as changed by the image's setup and the task's files."""

    def __init__(self, originals: Originals) -> None:
        self._originals = originals
        self._changed: dict[str, bytes | None] = {}  # where the start is not the image; None: too large
        self._missing: frozenset[str] = frozenset()  # the image's files that were gone

    def after_setup(self, found: Found) -> None:
        """What the setup has changed is part of the start."""
        self._changed = dict(found.files)
        self._missing = self._gone(found)

    def add(self, files: Mapping[str, bytes]) -> None:
        self._changed |= files
        self._missing -= files.keys()

    def read(self, path: str) -> bytes | None:
        """The content of a file; None where there was none, or it is not known."""
        if path in self._changed:
            return self._changed[path]
        return None if path in self._missing else self._originals.read(path)

    def size(self, path: str) -> int:
        if path in self._changed:
            return len(self._changed[path] or b"")
        return self._originals.size(path)

    def compare(self, found: Found) -> Changes:
        """What has changed since."""
        changes = Changes({}, [], [])
        gone = self._gone(found)
        same = (self._changed.keys() & self._originals.paths()) - found.files.keys() - gone  # as the image has them
        now = {**found.files, **{path: self._originals.read(path) for path in same}}
        for path, content in sorted(now.items()):
            if content is None and self._changed.get(path, b"") is not None:
                changes.oversized.append(path)
            elif content is not None and content != self.read(path):
                changes.files[path] = content
        changes.deleted.extend(sorted((gone | self._changed.keys()) - now.keys() - self._missing))
        return changes

    def _gone(self, found: Found) -> frozenset[str]:
        """The image's files that are hidden, or are below what is hidden or is a file now."""
        hidden, present = found.hidden, found.files
        over = hidden | present.keys()
        paths = self._originals.paths() if over else ()
        return frozenset(p for p in paths if p not in present and (p in hidden or not over.isdisjoint(_above(p))))


def _above(path: str) -> list[str]:
    """The folders that a path is below, "" for the repository's own among them."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts))]
