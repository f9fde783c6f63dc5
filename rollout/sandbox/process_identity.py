"""Names the process that made what may outlive it (cgroups, folders, containers), so that a later run can remove what a
dead one left.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PARTS = 5


@dataclass(frozen=True)
class ProcessIdentity:
    """A unique identity of a process: machine, boot, pid namespace, pid, and start time."""

    machine: str
    boot: str
    namespace: str
    pid: int
    started: str

    @classmethod
    def current(cls) -> Self:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")
        machine = socket.gethostname().replace("_", "-")
        return cls(machine, boot[:12], _namespace(), os.getpid(), _started(os.getpid()) or "0")

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None where the text names no process."""
        parts = text.split("_")
        if len(parts) != _PARTS or not parts[3].isdecimal():
            return None
        return cls(parts[0], parts[1], parts[2], int(parts[3]), parts[4])

    def __str__(self) -> str:
        """Usable as a file name and as a label."""
        return "_".join((self.machine, self.boot, self.namespace, str(self.pid), self.started))

    def is_dead(self) -> bool:
        """Whether the process is known to be gone. Nothing is known of processes on other machines or in other pid
        namespaces.
        """
        here = ProcessIdentity.current()
        if self.machine != here.machine:
            return False
        if self.boot != here.boot:
            return True
        return self.namespace == here.namespace and _started(self.pid) != self.started


def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid").strip("pid:[]")


def _started(pid: int) -> str | None:
    """When a process started, in clock ticks since the boot; None where there is none, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]
