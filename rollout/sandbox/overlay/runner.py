"""`Runner`: what runs a program in a root folder, with nothing else of the host's in sight."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slime_swe.rollout.sandbox.base import Limits

# Of these, and of device files, a root who is also the host's is the owner, capabilities or none.
READ_ONLY = (
    "/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi", "/proc/mtrr",
    "/proc/driver", "/proc/dynamic_debug", "/proc/pressure",
)  # fmt: skip


class Runner(Protocol):
    def command(
        self, mount_point: Path, environment: Mapping[str, str], limits: Limits, program: Sequence[str]
    ) -> list[str]:
        """What runs the program as PID 1 of namespaces of its own, in the folder `root` of the mount point.

        Without capabilities, in the network namespace that it is started in; with /dev, a /dev/shm of no more than
        `disk_bytes`, and a /proc that is read-only at `READ_ONLY`.
        """
        ...

    def first(self, pid: int) -> int:
        """The program's process, where `pid` is that of the command. Raises `OSError`, `IndexError`."""
        ...


@dataclass(frozen=True)
class Bubblewrap:
    """flags: those that not every version has."""

    flags: tuple[str, ...]

    def command(
        self, mount_point: Path, environment: Mapping[str, str], limits: Limits, program: Sequence[str]
    ) -> list[str]:
        flags = ["--unshare-all", "--share-net", "--unshare-user", *self.flags, "--as-pid-1", "--die-with-parent"]
        flags += ["--new-session", "--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv"]
        for name, value in environment.items():
            flags += ["--setenv", name, value]
        flags += ["--bind", f"{mount_point}/root", "/", "--proc", "/proc", "--dev", "/dev"]
        for place in READ_ONLY:
            flags += ["--ro-bind-try", place, place]
        flags += ["--size", str(limits.disk_bytes), "--tmpfs", "/dev/shm", "--chdir", "/"]
        return ["bwrap", *flags, *program]

    def first(self, pid: int) -> int:
        return children(pid)[0]


def children(pid: int) -> list[int]:
    """The processes that a process has forked and that live. Raises `OSError`."""
    return [
        int(child)
        for thread in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii").split()
    ]
