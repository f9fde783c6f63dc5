"""Files that outlive a process on this machine: what is made once for an image, until the disk is full of it (`Room`),
and what a process that died has left, by the name of that process.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from slime_swe import files
from slime_swe.files import replace_file


def cache_folder() -> Path:
    """Return the sandboxes' folder in the user's cache folder, made if need be."""
    folder = files.cache_folder("sandbox")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def made_once(place: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder `place`. If it does not exist, `make` fills it under a temporary name. Blocks while another
    process makes it.
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
    """Hold exclusive access to this place among all processes of this machine, inside the context."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(place.with_name(f"{place.name}.lock")):
        yield


def disk_used(folder: Path) -> int:
    """Return the bytes that the files of a folder take on its disk, one of several names once."""
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


# `Room`: keeps a disk from filling up with images, by removing those that a run has got and used longest ago.
_log = logging.getLogger(__name__)


class Room:
    """Makes room on a disk by removing the images that runs got and used longest ago. keep_free: GiB of the disk that
    images are on; 0 removes none.

    A folder has a file for each image that was got by a run with this on, by any of this machine's; when it was used
    last is the file's time. What somebody else has got stays, as does what `remove` finds in use. How an image is
    removed is the subclass's.

    Not covered: what else fills the disk.
    """

    def __init__(self, records: Path, keep_free: float) -> None:
        self._records, self._keep_free = records, keep_free

    def remove(self, name: str, made: Sequence[str]) -> bool:
        """Remove an image, and before it what was made of it; False where it is in use, and stays."""
        raise NotImplementedError

    def make(self, disk: Path) -> None:
        """Remove images until enough of the disk is free, if that is wanted. disk: a folder of it. Blocks."""
        if not self._keep_free:
            return
        with locked(self._records):
            for file in self._oldest():
                if free_gib(disk) >= self._keep_free:
                    return
                name, *made = file.read_text(encoding="utf-8").splitlines()
                if self.remove(name, made):
                    file.unlink()
                    _log.info("removed the image %s, as the disk is nearly full", name)
            if free_gib(disk) < self._keep_free:
                _log.warning("%s has %.0f GiB free, and no image is left to remove", disk, free_gib(disk))

    def got(self, name: str) -> None:
        """Note that this run got the image."""
        if not self._keep_free:
            return
        with locked(self._records):
            self._records.mkdir(exist_ok=True)
            replace_file(self._file(name), name.encode())
        self.used(name)

    def made(self, name: str, *what: str) -> None:
        """Note what was made of an image that a run got."""
        if not self._keep_free:
            return
        with locked(self._records), suppress(FileNotFoundError):
            lines = self._file(name).read_text(encoding="utf-8").splitlines()
            replace_file(self._file(name), "\n".join(dict.fromkeys((*lines, *what))).encode())

    def used(self, name: str) -> None:
        if not self._keep_free:
            return
        with suppress(FileNotFoundError):
            os.utime(self._file(name), ns=(now := time.time_ns(), now))  # the kernel's own clock is coarser

    def _oldest(self) -> Iterator[Path]:
        records = (file for file in self._records.glob("*") if not file.name.startswith("."))  # one is half written
        return iter(sorted(records, key=lambda file: file.stat().st_mtime_ns))

    def _file(self, name: str) -> Path:
        return self._records / hashlib.sha256(name.encode()).hexdigest()[:16]


def free_gib(folder: Path) -> float:
    return shutil.disk_usage(folder).free / 2**30


def process_identity() -> str:
    """Return a unique identity of this process for file names and labels: machine, boot, namespace, pid, start.

    It names the process that made what may outlive it (cgroups, folders, containers), so that a later run can remove
    what a dead one left.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")
    namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    machine = socket.gethostname().replace("_", "-")
    return "_".join((machine, boot[:12], namespace, str(os.getpid()), _started(os.getpid()) or "0"))


def is_dead(identity: str) -> bool:
    """Say whether the process is known to be gone. Nothing is known of processes on other machines or in other pid
    namespaces.
    """
    (machine, boot, namespace, _, _), parts = process_identity().split("_"), identity.split("_")
    if len(parts) != 5 or not parts[3].isdecimal() or parts[0] != machine:
        return False
    return parts[1] != boot or (parts[2] == namespace and _started(int(parts[3])) != parts[4])


def _started(pid: int) -> str | None:
    """Return when a process started, in clock ticks since the boot; None where there is none, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]
