"""A small disk of its own for a run's folder, which can be filled: a tmpfs, which needs root to be mounted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slime_swe.errors import InfrastructureError
from slime_swe.launch.rehearse.faults.injection import Injection
from slime_swe.launch.rehearse.faults.processes import Processes

BYTES = 64 << 20
_FILLER, _BLOCKS = "filler", 64  # the last blocks are written one by one, as others write meanwhile


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount it at `folder`, which is made; afterwards the folder holds what was written there, on its own disk.

    Raises `InfrastructureError` where this process may mount nothing.
    """
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"a full disk needs root, to mount a small one: {done.stderr.strip()}")
    kept = folder.with_name(f"{folder.name}.kept")
    try:
        yield
        empty(folder)
        shutil.copytree(folder, kept, symlinks=True)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()
    kept.rename(folder)


def fill(folder: Path) -> None:
    """Leave no byte free."""
    free = os.statvfs(folder)
    with (folder / _FILLER).open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, max(1, (free.f_bavail - _BLOCKS) * free.f_frsize))
        with suppress(OSError):  # it is full
            while file.write(bytes(free.f_frsize)):
                pass


def empty(folder: Path) -> None:
    """Make the room again, as a user does who is told that the disk is full."""
    (folder / _FILLER).unlink(missing_ok=True)


class FullDisk(Injection):
    """The disk of the run's folder is full."""

    @contextmanager
    def prepared(self) -> Iterator[None]:
        with small_disk(self.run):
            yield

    def inject(self, processes: Processes) -> None:
        fill(self.run)

    def mend(self) -> None:
        empty(self.run)
