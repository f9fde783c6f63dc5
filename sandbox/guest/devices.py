"""Device files for sandboxes, each with inodes of their own: a lock on /dev/null belongs to its inode.

Only the host's root can make a device file, and outside of any user namespace. So this runs before bubblewrap does, and
becomes it; a fork stays outside and makes a /dev for each sandbox that is open at once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import stat
import sys

from . import kernel

NUMBERS = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
LINKS = {
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx", "shm": "/tmp",
}  # fmt: skip
TERMINALS = "pts"  # the folder of pseudo-terminals
FOLDER = "/run/devices"  # in the fork server: what is made, by number
_PLACE = "/sys"  # there on every Linux, and bubblewrap needs nothing of it
MADE = f"{_PLACE}/slime-swe-devices"  # on the host, as far as bubblewrap sees it; no other Linux has such a name


def main() -> None:
    """Run argv[3:] in a mount namespace in which folders for /dev are made, each when `Folders` is about to want it.

    argv[2]: the file descriptor of the other end of its socket. Without the capabilities for that, nothing is made, and
    there is no folder of them.
    """
    fd, mask = int(sys.argv[2]), os.umask(0o022)  # whatever the host was started with
    try:
        kernel.unshare(kernel.NEWNS)
        kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("slime-swe", _PLACE, "tmpfs", 0, "mode=755")
        os.mkdir(MADE)
        _make_folder(0)
    except PermissionError:
        pass
    else:
        pid = os.fork()
        if pid == 0:
            try:
                if os.fork() == 0:  # no child of what this becomes, which has one alone
                    _make_ahead(os.dup2(fd, 3))
            finally:
                os._exit(1)
        with contextlib.suppress(ChildProcessError):  # where SIGCHLD is ignored
            os.waitpid(pid, 0)
    os.umask(mask)
    os.close(fd)
    os.execvp(sys.argv[3], sys.argv[3:])


def _make_ahead(fd: int) -> None:
    """Make as many folders as the socket's buffer holds, until the other end is closed."""
    os.closerange(fd + 1, 65536)
    with socket.socket(fileno=fd) as made, contextlib.suppress(BrokenPipeError):
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least: four or so
        for number in itertools.count():
            if number > 0:
                _make_folder(number)
            made.send(str(number).encode())


def _make_folder(number: int) -> None:
    folder = f"{MADE}/{number}"
    make(folder)
    os.mkdir(f"{folder}/{TERMINALS}")
    for name, target in LINKS.items():
        os.symlink(target, f"{folder}/{name}")


class Folders:
    """Gives out, in the fork server, each folder of device files once."""

    def __init__(self, fd: int) -> None:
        self._made = socket.socket(fileno=fd)

    def take(self) -> str:
        """Return a folder that no sandbox has had. Raises `OSError`."""
        number = self._made.recv(64)
        if not number:
            raise ChildProcessError("the process that makes device files has ended")
        return f"{FOLDER}/{number.decode()}"

    def close(self) -> None:
        self._made.close()


def make(folder: str) -> None:
    """Make a new folder of device files. Raises `PermissionError` where this user can make none."""
    os.mkdir(folder, 0o755)
    mask = os.umask(0)
    try:
        for name, number in NUMBERS.items():
            os.mknod(f"{folder}/{name}", stat.S_IFCHR | 0o666, os.makedev(*number))
    finally:
        os.umask(mask)
