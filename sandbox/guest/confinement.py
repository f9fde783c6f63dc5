"""The confinement of a sandbox that is forked from the fork server, by our own system calls.

`Contained` and `Plain`: how a fork becomes a sandbox's first process, with namespaces of its own or without. `System`:
the root of the first kind. What system calls it may make is in `seccomp`. A sandbox of an image is confined by
bubblewrap or Apptainer, over what `launcher` has mounted.

Not covered: the kernel is shared (a kernel bug is a way out), CPU time and memory of a fork are limited per process and
not per sandbox, and the fork server's read-only system (/usr, the Python installation) can be read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import counters, devices, kernel, processes, seccomp

REPOSITORY = "/testbed"
_TERMINALS = 64  # of the machine's 4,096
INNER_ID = 1000  # what `id` prints in a sandbox
_COUNTERS_FOLDER = "run/counters"
_STAGE = "/tmp"  # of the fork server; every sandbox has another
_ELSEWHERE = ("/proc", "/dev", "/etc")  # mounts that are no folder of the system's: new for each sandbox, or copied


class _Slot(NamedTuple):
    """A user id of the fork server's and a folder for /dev, which no two sandboxes have that are open at once. None:
    they have the current user, and the host's device files.
    """

    user: int | None
    device_folder: str | None


class Contained:
    """Starts sandboxes with their own namespaces: `fork`, then `enter` and `leave` in the child; `close` in the
    supervisor.

    No namespace is used again: what it counts (the packets of a loopback) would tell one sandbox of another.
    """

    contained = True  # they have a pid namespace

    def __init__(self, users: tuple[int, int] | None, devices_fd: int) -> None:
        """Prepare what sandboxes are forked with. users: the first of those that they become, and how many there are;
        None: all stay what this is. devices_fd: of the socket for `devices.Folders`, where it has been given any.
        """
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
        """True where no file of the system is the same inode in two sandboxes."""
        return self._system is not None

    def fork(self) -> int:
        """Fork a sandbox's first process: return its pid, or 0 in it. Raises `OSError`."""
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
        """Make a slot. Raises `OSError`."""
        user = None if self._users is None else self._users[0] + len(self._slots) % self._users[1]
        return _Slot(user, self._devices.take() if self._devices is not None else None)

    def ended(self, pid: int) -> None:
        """Give the slot of the sandbox with this first process to the next one. Any other pid is ignored."""
        if pid in self._slots:
            self._free.append(self._slots.pop(pid))

    def enter(self, limits: Mapping[str, Any]) -> None:
        os.close(self._pid_namespace)
        self._networks.close()
        if self._devices is not None:
            self._devices.close()
        _enter(int(limits["disk_bytes"]), self._slot, self._network, self._system, self._system_calls)

    def leave(self) -> None:
        """Do nothing: the kernel removes the mounts with the process."""

    def close(self) -> None:
        """Do nothing: when the supervisor ends, the kernel kills every process of the fork server."""


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
        """Return the file descriptor of a namespace that nothing has used. Raises `OSError`."""
        _, fds, _, _ = socket.recv_fds(self._made, 1, 1)
        if not fds:
            raise OSError(errno.ECHILD, "the process that makes network namespaces has ended")
        return fds[0]

    def close(self) -> None:
        self._made.close()


def _make_networks(fd: int) -> None:
    """Make network namespaces until the other end is closed."""
    os.closerange(fd + 1, 65536)
    with socket.socket(fileno=fd) as takes:
        takes.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least: four or so
        while True:
            kernel.unshare(kernel.NEWNET)
            kernel.bring_up_loopback()
            network = os.open("/proc/self/ns/net", os.O_RDONLY)
            socket.send_fds(takes, [b"n"], [network])
            os.close(network)


def _enter(disk_bytes: int, slot: _Slot, network: int, system: System | None, system_calls: kernel.Filter) -> None:
    """Enter private mounts, a network and a user, without capabilities. The caller is PID 1 of a new pid namespace.

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
    """Enter a new user namespace, so that RLIMIT_NPROC counts this sandbox alone (Linux >= 5.14)."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER)
    kernel.set_dumpable(True)  # or /proc/self belongs to root, and the maps can't be written
    kernel.write("/proc/self/setgroups", "deny")
    kernel.write("/proc/self/uid_map", f"{INNER_ID} {uid} 1")
    kernel.write("/proc/self/gid_map", f"{INNER_ID} {gid} 1")
    kernel.write("/proc/sys/user/max_user_namespaces", "0")  # none below this one: no capability is to be had again
    processes.limit_watches()


class System:
    """The system of a sandbox: what the fork server sees, with inodes that no other sandbox has. Made once in the fork
    server; `mount` in each sandbox's own mount namespace.

    A lock on a file, a lease on it and a watch over it belong to the inode. Were /usr one mount for all sandboxes, two
    of them could talk by locks on /usr/bin/env. So each mounts overlays of its own over the same folders: the files'
    pages are shared, the inodes are not.

    What an overlay lies over goes without the mounts below it. So each folder has two layers on top: one with a
    whiteout for each entry that the fork server hides, and over it one with what the fork server shows of other places.
    """

    def __init__(self) -> None:
        """Lay out the layers of a root, and try to mount it. Raises `OSError` where this kernel lets no user namespace
        mount an overlay (before Linux 5.11).
        """
        mounts = _mounts()
        root = next(number for number, (_, point) in mounts.items() if point == "/")
        trees = {number: point for number, (parent, point) in mounts.items() if parent == root}
        trees = {number: point for number, point in trees.items() if not point.startswith(_ELSEWHERE)}
        kernel.mount("slime-swe", _STAGE, "tmpfs", 0, "mode=755")
        self._layers = {"": "skeleton:empty"}
        for name in ("empty", "root"):
            os.mkdir(f"{_STAGE}/{name}")
        _copy_skeleton(f"{_STAGE}/skeleton")
        for index, (number, tree) in enumerate(sorted(trees.items(), key=lambda item: item[1])):
            shown, whiteouts = f"{_STAGE}/shown{index}", f"{_STAGE}/whiteouts{index}"
            for layer in (shown, whiteouts):
                os.mkdir(layer)
                shutil.copystat(tree, layer)
            bare = f"{_STAGE}/bare"  # the tree without the mounts below it
            os.mkdir(bare)
            kernel.bind(tree, bare)
            for parent, point in mounts.values():
                if parent == number:
                    _hide(tree, bare, point.removeprefix(f"{tree}/"), shown, whiteouts)
            kernel.unmount(bare)
            os.rmdir(bare)
            self._layers[tree] = f"shown{index}:whiteouts{index}:{tree}"
        self._try()
        for _, point in mounts.values():  # or each sandbox's mount namespace would begin with a copy of them all
            if point.startswith(("/etc/", *(f"{tree}/" for tree in trees.values()))):
                with contextlib.suppress(OSError):  # gone with the one that it was on
                    kernel.unmount(point)

    def mount(self) -> str:
        """Mount a new root and return its folder, with nothing mounted yet at /dev, /proc, /tmp and the repository."""
        os.chdir(_STAGE)  # and relative names: what an overlay lies over is in /proc/self/mountinfo
        for tree, layers in self._layers.items():
            flags = kernel.MS_NOSUID | kernel.MS_NODEV
            kernel.mount("system", f"root{tree}", "overlay", flags, f"lowerdir={layers},userxattr")
        return f"{_STAGE}/root"

    @staticmethod
    def cover_counters(root: str) -> None:
        """Mount the files of `counters` over those of /proc, once that is mounted there."""
        for name, place in counters.here():
            kernel.bind(f"{root}/{_COUNTERS_FOLDER}/{name}", root + place)

    @staticmethod
    def enter(root: str) -> None:
        """Make the folder this mount namespace's root. What was mounted before is out of reach from then on."""
        os.chdir(root)
        kernel.mount(".", "/", "none", kernel.MS_MOVE)
        os.chroot(".")
        os.chdir("/")

    def _try(self) -> None:
        """Mount a root in a fork, whose mounts go with it. Raises `OSError` where that fails."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                kernel.unshare(kernel.NEWNS)
                kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
                self.mount()
                status = 0
            finally:
                os._exit(status)
        if os.waitpid(pid, 0)[1] != 0:
            raise OSError("no overlay is to be had in a user namespace: that takes Linux 5.11")


def _mounts() -> dict[int, tuple[int, str]]:
    """Read the mounts of this namespace: number → parent's number and place."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        rows = [line.split() for line in file]
    return {int(row[0]): (int(row[1]), _unescaped(row[4])) for row in rows}


def _unescaped(path: str) -> str:
    """Decode octal numbers for blanks and backslashes, without importing a codec, which sandboxes would see."""
    first, *others = path.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in others)


def _copy_skeleton(place: str) -> None:
    """Copy the folders, links and small files of the fork server's own root, and of /dev what is no device."""
    _copy("-x", "/", place)
    _copy("/etc", place)
    for name in os.listdir("/dev"):
        source, target = f"/dev/{name}", f"{place}/dev/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), target)
        elif os.path.isdir(source):
            os.mkdir(target)
        else:
            os.mknod(target)
    counters.write(f"{place}/{_COUNTERS_FOLDER}")


def _hide(tree: str, bare: str, hidden: str, shown: str, whiteouts: str) -> None:
    """Prepare a folder of the tree that is mounted over: what the mount has not is whited out, what it has of its own
    is copied.
    """
    for layer in (shown, whiteouts):
        folder = ""
        for name in hidden.split("/"):
            folder += f"/{name}"
            if not os.path.isdir(layer + folder):
                os.mkdir(layer + folder)
                shutil.copystat(tree + folder, layer + folder)
    with os.scandir(f"{tree}/{hidden}") as entries:
        visible = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
    for name in os.listdir(f"{bare}/{hidden}"):
        if name in visible and os.path.samestat(visible[name], os.lstat(f"{bare}/{hidden}/{name}")):
            del visible[name]
        else:
            os.mknod(f"{whiteouts}/{hidden}/{name}", stat.S_IFCHR, os.makedev(0, 0))
    if visible:
        _copy(*(f"{tree}/{hidden}/{name}" for name in visible), f"{shown}/{hidden}")


def _copy(*arguments: str) -> None:
    """Copy by `cp`. What this user may not read is left out."""
    os.spawnlp(os.P_WAIT, "cp", "cp", "-dR", "--preserve=mode,timestamps,links", *arguments)


class Plain:
    """Starts sandboxes that are ordinary processes with a temporary folder each: the fallback without bubblewrap."""

    contained = False
    separate = True  # so far as they are at all: nothing is confined here

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = ""

    def fork(self) -> int:
        self._folder = tempfile.mkdtemp(prefix="sandbox-", dir=self._root)
        return os.fork()

    def ended(self, pid: int) -> None:
        """Do nothing: the sandbox has removed its folder."""

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
