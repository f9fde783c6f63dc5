"""`ImageSandbox`: a sandbox in a container of an image, whatever runs the container.

Commands, reads and writes go through the driver inside. `diff` works from outside and trusts no program of the
container. A command that ends or blocks the driver counts as killed, and the driver is started again on the same files.
If it can't be started again, each further command fails with 137, and `diff` still has the files. So the policy can't
cause a `SandboxError`, which is raised only if the backend fails.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import errno
import functools
import os
import shlex
import socket
import stat
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.patches import OVERSIZED
from slime_swe.sandbox import pool
from slime_swe.sandbox.base import MAX_PORT, ExecResult, SandboxError, SandboxSpec
from slime_swe.sandbox.guest.files import MAX_FILE_BYTES, Changes, is_left_out
from slime_swe.sandbox.guest.wire import CappedOutput
from slime_swe.sandbox.image.driver import Kind, Shell, ShellDied, Stream
from slime_swe.sandbox.many_files import as_tar

HISTORY = Path(__file__).with_name("shallow_history.sh")  # leaves the repository no later history
NO_HISTORY = 3  # what it ends with where there is none
SETUP_SECONDS = 300.0  # for the image's own setup
FILE_SECONDS = 60.0  # for one file operation inside
_NUL_EXIT_CODE = 126
_LOST = 1 << 16  # of an error's text
_READ = f"""
LC_ALL=C LANGUAGE=C
if [ -e "$path" ] && [ ! -f "$path" ] && [ ! -d "$path" ]; then echo "not a regular file"; exit 1; fi
[ ! -d "$path" ] || {{ echo "{os.strerror(errno.EISDIR)}"; exit 1; }}
exec <"$path" || exit 1
exec head -c {MAX_FILE_BYTES + 1}
"""
_WRITE = """
LC_ALL=C LANGUAGE=C
if [ -e "$path" ] && [ ! -f "$path" ] && [ ! -d "$path" ]; then echo "not a regular file"; exit 1; fi
case $path in */*) [ -d "${path%/*}/" ] || mkdir -p -- "${path%/*}" || exit 1 ;; esac
set -o pipefail
head -c SIZE >"$path"
"""
_UNPACK = "LC_ALL=C LANGUAGE=C exec tar -xf - --no-same-owner"


class ShellSandbox(pool.BaseSandbox):
    """A sandbox whose files are reached by commands of its own shell.

    If a file operation fails because of what the agent did, it raises the `OSError` that occurred inside. A cancelled
    call kills its command and leaves the sandbox usable.
    """

    def __init__(self, image: Image, spec: SandboxSpec) -> None:
        self._image = image
        self._limits = spec.limits
        self._files = spec.files
        self._lock = asyncio.Lock()

    @abc.abstractmethod
    async def _run(
        self, command: bytes, output: CappedOutput, seconds: float, *, kind: Kind = "run", stdin: bytes = b""
    ) -> int | None:
        """Run a command without NUL bytes, and return its exit status; None where it was killed at its time limit."""

    async def exec(self, command: str, *, timeout: float | None = None) -> ExecResult:
        """Run a command for at most `timeout` seconds, the limits' `wall_seconds` where that is None."""
        if "\0" in command:
            return ExecResult(_NUL_EXIT_CODE, "a command can't hold a NUL byte\n", 0.0)
        seconds = self._limits.wall_seconds if timeout is None else timeout
        output = CappedOutput(self._limits.output_bytes)
        async with self._lock:
            started = time.monotonic()
            code = await self._run(command.encode("utf-8", "replace"), output, seconds)
        return await pool.result(code, time.monotonic() - started, *output.parts(), output.missing)

    async def read_file(self, path: str) -> bytes:
        output = CappedOutput(2 * MAX_FILE_BYTES + 2)
        async with self._lock:
            code = await self._run(_with_path(path, _READ), output, FILE_SECONDS)
        content = b"".join(output.parts())
        if code != 0:
            raise _as_os_error(code, content, path)
        if len(content) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"a file of more than {MAX_FILE_BYTES} bytes", path)
        return content

    async def write_file(self, path: str, content: bytes) -> None:
        script = _with_path(path, _WRITE.replace("SIZE", str(len(content))))
        await self._feed(script, content, path)

    async def _write_files(self) -> None:
        """Write the files that the task starts with. Raises `SandboxError`: a fresh sandbox that can't hold them is no
        doing of the policy's.
        """
        try:
            await self._feed(_UNPACK.encode(), await asyncio.to_thread(as_tar, self._files), "")
        except OSError as error:
            raise SandboxError(f"the sandbox could not write its files: {error}") from error

    async def _feed(self, script: bytes, stdin: bytes, path: str) -> None:
        output = CappedOutput(_LOST)
        async with self._lock:
            code = await self._run(script, output, FILE_SECONDS, kind="feed", stdin=stdin)
        if code != 0:
            raise _as_os_error(code, b"".join(output.parts()), path)


class ImageSandbox(ShellSandbox):
    """A sandbox in a container. Entering it starts it, runs the image's setup and writes the files over the image's."""

    def __init__(self, image: Image, spec: SandboxSpec) -> None:
        super().__init__(image, spec)
        self._originals: Originals | None = None  # set by `_start_driver`
        self._start: Start | None = None
        self._shell: Shell | None = None
        self._ports: list[socket.socket] = []  # given out
        self._open = False

    @abc.abstractmethod
    async def _start_driver(self) -> Stream:
        """Start the container's first process or, where it has ended, start it again on the same files.

        Raises `ShellDied` where the backend works, and yet the driver does not come up.
        """

    @abc.abstractmethod
    async def _interrupt(self) -> None:
        """Send SIGUSR1 to the driver, if it lives."""

    @abc.abstractmethod
    async def _kill(self) -> None:
        """End the driver and with it every process, by the system's own means."""

    @abc.abstractmethod
    async def _listen_inside(self, port: int) -> socket.socket:
        """Open a socket that listens on the loopback of the container's network.

        Raises `OSError` where the port is taken, `ShellDied` where the network went with the driver.
        """

    @abc.abstractmethod
    async def _find_changes(self, size_before: Callable[[str], int]) -> Found:
        """Find what differs from the image, without the help of any program inside. `size_before` gives the bytes that
        a file had at the start.

        Raises `OSError` (EFBIG) where there are too many names.
        """

    @abc.abstractmethod
    async def _remove(self) -> None:
        """End the container and leave nothing of it. This may be called at any time, and more than once."""

    async def diff(self) -> str:
        async with self._lock:
            if not self._open or self._start is None:
                raise SandboxError("the sandbox is not open")
            if self._shell is not None:
                with contextlib.suppress(ShellDied):  # its files are there all the same
                    await self._shell.settled()
            try:
                found = await self._find_changes(self._start.size)
            except OSError as error:
                if error.errno == errno.EFBIG:
                    return OVERSIZED
                raise SandboxError(f"the sandbox's files could not be listed: {error}") from error
        changes = await asyncio.to_thread(self._start.compare, found)
        return await pool.patch(changes.files, changes.oversized, changes.deleted, self._start.read)

    async def listen(self, port: int) -> socket.socket:
        if not 0 < port <= MAX_PORT:
            raise UserError(f"a port of a sandbox is 1 to {MAX_PORT}, got {port}")
        async with self._lock:
            if not self._open:
                raise SandboxError("the sandbox is not open")
            listening = await self._listen(port)
            listening.setblocking(False)
            self._ports = [given for given in self._ports if given.fileno() >= 0] + [listening]
        return listening

    async def _listen(self, port: int) -> socket.socket:
        """Listen inside; where the network went with the driver, in that of a new one. Raises `OSError`."""
        for last in (False, True):
            if self._shell is None:
                break
            try:
                return await self._listen_inside(port)
            except ShellDied:
                if not last:
                    await self._revive()
        raise OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN), f"port {port}")

    def _close_ports(self) -> None:
        """Close the ports that are still open; the loop may be watching for connections."""
        ports, self._ports = self._ports, []
        for listening in ports:
            if listening.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(listening)
                listening.close()

    async def _enter(self) -> None:
        try:
            await self._start_shell()
            self._open = True
            assert self._originals is not None
            self._start = Start(self._originals)
            if self._image.setup:
                self._start.after_setup(await self._find_changes(self._start.size))
            if self._files:
                await self._write_files()
                self._start.add(self._files)
        except ShellDied as error:
            raise SandboxError(f"the sandbox of {self._image.name} did not start: {error}") from error

    async def _leave(self) -> None:
        self._open = False
        self._close_ports()
        shell, self._shell = self._shell, None
        try:
            if shell is not None:
                await shell.close()
        finally:
            await self._remove()

    async def _start_shell(self) -> None:
        """Start the driver and, in it, the image's setup. Raises `ShellDied`."""
        self._shell = Shell(await self._start_driver(), self._interrupt)
        if self._image.setup:
            output = CappedOutput(_LOST)
            code = await self._shell.run(self._image.setup.encode(), output, SETUP_SECONDS, kind="setup")
            if code != 0:
                ended = f"did not end within {SETUP_SECONDS:.0f} s" if code is None else f"ended with {code}"
                said = pool.render(*output.parts(), output.missing)
                raise ShellDied(f"its setup {self._image.setup!r} {ended}: {said}")

    async def _run(
        self, command: bytes, output: CappedOutput, seconds: float, *, kind: Kind = "run", stdin: bytes = b""
    ) -> int | None:
        """Run a command in the shell, which is brought up again where it has died: see the module's docstring."""
        if not self._open:
            raise SandboxError("the sandbox is not open")
        deadline = time.monotonic() + seconds
        for last in (False, True):
            if self._shell is None:
                output.add(pool.GONE.encode())
                return pool.KILLED
            try:
                return await self._shell.run(command, output, seconds, kind=kind, stdin=stdin)
            except ShellDied:
                begun = self._shell.started
                await self._revive()
                if last or begun:  # if not, it was an earlier command that ended the driver
                    return None if time.monotonic() > deadline else pool.KILLED
        raise AssertionError("not reached")

    async def _revive(self) -> None:
        """Start a new driver on the same files; none where they no longer hold what it takes to start."""
        if not self._open or self._shell is None:
            raise SandboxError("the sandbox is not open")
        old, self._shell = self._shell, None
        await old.close()
        await self._kill()
        try:
            await self._start_shell()
        except ShellDied:
            self._shell = None
            await self._kill()


# The rest finds how a sandbox's files differ from those that it started with.
MAX_PATH_BYTES = 4095  # what the system opens


def is_tracked(path: str) -> bool:
    """Say whether a file is part of a diff: caches are not, nor what is git's, nor what no path reaches."""
    *folders, name = path.split("/")
    left_out = is_left_out(name, folder=False) or any(is_left_out(each, folder=True) for each in folders)
    return not left_out and len(os.fsencode(path)) <= MAX_PATH_BYTES


class Originals:
    """The regular files of an image's repository, except caches, in a folder of this machine that nothing changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def paths(self) -> Set[str]:
        return self._sizes.keys()

    def size(self, path: str) -> int:
        """Return a file's size in bytes, 0 where there is no such file."""
        return self._sizes.get(path, 0)

    def read(self, path: str) -> bytes | None:
        """Read a file; None where there is no such file."""
        return (self._folder / path).read_bytes() if path in self._sizes else None

    @functools.cached_property
    def _sizes(self) -> Mapping[str, int]:
        sizes = {}
        for folder, _, names in os.walk(self._folder):
            for name in names:
                place = os.path.join(folder, name)
                path = os.path.relpath(place, self._folder)
                found = os.stat(place, follow_symlinks=False)
                if stat.S_ISREG(found.st_mode) and is_tracked(path):
                    sizes[path] = found.st_size
        return sizes


@dataclass(frozen=True)
class Found:
    """The differences of a container's repository from its image's, as seen from outside.

    files: the regular files that may be new or different; None for a file with more bytes than were asked for. hidden:
    paths at which, and below which, nothing of the image is left.
    """

    files: Mapping[str, bytes | None]
    hidden: frozenset[str]


class Start:
    """The files that a sandbox started with: its image's, as changed by the image's setup and the task's files."""

    def __init__(self, originals: Originals) -> None:
        self._originals = originals
        self._changed: dict[str, bytes | None] = {}  # where the start is not the image; None: too large
        self._missing: frozenset[str] = frozenset()  # the image's files that were gone

    def after_setup(self, found: Found) -> None:
        """Make what the setup has changed part of the start."""
        self._changed = dict(found.files)
        self._missing = self._gone(found)

    def add(self, files: Mapping[str, bytes]) -> None:
        self._changed |= files
        self._missing -= files.keys()

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None where there was none, or it is not known."""
        if path in self._changed:
            return self._changed[path]
        return None if path in self._missing else self._originals.read(path)

    def size(self, path: str) -> int:
        if path in self._changed:
            return len(self._changed[path] or b"")
        return self._originals.size(path)

    def compare(self, found: Found) -> Changes:
        """Find what has changed since the start."""
        changes = Changes({}, [], [])
        gone = self._gone(found)
        same = (self._changed.keys() & self._originals.paths()) - found.files.keys() - gone  # as the image has them
        now = {**found.files, **{path: self._originals.read(path) for path in same}}
        for path, content in sorted(now.items()):
            if content is None and self._changed.get(path, b"") is not None:
                changes.oversized.append(path)
            elif content is not None and content != self.read(path):
                changes.files[path] = content
        changes.deleted.extend(sorted((gone | self._changed.keys()) - now.keys() - self._missing))
        return changes

    def _gone(self, found: Found) -> frozenset[str]:
        """List the image's files that are hidden, or are below what is hidden or is a file now."""
        hidden, present = found.hidden, found.files
        over = hidden | present.keys()
        paths = self._originals.paths() if over else ()
        return frozenset(p for p in paths if p not in present and (p in hidden or not over.isdisjoint(_above(p))))


def _above(path: str) -> list[str]:
    """List the folders that a path is below, "" for the repository's own among them."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts))]


def _with_path(path: str, script: str) -> bytes:
    """Return a script with `$path` set. Raises `FileNotFoundError` for what can't be a path."""
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise FileNotFoundError(errno.ENOENT, f"not a path: {error.reason}", path) from error
    if not name or b"\0" in name:
        raise FileNotFoundError(errno.ENOENT, "not a path", path)
    if name.startswith(b"-"):
        name = b"./" + name
    return b"path=" + os.fsencode(shlex.quote(os.fsdecode(name))) + script.encode()


def _as_os_error(code: int | None, said: bytes, path: str) -> OSError:
    """Make the error that happened inside, by the last thing that was said of it."""
    text = said.decode("utf-8", "replace").strip()
    if code is None:
        return OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), path)
    if text.endswith("not a regular file"):
        return FileNotFoundError(errno.ENOENT, "not a regular file", path)
    for number in _KNOWN_ERRORS:
        if text.endswith(os.strerror(number)):
            return OSError(number, os.strerror(number), path)
    return OSError(errno.EIO, text[-500:] or os.strerror(errno.EIO), path)


_KNOWN_ERRORS = (
    errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC,
    errno.EDQUOT, errno.EFBIG, errno.ELOOP, errno.ENAMETOOLONG, errno.ETXTBSY, errno.ENXIO, errno.EIO, errno.ENOMEM,
)  # fmt: skip
