"""How a sandbox's first process is forked and isolated: with namespaces of its own, or without.

What namespaces do not cover: the kernel is shared (a kernel bug is a way out), CPU time and memory are limited per
process and not per sandbox, and the fork server's read-only system (/usr, the Python installation) can be read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from . import kernel

REPOSITORY = "/testbed"
INNER_ID = 1000  # what `id` prints in a sandbox


def _enter(disk_bytes: int, outer_id: int | None) -> None:
    """Private mounts, a private user, no capability left. The caller is PID 1 of a new pid namespace already.

    `outer_id` is the fork server's user id to become; None keeps the current one. A sandbox never runs as the host's
    root, whom the kernel exempts from RLIMIT_NPROC and allows to write /proc/sys even without a capability.
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
    kernel.write("/proc/self/setgroups", "deny")
    kernel.write("/proc/self/uid_map", f"{INNER_ID} {uid} 1")
    kernel.write("/proc/self/gid_map", f"{INNER_ID} {gid} 1")
    kernel.write("/proc/sys/user/max_user_namespaces", "0")  # none below this one: no capability is to be had again


class Contained:
    """Sandboxes with namespaces of their own: `fork`, then `enter` and `leave` in the child; `close` in the supervisor.

    Network namespaces are reused once every process of their sandbox is dead. Making one costs more than all the rest,
    and no sandbox has the capability to change its own.
    """

    contained = True  # they have a pid namespace

    def __init__(self, outer_id: int | None) -> None:
        self._outer_id = outer_id
        os.environ["PWD"] = REPOSITORY
        self._pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self._free_networks: list[int] = []
        self._networks: dict[int, int] = {}  # pid of a sandbox -> its network namespace

    def fork(self) -> int:
        """0 in the new sandbox's first process. Raises `OSError`."""
        network = self._enter_network()
        kernel.unshare(kernel.NEWPID)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                kernel.setns(self._pid_namespace, kernel.NEWPID)
        self._networks[pid] = network
        return pid

    def enter(self, limits: Mapping[str, Any]) -> None:
        for fd in (self._pid_namespace, *self._free_networks, *self._networks.values()):
            os.close(fd)
        _enter(int(limits["disk_bytes"]), self._outer_id)

    def leave(self) -> None:
        """Nothing to do: the kernel removes the mounts with the process."""

    def close(self) -> None:
        """Nothing to do: when the supervisor ends, the kernel kills every process of the fork server."""

    def _enter_network(self) -> int:
        self._free_networks += [self._networks.pop(pid) for pid in _dead_children()]
        if self._free_networks:
            network = self._free_networks.pop()
            kernel.setns(network, kernel.NEWNET)
            return network
        kernel.unshare(kernel.NEWNET)
        kernel.bring_up_loopback()
        return os.open("/proc/self/ns/net", os.O_RDONLY)


class Plain:
    """Sandboxes that are ordinary processes with a temporary folder each: the fallback without bubblewrap."""

    contained = False

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = ""

    def fork(self) -> int:
        for _ in _dead_children():
            pass
        self._folder = tempfile.mkdtemp(prefix="sandbox-", dir=self._root)
        return os.fork()

    def enter(self, limits: Mapping[str, Any]) -> None:
        kernel.become_subreaper()
        repository, temporary = (os.path.join(self._folder, name) for name in ("testbed", "tmp"))
        os.mkdir(repository)
        os.mkdir(temporary)
        os.environ.update(HOME=temporary, TMPDIR=temporary, PWD=repository)
        os.chdir(repository)

    def leave(self) -> None:
        os.spawnlp(os.P_WAIT, "rm", "rm", "-rf", "--", self._folder)  # `rmtree` recurses, and so has a deepest folder

    def close(self) -> None:
        """Wait for the sandboxes, whose sockets the host has closed too, and remove the folder of them all."""
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        shutil.rmtree(self._root, ignore_errors=True)


Confinement = Contained | Plain


def _dead_children() -> Iterator[int]:
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            yield pid
