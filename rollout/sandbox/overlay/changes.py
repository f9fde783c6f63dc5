"""Read what a sandbox has changed from the upper directory of its overlay, which only the kernel writes.

See "Whiteouts and opaque directories" in the kernel's Documentation/filesystems/overlayfs.rst. The overlay is mounted
with `redirect_dir=off,metacopy=off`, so that a file in the upper directory is complete and has its own path. No link is
ever followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator

from slime_swe.rollout.sandbox.guest.files import ReadBudget, is_left_out, read_up_to
from slime_swe.rollout.sandbox.image.changes import MAX_PATH_BYTES, Found, is_tracked

_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


def find_changes(upper: int, folder: str, size_before: Callable[[str], int]) -> Found:
    """The changes below `folder`, absolute inside; `upper` is the open upper directory. Raises `OSError`."""
    place = folder.strip("/")
    there, hidden = _reach(upper, place)
    if not there:
        return Found({}, frozenset({""} if hidden else ()))
    found = _Walk(upper, place)
    found.walk()
    files: dict[str, bytes | None] = {}
    for path in sorted(found.files):
        before = size_before(path)
        content = _read(upper, f"{place}/{path}", found.budget.most(before))
        found.budget.spend(before, len(content or b""))
        files[path] = content
    return Found(files, frozenset(found.hidden | ({""} if hidden else set())))


def _reach(upper: int, place: str) -> tuple[bool, bool]:
    """Whether the repository's folder is in the upper directory, and whether all of the image's is hidden."""
    parts = place.split("/")
    hidden = False
    if not os.access(".", os.X_OK, dir_fd=upper, effective_ids=True):
        os.chmod(upper, stat.S_IRWXU)
    for count in range(1, len(parts) + 1):
        path = "/".join(parts[:count])
        try:
            os.close(_open_readable(upper, path, os.O_DIRECTORY))
        except FileNotFoundError:
            return False, hidden
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):  # a whiteout, a file; a link
                raise
            return False, True
        hidden = hidden or _is_opaque(upper, path)
    return True, hidden


class _Walk:
    """Collects the regular files below a folder of the upper directory, and what hides the image's."""

    def __init__(self, upper: int, place: str) -> None:
        self._upper = upper
        self._place = place
        self.budget = ReadBudget()
        self.files: set[str] = set()
        self.hidden: set[str] = set()

    def walk(self) -> None:
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for name, mode in self._entries(folder):
                path = folder + name
                self.budget.name(path)
                if stat.S_ISDIR(mode):
                    if not is_left_out(name, folder=True):
                        waiting.append(f"{path}/")
                        if _is_opaque(self._upper, f"{self._place}/{path}"):
                            self.hidden.add(path)
                elif stat.S_ISREG(mode) and is_tracked(path) and self._can_be_opened(path):
                    self.files.add(path)
                else:
                    self.hidden.add(path)

    def _can_be_opened(self, path: str) -> bool:
        return len(os.fsencode(f"{self._place}/{path}")) <= MAX_PATH_BYTES

    def _entries(self, folder: str) -> Iterator[tuple[str, int]]:
        try:
            fd = _open_readable(self._upper, f"{self._place}/{folder}", os.O_DIRECTORY)
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.ENOENT):
                return
            raise
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    yield entry.name, entry.stat(follow_symlinks=False).st_mode
        finally:
            os.close(fd)


def _read(upper: int, path: str, most: int) -> bytes | None:
    """The content of a regular file; None where it has more than `most` bytes."""
    fd = _open_readable(upper, path, 0)
    try:
        if os.fstat(fd).st_size > most:
            return None
        content = read_up_to(fd, most + 1)
        return content if len(content) <= most else None
    finally:
        os.close(fd)


def _open_readable(upper: int, path: str, flags: int) -> int:
    """Modes are in no patch: where one is in the way, it is widened."""
    try:
        return open_beneath(upper, path, flags)
    except PermissionError:
        fd = open_beneath(upper, path, os.O_PATH | flags)
        try:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)
        finally:
            os.close(fd)
        return open_beneath(upper, path, flags)


def _is_opaque(upper: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        fd = open_beneath(upper, path, os.O_PATH | os.O_DIRECTORY)
        try:
            return any(_attribute(fd, name) == b"y" for name in _OPAQUE)
        finally:
            os.close(fd)
    return False


def _attribute(fd: int, name: str) -> bytes:
    try:
        return os.getxattr(f"/proc/self/fd/{fd}", name)  # the name itself, and not the folder, is no more than a handle
    except OSError:
        return b""


_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(folder: int, path: str, flags: int = os.O_RDONLY) -> int:
    """A file descriptor of what is at `path` below an open folder. Raises `OSError`: ELOOP where a link is on the way.

    openat2, of Linux 5.6. Files are opened without waiting for a FIFO's other end.
    """
    resolve = _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH
    careful = os.O_CLOEXEC if flags & os.O_PATH else os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    how = _How(flags | careful, 0, resolve)
    name = os.fsencode(path) or b"."
    fd: int = _libc.syscall(_OPENAT2, folder, name, ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return fd
