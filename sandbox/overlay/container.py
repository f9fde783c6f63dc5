"""`OverlaySandbox`: an unpacked image, an overlay over it, and the driver in what runs a root folder. No daemon.

Its mounts are in a mount namespace of its own, which goes with its last process and our handle on it; what it writes is
in a tmpfs of that namespace. So nothing of it outlives this process, however that ends. Its network namespace is held
likewise, so that a port that was given out still is one when the driver has been started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slime_swe.data_sources.task import Image
from slime_swe.sandbox.base import SandboxError, SandboxSpec
from slime_swe.sandbox.bubblewrap import GUEST_SECONDS, GuestProcess, Runner, guest_program, popen
from slime_swe.sandbox.cache import remove_tree
from slime_swe.sandbox.guest.files import ReadBudget, is_left_out, read_up_to
from slime_swe.sandbox.image.driver import STREAM_BYTES, ShellDied, Stream, await_ready, driver_command
from slime_swe.sandbox.image.sandbox import MAX_PATH_BYTES, Found, ImageSandbox, Originals, is_tracked
from slime_swe.sandbox.overlay.cgroups import Cgroups, Group

START_SECONDS = 60.0
END_SECONDS = 10.0


@dataclass(frozen=True)
class Host:
    """The means of a machine to run overlay sandboxes.

    launcher: what starts them. runner: what then isolates them. mount_point: an empty folder. root: whether this user
    may mount outside of a user namespace. tmpfs: whether a tmpfs can be an upper directory. cgroups: None where there
    can be none.
    """

    launcher: Launcher
    runner: Runner
    mount_point: Path
    root: bool
    tmpfs: bool
    cgroups: Cgroups | None


@dataclass(frozen=True)
class Root:
    """An image on disk. layers: folders, the topmost first."""

    layers: tuple[str, ...]
    environment: Mapping[str, str]


Fd = Literal["_monitor", "_first", "_namespace", "_network", "_upper", "_held"]
FindRoot = Callable[[], Awaitable[tuple[Root, Originals, int | None]]]
"""The third: a descriptor that keeps the image, to be closed at the end."""


class OverlaySandbox(ImageSandbox):
    """A sandbox over an unpacked image. `scratch`: a folder to write to, in place of a tmpfs; `keep` leaves it."""

    def __init__(
        self,
        host: Host,
        find: FindRoot,
        image: Image,
        spec: SandboxSpec,
        scratch: Path | None = None,
        *,
        keep: bool = False,
    ) -> None:
        super().__init__(image, spec)
        self._host = host
        self._find = find
        self._root: Root | None = None
        self._scratch = scratch
        self._keep = keep
        self._group: Group | None = None
        self._pid = 0  # of the runner
        self._monitor: int | None = None  # a pidfd of it
        self._first: int | None = None  # a pidfd of the driver
        self._namespace: int | None = None  # of the mounts
        self._network: int | None = None
        self._upper: int | None = None
        self._held: int | None = None  # what keeps the image from being removed

    async def _start_driver(self) -> Stream:
        if self._root is None:
            self._root, self._originals, self._held = await self._find()
        await self._ended()
        if self._group is None and self._host.cgroups is not None:
            self._group = self._host.cgroups.take(self._limits)
        stream, ends = await open_pipes()
        with tempfile.TemporaryFile() as errors:
            try:
                try:
                    self._launch(self._root, ends, errors.fileno())
                finally:  # or the driver's end would not be seen
                    for end in ends:
                        os.close(end)
                await await_ready(stream, START_SECONDS)
                self._hold()
            except BaseException as error:
                stream.close()
                if not isinstance(error, ShellDied | OSError):
                    raise
                await self._kill()
                errors.seek(0)
                said = errors.read()[-2000:].decode("utf-8", "replace").strip()
                raise ShellDied(said or str(error)) from error
        return stream

    async def _interrupt(self) -> None:
        self._signal(signal.SIGUSR1)

    async def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._monitor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._monitor, signal.SIGKILL)
        await self._ended()

    async def _find_changes(self, size_before: Callable[[str], int]) -> Found:
        assert self._upper is not None, "not started"
        return await asyncio.to_thread(find_changes, self._upper, self._image.folder, size_before)

    async def _listen_inside(self, port: int) -> socket.socket:
        assert self._network is not None, "not started"
        return self._host.launcher.listen(self._network, port)

    async def _remove(self) -> None:
        try:
            await self._kill()
        finally:
            self._close("_upper", "_first", "_namespace", "_network", "_held")
        if self._scratch is not None and not self._keep:
            await asyncio.to_thread(remove_tree, self._scratch)
        if self._group is not None and self._host.cgroups is not None:
            self._host.cgroups.release(self._group)
            self._group = None

    def _launch(self, root: Root, ends: tuple[int, int], errors: int) -> None:
        """Start the runner: over new mounts, or those of the driver before. Raises `SandboxError`."""
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
        options = "redirect_dir=off,metacopy=off,index=off" if self._host.root else "userxattr"
        driver = driver_command(self._limits, self._image.folder, bounded=self._group is not None)
        request = {
            "joins": [str(folder / "cgroup.procs") for folder in self._group or ()],
            "mount_point": str(self._host.mount_point),
            "disk": str(self._scratch or self._limits.disk_bytes),
            "layers": root.layers,
            "options": options,
            "filter": self._host.runner.reads_filter,
            "users": self._host.runner.keeps_users,
            "command": self._host.runner.command(
                self._host.mount_point, root.environment, self._limits, driver, root=self._host.root
            ),
        }
        held = [fd for fd in (self._namespace, self._network) if fd is not None]
        fds = [*ends, errors, *held]
        self._pid, self._monitor = self._host.launcher.start(request, fds)

    def _hold(self) -> None:
        """Keep the driver, the mounts and the upper directory in reach, whatever happens inside. Raises `OSError`."""
        of = f"/proc/{self._pid}"
        self._close("_first")
        self._first = os.pidfd_open(self._host.runner.first(self._pid))
        if self._namespace is None:
            self._close("_network")  # of a driver that died before its mounts were held
            self._network = os.open(f"{of}/ns/net", os.O_RDONLY)
            self._namespace = os.open(f"{of}/ns/mnt", os.O_RDONLY)
            place = f"{of}/root{self._host.mount_point}/upper"
            self._upper = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def _signal(self, number: signal.Signals) -> None:
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, number)

    async def _ended(self) -> None:
        """Wait until every process has ended: the driver is the last of its namespace to."""
        if self._monitor is not None:
            try:
                async with asyncio.timeout(END_SECONDS):
                    for fd in (self._first, self._monitor):
                        if fd is not None:
                            await _readable(fd)
            except TimeoutError as error:
                raise SandboxError(f"an overlay sandbox did not end within {END_SECONDS:.0f} s") from error
            self._close("_monitor")

    def _close(self, *names: Fd) -> None:
        for name in names:
            fd: int | None = getattr(self, name)
            setattr(self, name, None)
            if fd is not None:
                os.close(fd)


class Launcher(GuestProcess):
    """The process that forks what runs over an overlay (`sandbox.guest.launcher`).

    `start` and `listen` may be called from any thread; `start` blocks for about a millisecond.
    """

    def __init__(self, *, root: bool) -> None:
        self._lock = threading.Lock()
        program, user = guest_program("launcher"), "root" if root else "user"
        super().__init__(lambda end, errors: popen([*program, str(end.fileno()), user], errors, [end.fileno()]))

    def start(self, request: Mapping[str, Any], fds: Sequence[int]) -> tuple[int, int]:
        """Fork a process. Returns its pid and a pidfd. Raises `SandboxError`."""
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(request).encode()], list(fds))
                answer, pidfds, _, _ = socket.recv_fds(self._control, 64, 1)
            os.set_inheritable(pidfds[0], False)
            return int(answer), pidfds[0]
        except (OSError, ValueError, IndexError) as error:
            raise SandboxError(f"an overlay sandbox could not be started: {error}; {self._printed()}") from error

    def listen(self, namespace: int, port: int) -> socket.socket:
        """Open a socket that listens on the loopback of an open network namespace.

        Raises `OSError` where the port can't be had, `SandboxError` where the process does not answer.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            try:
                with theirs, self._lock:
                    fds = [namespace, theirs.fileno()]
                    socket.send_fds(self._control, [json.dumps({"port": port}).encode()], fds)
                ours.settimeout(GUEST_SECONDS)
                answer, made, _, _ = socket.recv_fds(ours, 4096, 1)
                refused = json.loads(answer)
            except (OSError, ValueError) as error:
                raise SandboxError(f"an overlay sandbox gave no port {port}: {error}; {self._printed()}") from error
        if not made:
            raise OSError(refused["errno"] or errno.EIO, refused["error"], f"port {port}")
        os.set_inheritable(made[0], False)
        return socket.socket(fileno=made[0])


# Read what a sandbox has changed from the upper directory of its overlay, which only the kernel writes.
#
# See "Whiteouts and opaque directories" in the kernel's Documentation/filesystems/overlayfs.rst. The overlay is mounted
# with `redirect_dir=off,metacopy=off`, so that a file in the upper directory is complete and has its own path. No link
# is ever followed.
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")


def find_changes(upper: int, folder: str, size_before: Callable[[str], int]) -> Found:
    """Find the changes below `folder`, absolute inside; `upper` is the open upper directory. Raises `OSError`."""
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
    """Say whether the repository's folder is in the upper directory, and whether all of the image's is hidden."""
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
    """Read a regular file; None where it has more than `most` bytes."""
    fd = _open_readable(upper, path, 0)
    try:
        if os.fstat(fd).st_size > most:
            return None
        content = read_up_to(fd, most + 1)
        return content if len(content) <= most else None
    finally:
        os.close(fd)


def _open_readable(upper: int, path: str, flags: int) -> int:
    """Open a path, and where its mode is in the way, widen that: modes are in no patch."""
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
    """Open what is at `path` below an open folder. Raises `OSError`: ELOOP where a link is on the way.

    It calls openat2, of Linux 5.6. Files are opened without waiting for a FIFO's other end.
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


async def _readable(fd: int) -> None:
    """Wait until there is something to read, of a pidfd: until its process has ended."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)


async def open_pipes() -> tuple[Stream, tuple[int, int]]:
    """Open pipes to a child. Returns the stream, and the (read, write) file descriptors for the child, to be closed
    here once it has them.
    """
    loop = asyncio.get_running_loop()
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    reader = asyncio.StreamReader(limit=STREAM_BYTES)
    source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(our_in, "rb", 0))
    sink, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(our_out, "wb", 0))
    return Stream(reader, sink, source), (their_in, their_out)
