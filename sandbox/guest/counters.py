"""Lists and counters of the whole machine in /proc that code can move at will, and what a sandbox reads instead.

Not covered: the sums that move with all that runs (/proc/stat, /proc/meminfo, the load), which the system call
`sysinfo` tells as well; the sockets of the machine in /proc/net/sockstat, which lies in the folder of every process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

_SHOWN = {
    "/proc/locks": "",  # it names the open-file-description locks of every process
    "/proc/keys": "",  # it names the keys of the user: without root, those of the person who started the sandboxes
    "/proc/key-users": "",
    "/proc/sys/fs/dentry-state": "1024\t0\t45\t0\t0\t0\n",
    "/proc/sys/fs/file-nr": "1024\t0\t1048576\n",
    "/proc/sys/fs/inode-nr": "1024\t0\n",
    "/proc/sys/fs/inode-state": "1024\t0\t0\t0\t0\t0\t0\n",
    "/proc/sys/kernel/pty/nr": "0\n",
}


def places() -> list[str]:
    return list(_SHOWN)


def write(folder: str) -> None:
    """Make a folder with the file that a sandbox reads for each of these."""
    os.makedirs(folder)
    for place, text in _SHOWN.items():
        fd = os.open(f"{folder}/{_name(place)}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        os.write(fd, text.encode())
        os.close(fd)


def here() -> Iterator[tuple[str, str]]:
    """Yield, for each of these that this kernel has, the file's name in the folder and where it is to be mounted."""
    return ((_name(place), place) for place in _SHOWN if os.path.exists(place))


def _name(place: str) -> str:
    return place.removeprefix("/proc/").replace("/", "-")
