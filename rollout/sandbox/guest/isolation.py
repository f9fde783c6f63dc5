"""Turn a forked process into PID 1 of a sandbox, inside the nursery's namespaces.

What it does not cover: the kernel is shared (a kernel bug is a way out), CPU time and memory are limited per process
and not per sandbox, and the nursery's read-only system (/usr, the Python installation) can be read.
"""

from __future__ import annotations

import os

from rollout.sandbox.guest import kernel

REPOSITORY = "/testbed"
INNER_ID = 1000  # what `id` prints in a sandbox


def enter(disk_bytes: int, outer_id: int | None) -> None:
    """Private mounts, a private user, no capability left. The caller is PID 1 of a new pid namespace already.

    `outer_id` is the nursery's user id to become; None keeps the current one. A sandbox never runs as the host's root,
    whom the kernel exempts from RLIMIT_NPROC and allows to write /proc/sys even without a capability.
    """
    kernel.unshare(kernel.NEWNS | kernel.NEWIPC)
    _mount_private(disk_bytes, outer_id)
    if outer_id is not None:
        os.setgroups([])
        os.setresgid(outer_id, outer_id, outer_id)
        os.setresuid(outer_id, outer_id, outer_id)
    _own_user_namespace()
    kernel.drop_all_capabilities()
    kernel.set_dumpable(False)
    os.chdir(REPOSITORY)


def _mount_private(disk_bytes: int, outer_id: int | None) -> None:
    uid, gid = (os.geteuid(), os.getegid()) if outer_id is None else (outer_id, outer_id)
    kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    options = f"size={disk_bytes},nr_inodes=100k,mode=755,uid={uid},gid={gid}"
    kernel.mount("tmpfs", REPOSITORY, "tmpfs", flags, options)
    kernel.mount("tmpfs", "/tmp", "tmpfs", flags, options)  # /dev/shm and /var/tmp are links to it
    kernel.mount("devpts", "/dev/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, "newinstance,ptmxmode=0666")
    kernel.mount("proc", "/proc", "proc", flags | kernel.MS_NOEXEC)


def _own_user_namespace() -> None:
    """A user namespace of its own, so that RLIMIT_NPROC counts this sandbox alone (Linux >= 5.14)."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER)
    kernel.set_dumpable(True)  # or /proc/self belongs to root, and the maps can't be written
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{INNER_ID} {uid} 1")
    _write("/proc/self/gid_map", f"{INNER_ID} {gid} 1")
    _write("/proc/sys/user/max_user_namespaces", "0")  # none below this one: no capability is to be had again


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)  # not `open`: its layers would cost a fork 200 page faults
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
