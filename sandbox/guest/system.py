"""The system of a forked sandbox: what the fork server sees, with inodes that no other sandbox has.

A lock on a file, a lease on it and a watch over it belong to the inode. Were /usr one mount for all sandboxes, two of
them could talk by locks on /usr/bin/env. So each mounts overlays of its own over the same folders: the files' pages are
shared, the inodes are not.

What an overlay lies over goes without the mounts below it. So each folder has two layers on top: one with a whiteout
for each entry that the fork server hides, and over it one with what the fork server shows of other places.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat

from . import counters, kernel

_COUNTERS_FOLDER = "run/counters"
_STAGE = "/tmp"  # of the fork server; every sandbox has another
_ELSEWHERE = ("/proc", "/dev", "/etc")  # mounts that are no folder of the system's: new for each sandbox, or copied


class System:
    """Made once in the fork server; `mount` in each sandbox's own mount namespace."""

    def __init__(self) -> None:
        """Raises `OSError` where this kernel lets no user namespace mount an overlay (before Linux 5.11)."""
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
        """The folder of a new root, with nothing mounted yet at /dev, /proc, /tmp and the repository."""
        os.chdir(_STAGE)  # and relative names: what an overlay lies over is in /proc/self/mountinfo
        for tree, layers in self._layers.items():
            flags = kernel.MS_NOSUID | kernel.MS_NODEV
            kernel.mount("system", f"root{tree}", "overlay", flags, f"lowerdir={layers},userxattr")
        return f"{_STAGE}/root"

    @staticmethod
    def cover_counters(root: str) -> None:
        """Once /proc is mounted there."""
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
        """In a fork, whose mounts go with it."""
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
    """By its number: a mount's parent and its place."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        rows = [line.split() for line in file]
    return {int(row[0]): (int(row[1]), _unescaped(row[4])) for row in rows}


def _unescaped(path: str) -> str:
    """The kernel writes blanks and backslashes as octal numbers. No codec is imported, which sandboxes would see."""
    first, *others = path.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in others)


def _copy_skeleton(place: str) -> None:
    """The folders, links and small files of the fork server's own root, and of /dev what is no device."""
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
    """Of a folder of the tree that is mounted over: what the mount has not is whited out, what it has of its own is
    copied."""
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
    """What this user may not read is left out."""
    os.spawnlp(os.P_WAIT, "cp", "cp", "-dR", "--preserve=mode,timestamps,links", *arguments)
