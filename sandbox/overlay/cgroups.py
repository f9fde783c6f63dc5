"""Control groups: limits of memory and processes for a whole sandbox, if this user may make such groups.

Supports version 1 (a hierarchy for each controller) and version 2. A group is reused by a later sandbox once every
process in it is dead, since making one costs more than all the rest of a sandbox.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from slime_swe.sandbox.base import Limits
from slime_swe.sandbox.cache import is_dead

PREFIX = "slime-swe-"
CONTROLLERS = ("memory", "pids")
_MOUNT = Path("/sys/fs/cgroup")
_RELEASE_SECONDS = 5.0
_MONITORS = 2  # processes of a sandbox that are not a command's: its first one, and bubblewrap outside


Group = tuple[Path, ...]  # one sandbox's place: a folder for each hierarchy


class Cgroups:
    """Keeps the groups of this process. Raises `OSError` on creation where this user may make none."""

    def __init__(self, owner: str) -> None:
        self._parents = [parent / f"{PREFIX}{owner}" for parent in _parents()]
        self._made: list[Group] = []
        self._free: list[Group] = []
        try:
            for parent in self._parents:
                parent.mkdir(exist_ok=True)
                if (parent / "cgroup.subtree_control").exists():
                    (parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in CONTROLLERS))
            self.release(self.take(Limits()))
        except OSError:
            self.close()
            raise

    def take(self, limits: Limits) -> Group:
        """Return a group without processes, with these limits. Raises `OSError`."""
        group = next(filter(_is_empty, self._free), None)
        if group is None:
            group = self._make()
        else:
            self._free.remove(group)
        for folder in group:
            _limit(folder, limits)
        return group

    def release(self, group: Group) -> None:
        """Take back an ended sandbox's group; what does not die with its parent, as Apptainer, is killed."""
        for folder in group:
            _kill(folder)
        self._free.append(group)

    def close(self) -> None:
        """Remove all groups; their sandboxes must have ended."""
        for folder in (folder for group in self._made for folder in group):
            _remove(folder)
        for parent in self._parents:
            with contextlib.suppress(OSError):  # another of this process has groups there
                parent.rmdir()
        self._made.clear()
        self._free.clear()

    def _make(self) -> Group:
        name = secrets.token_hex(6)  # one process may have several backends, and threads
        group = tuple(parent / name for parent in self._parents)
        self._made.append(group)
        for folder in group:
            folder.mkdir(exist_ok=True)
        return group


def sweep() -> list[str]:
    """Remove the groups of owners that are dead, and kill what is still in them. Returns their paths."""
    swept = []
    for folder in _ours():
        if is_dead(folder.name.removeprefix(PREFIX)):
            for group in (*folder.glob("*/"), folder):
                _remove(group)
            swept.append(str(folder))
    return swept


def _ours() -> list[Path]:
    """List the groups of every owner, in whatever group that has run."""
    return [Path(at, name) for at, names, _ in os.walk(_MOUNT) for name in names if name.startswith(PREFIX)]


def _remove(folder: Path) -> None:
    """Remove a group, and kill the processes in it. One that can't be removed within a few seconds is left for a later
    sweep, and another user's for that user's.
    """
    deadline = time.monotonic() + _RELEASE_SECONDS
    while folder.exists() and time.monotonic() < deadline:
        try:
            folder.rmdir()
        except PermissionError:
            return
        except OSError:
            _kill(folder)
            time.sleep(0.01)


def _is_empty(group: Group) -> bool:
    """Say whether a group has no process; one that is dying still counts."""
    return not any((folder / "cgroup.procs").read_bytes() for folder in group)


def _kill(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split():
            os.kill(int(pid), signal.SIGKILL)


def _limit(folder: Path, limits: Limits) -> None:
    memory = limits.memory_bytes + limits.disk_bytes  # a private disk is in memory too, where it is a tmpfs
    wanted = (
        ("memory.memsw.limit_in_bytes", -1),  # it may never be below the next, on the way up or down
        ("memory.limit_in_bytes", memory),
        ("memory.memsw.limit_in_bytes", memory),
        ("memory.max", memory),
        ("memory.swap.max", 0),
        ("pids.max", limits.processes + _MONITORS),
    )
    for name, value in wanted:
        file = folder / name
        if file.exists():
            file.write_text(str(value))


def _parents() -> Iterator[Path]:
    """Yield the folders in which groups can be made: below our own, of version 1; beside our own, of version 2."""
    own = _own()
    if (_MOUNT / "cgroup.controllers").exists():
        beside = _MOUNT / os.path.dirname(own.get("", "/")).lstrip("/")
        yield beside if (beside / "cgroup.subtree_control").exists() else _MOUNT
        return
    for name in CONTROLLERS:
        yield _MOUNT / name / own.get(name, "/").lstrip("/")


def _own() -> dict[str, str]:
    """Read our own group by controller; of version 2 by ""."""
    groups: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        groups |= dict.fromkeys(names.split(","), path)
    return groups
