"""What confines a sandbox by our own system calls: all of it for one that is forked, the mounts of one over an image.

`Contained` and `Plain`: how a fork becomes a sandbox's first process, with namespaces of its own or without.
`mount_overlay`: what an image's sandbox has for its root, before bubblewrap or Apptainer confines it. What system calls
either may make is in `seccomp`.

What this does not cover: the kernel is shared (a kernel bug is a way out), CPU time and memory of a fork are limited
per process and not per sandbox, and the fork server's read-only system (/usr, the Python installation) can be read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import counters, devices, kernel, seccomp
from .system import System

REPOSITORY = "/testbed"
_TERMINALS = 64  # of the machine's 4,096
_INOTIFY_INSTANCES, _INOTIFY_WATCHES = 4, 4096
INNER_ID = 1000  # what `id` prints in a sandbox


class _Slot(NamedTuple):
    """What no two sandboxes have that are open at once: a user id of the fork server's, and a folder for /dev. None:
    they have the current one, and the host's device files."""

    user: int | None
    device_folder: str | None


def _enter(disk_bytes: int, slot: _Slot, network: int, system: System | None, system_calls: kernel.Filter) -> None:
    """Private mounts, a network and a user, no capability left. The caller is PID 1 of a new pid namespace already.

    A sandbox never runs as the host's root, whom the kernel exempts from RLIMIT_NPROC and allows to write /proc/sys
    even without a capability.
    """
    kernel.join_new_session_keyring()
    kernel.setns(network, kernel.NEWNET)
    os.close(network)
    kernel.unshare(kernel.NEWNS | kernel.NEWIPC)
    _mount_private(disk_bytes, slot, system)
    if slot.user is not None:
        os.setgroups([])
        os.setresgid(slot.user, slot.user, slot.user)
        os.setresuid(slot.user, slot.user, slot.user)
    _own_user_namespace()
    kernel.drop_all_capabilities()
    kernel.set_dumpable(False)
    os.chdir(REPOSITORY)
    system_calls.load()


def _mount_private(disk_bytes: int, slot: _Slot, system: System | None) -> None:
    uid, gid = (os.geteuid(), os.getegid()) if slot.user is None else (slot.user, slot.user)
    kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
    root = system.mount() if system is not None else ""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    options = f"size={disk_bytes},nr_inodes=100k,mode=755,uid={uid},gid={gid}"
    kernel.mount("tmpfs", root + REPOSITORY, "tmpfs", flags, options)
    kernel.mount("tmpfs", f"{root}/tmp", "tmpfs", flags, options)  # /dev/shm and /var/tmp are links to it
    if slot.device_folder is not None:
        kernel.bind(slot.device_folder, f"{root}/dev")
    elif system is not None:
        for name in devices.NUMBERS:
            kernel.bind(f"/dev/{name}", f"{root}/dev/{name}")
    terminals = f"newinstance,ptmxmode=0666,max={_TERMINALS}"
    kernel.mount("devpts", f"{root}/dev/{devices.TERMINALS}", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, terminals)
    kernel.mount("proc", f"{root}/proc", "proc", flags | kernel.MS_NOEXEC)
    if system is not None:
        system.cover_counters(root)
        system.enter(root)


def _own_user_namespace() -> None:
    """A user namespace of its own, so that RLIMIT_NPROC counts this sandbox alone (Linux >= 5.14)."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER)
    kernel.set_dumpable(True)  # or /proc/self belongs to root, and the maps can't be written
    kernel.write("/proc/self/setgroups", "deny")
    kernel.write("/proc/self/uid_map", f"{INNER_ID} {uid} 1")
    kernel.write("/proc/self/gid_map", f"{INNER_ID} {gid} 1")
    kernel.write("/proc/sys/user/max_user_namespaces", "0")  # none below this one: no capability is to be had again
    limit_watches()


def limit_watches() -> None:
    """Of the current user namespace, whose root the caller is: how much inotify there may be in it. The kernel counts
    it for the host's user too, who by default may have 128 instances.
    """
    kernel.write("/proc/sys/user/max_inotify_instances", str(_INOTIFY_INSTANCES))
    kernel.write("/proc/sys/user/max_inotify_watches", str(_INOTIFY_WATCHES))


class _Networks:
    """A process that makes network namespaces ahead of their use, since making one costs as much as all the rest.

    Each is given out once. As many wait as the socket's buffer holds.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            try:
                _make_networks(os.dup2(theirs.fileno(), 3))
            finally:
                os._exit(1)
        theirs.close()
        self._made = ours

    def take(self) -> int:
        """The file descriptor of one that nothing has used. Raises `OSError`."""
        _, fds, _, _ = socket.recv_fds(self._made, 1, 1)
        if not fds:
            raise OSError(errno.ECHILD, "the process that makes network namespaces has ended")
        return fds[0]

    def close(self) -> None:
        self._made.close()


def _make_networks(fd: int) -> None:
    """Until the other end is closed."""
    os.closerange(fd + 1, 65536)
    with socket.socket(fileno=fd) as takes:
        takes.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least: four or so
        while True:
            kernel.unshare(kernel.NEWNET)
            kernel.bring_up_loopback()
            network = os.open("/proc/self/ns/net", os.O_RDONLY)
            socket.send_fds(takes, [b"n"], [network])
            os.close(network)


class Contained:
    """Sandboxes with namespaces of their own: `fork`, then `enter` and `leave` in the child; `close` in the supervisor.

    No namespace is used again: what it counts (the packets of a loopback) would tell one sandbox of another.
    """

    contained = True  # they have a pid namespace

    def __init__(self, users: tuple[int, int] | None, devices_fd: int) -> None:
        """users: the first of those that sandboxes become, and how many there are. None: all stay what this is.
        devices_fd: of the socket for `devices.Folders`, where it has been given any."""
        self._users = users
        self._system_calls = kernel.Filter(seccomp.program())
        kernel.join_new_session_keyring()  # and each sandbox another one, as far as there may be so many
        kernel.unmount(os.path.dirname(__file__))  # it is loaded, and no sandbox's to read
        self._system: System | None = None
        with contextlib.suppress(OSError):
            self._system = System()
        self._devices = devices.Folders(devices_fd) if os.path.isdir(devices.FOLDER) else None
        for place in (devices.FOLDER,) if self._devices else (f"/dev/{name}" for name in devices.NUMBERS):
            kernel.make_read_only(place)
        os.environ["PWD"] = REPOSITORY
        self._pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self._networks = _Networks()
        self._network = -1  # of the sandbox that is being forked
        self._slots: dict[int, _Slot] = {}  # by the pid of a sandbox's first process
        self._free: list[_Slot] = []
        self._slot = _Slot(None, None)  # of the sandbox that is being forked

    @property
    def separate(self) -> bool:
        """Whether no file of the system is the same inode in two sandboxes."""
        return self._system is not None

    def fork(self) -> int:
        """0 in the new sandbox's first process. Raises `OSError`."""
        self._network = self._networks.take()
        self._slot = self._free.pop() if self._free else self._new_slot()
        kernel.unshare(kernel.NEWPID)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                kernel.setns(self._pid_namespace, kernel.NEWPID)
                os.close(self._network)
            if pid == -1:
                self._free.append(self._slot)
        self._slots[pid] = self._slot
        return pid

    def _new_slot(self) -> _Slot:
        """Raises `OSError`."""
        user = None if self._users is None else self._users[0] + len(self._slots) % self._users[1]
        return _Slot(user, self._devices.take() if self._devices is not None else None)

    def ended(self, pid: int) -> None:
        """Its slot is the next one's. Any other pid is ignored."""
        if pid in self._slots:
            self._free.append(self._slots.pop(pid))

    def enter(self, limits: Mapping[str, Any]) -> None:
        os.close(self._pid_namespace)
        self._networks.close()
        if self._devices is not None:
            self._devices.close()
        _enter(int(limits["disk_bytes"]), self._slot, self._network, self._system, self._system_calls)

    def leave(self) -> None:
        """Nothing to do: the kernel removes the mounts with the process."""

    def close(self) -> None:
        """Nothing to do: when the supervisor ends, the kernel kills every process of the fork server."""


class Plain:
    """Sandboxes that are ordinary processes with a temporary folder each: the fallback without bubblewrap."""

    contained = False
    separate = True  # so far as they are at all: nothing is confined here

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = ""

    def fork(self) -> int:
        self._folder = tempfile.mkdtemp(prefix="sandbox-", dir=self._root)
        return os.fork()

    def ended(self, pid: int) -> None:
        """Nothing to do: the sandbox has removed its folder."""

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


def become_root_inside() -> None:
    """A user namespace in which this user is root, and there is nobody else."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER)
    for path, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        kernel.write(f"/proc/self/{path}", text)


def enter_all_users() -> None:
    """A user namespace with the users of this one, each as itself, whose root has no power outside. Needs root, who
    alone may map others.
    """
    ready, waits = os.pipe()
    mapped, maps = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.read(ready, 1)
            for kind in ("uid_map", "gid_map"):
                kernel.write(f"/proc/{parent}/{kind}", _as_themselves(f"/proc/self/{kind}"))
            os.write(maps, b"x")
            status = 0
        finally:
            os._exit(status)
    os.close(maps)
    kernel.unshare(kernel.NEWUSER)
    os.write(waits, b"x")
    answer = os.read(mapped, 1)
    with contextlib.suppress(ChildProcessError):  # where the kernel reaps it
        os.waitpid(pid, 0)
    if not answer:
        raise OSError(errno.EPERM, "the users of a sandbox could not be mapped")
    for fd in (ready, waits, mapped):
        os.close(fd)


def _as_themselves(path: str) -> str:
    """The ids of this namespace, each mapped to itself."""
    with open(path, encoding="ascii") as file:
        rows = [line.split() for line in file]
    return "\n".join(f"{inside} {inside} {count}" for inside, _, count in rows)


def mount_overlay(place: str, disk: str, layers: Sequence[str], options: str) -> None:
    """In a mount namespace of its own: what is written below `place`, and at place/root the overlay over the layers,
    the topmost first.

    disk: the bytes of a tmpfs for it, or a folder. In it are also place/shm, for a /dev/shm, and what is mounted over
    parts of /proc (`bubblewrap.proc_mounts`). No folder is mounted by its name: a sandbox reads in /proc/self/mountinfo
    what it was mounted by.
    """
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
    if disk.startswith("/"):
        kernel.mount(disk, place, "none", kernel.MS_BIND)
    else:
        kernel.mount("slime-swe", place, "tmpfs", 0, f"size={disk},nr_inodes=200k,mode=755")
        _own_devices(f"{place}/dev")
    for name in ("upper", "work", "root", "shm", "proc", "nothing"):
        os.makedirs(f"{place}/{name}", exist_ok=True)
    os.mknod(f"{place}/none")
    counters.write(f"{place}/counters")
    _own_proc(f"{place}/proc")
    os.chmod(f"{place}/shm", 0o1777)
    os.chdir(place)
    lower = ":".join(f"/proc/self/fd/{os.open(layer, os.O_PATH | os.O_DIRECTORY)}" for layer in layers)
    kernel.mount("slime-swe", "root", "overlay", 0, f"lowerdir={lower},{options},upperdir=upper,workdir=work")
    os.chdir("/")


def _own_proc(folder: str) -> None:
    """A /proc whose inodes nobody else has (Linux 5.8), for its read-only parts to be taken from. Of the host's pid
    namespace only the host's root may mount one: another user's sandboxes have those parts of the host's own.
    """
    try:
        kernel.mount("proc", folder, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    except PermissionError:
        kernel.mount("/proc", folder, "none", kernel.MS_BIND | kernel.MS_REC)


def _own_devices(folder: str) -> None:
    """Replace the host's device files by ones of this mount namespace, since a sandbox's root that is the host's root
    owns the host's.

    Does nothing if this user can make none: then a sandbox can't change the host's device files either.
    """
    try:
        devices.make(folder)
    except PermissionError:
        return
    for name in devices.NUMBERS:
        kernel.bind(f"{folder}/{name}", f"/dev/{name}")
