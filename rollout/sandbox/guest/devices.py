"""Device files for sandboxes, each with inodes of their own: a lock on /dev/null belongs to its inode.

Only the host's root can make a device file, and outside of any user namespace. So this runs before bubblewrap does, and
becomes it.
"""

from __future__ import annotations

import os
import stat
import sys

from . import kernel

NUMBERS = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
FOLDER = "/run/devices"  # in the fork server: a folder for each sandbox that may be open at once
_PLACE = "/sys"  # there on every Linux, and bubblewrap needs nothing of it
MADE = f"{_PLACE}/slime-swe-devices"  # on the host, as far as bubblewrap sees it; no other Linux has such a name


def main() -> None:
    """Make argv[2] folders of device files, in a mount namespace of their own, then run the rest of argv in it.

    Without the capabilities for that, there are none.
    """
    try:
        kernel.unshare(kernel.NEWNS)
        kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("slime-swe", _PLACE, "tmpfs", 0, "mode=755")
        os.mkdir(MADE)
        for number in range(int(sys.argv[2])):
            make(f"{MADE}/{number}")
    except PermissionError:
        pass
    os.execvp(sys.argv[3], sys.argv[3:])


def make(folder: str) -> None:
    """Raises `PermissionError` where this user can make none."""
    os.mkdir(folder, 0o755)
    mask = os.umask(0)
    try:
        for name, number in NUMBERS.items():
            os.mknod(f"{folder}/{name}", stat.S_IFCHR | 0o666, os.makedev(*number))
    finally:
        os.umask(mask)
