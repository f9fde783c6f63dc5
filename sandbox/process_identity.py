"""Names the process that made what may outlive it (cgroups, folders, containers), so that a later run can remove what a
dead one left.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def process_identity() -> str:
    """A unique identity of this process, usable as a file name and as a label: machine, boot, namespace, pid, start."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")
    namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    machine = socket.gethostname().replace("_", "-")
    return "_".join((machine, boot[:12], namespace, str(os.getpid()), _started(os.getpid()) or "0"))


def is_dead(identity: str) -> bool:
    """Whether the process is known to be gone. Nothing is known of processes on other machines or in other pid
    namespaces.
    """
    (machine, boot, namespace, _, _), parts = process_identity().split("_"), identity.split("_")
    if len(parts) != 5 or not parts[3].isdecimal() or parts[0] != machine:
        return False
    return parts[1] != boot or (parts[2] == namespace and _started(int(parts[3])) != parts[4])


def _started(pid: int) -> str | None:
    """When a process started, in clock ticks since the boot; None where there is none, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]
