"""`OverlayContainer`: an unpacked image, an overlay over it, and the driver in bubblewrap. No daemon.

Its mounts are in a mount namespace of its own, which goes with its last process and our handle on it; what it writes is
in a tmpfs of that namespace. So nothing of it outlives this process, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import IO

from rollout.sandbox.base import Limits, SandboxError
from rollout.sandbox.cgroups import Cgroups, Group
from rollout.sandbox.container import Found, Originals, ShellDied, Stream, await_ready, driver_command
from rollout.sandbox.overlay_upper import find_changes
from rollout.sandbox.pipes import Pipes

START_SECONDS = 60.0
END_SECONDS = 10.0
_PROBED = "--disable-userns"  # of bubblewrap 0.8


@dataclass(frozen=True)
class Host:
    """What a machine offers to overlay sandboxes.

    mount_point: an empty folder. root: whether this user may mount outside of a user namespace. tmpfs: whether a tmpfs
    can be an upper directory. flags: of bubblewrap, that not every version has. cgroups: None where there can be none.
    """

    mount_point: Path
    root: bool
    tmpfs: bool
    flags: tuple[str, ...]
    cgroups: Cgroups | None


@dataclass(frozen=True)
class Root:
    """An image on disk. layers: folders, the topmost first. folder: of the repository."""

    layers: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str


FindRoot = Callable[[], Awaitable[tuple[Root, Originals]]]


class OverlayContainer:
    """A `Container`. `scratch` is a folder to keep what is written in, in place of a tmpfs."""

    def __init__(self, host: Host, find: FindRoot, limits: Limits, scratch: Path | None = None) -> None:
        self._host = host
        self._find = find
        self._found: tuple[Root, Originals] | None = None
        self._limits = limits
        self._scratch = scratch
        self._group: Group | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._first: int | None = None  # pidfd of the driver
        self._namespaces: list[tuple[str, int]] = []  # option of nsenter, file descriptor
        self._upper: int | None = None

    @property
    def originals(self) -> Originals:
        assert self._found is not None, "not started"
        return self._found[1]

    async def start(self) -> Stream:
        if self._found is None:
            self._found = await self._find()
        if self._process is not None:
            await self._reap()
        if self._group is None and self._host.cgroups is not None:
            self._group = self._host.cgroups.take(self._limits)
        stream, ends = await Pipes.open()
        with tempfile.TemporaryFile() as errors:
            try:
                self._process = self._launch(ends, errors)
            except OSError as error:
                stream.close()
                raise SandboxError(f"an overlay sandbox could not be started: {error}") from error
            finally:
                for end in ends:
                    os.close(end)
            try:
                await await_ready(stream, START_SECONDS)
                self._hold()
            except BaseException as error:
                stream.close()
                if not isinstance(error, ShellDied | OSError):
                    raise
                await self.kill()
                errors.seek(0)
                said = errors.read()[-2000:].decode("utf-8", "replace").strip()
                raise ShellDied(f"{said or error}") from error
        return stream

    async def interrupt(self) -> None:
        self._signal(signal.SIGUSR1)

    async def kill(self) -> None:
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            await self._reap()

    async def find_changes(self, size_before: Callable[[str], int]) -> Found:
        assert self._upper is not None, "not started"
        return await asyncio.to_thread(find_changes, self._upper, self._root().folder, size_before)

    async def remove(self) -> None:
        await self.kill()
        fds = [fd for _, fd in self._namespaces] + [fd for fd in (self._upper, self._first) if fd is not None]
        self._namespaces, self._upper, self._first = [], None, None
        for fd in fds:
            os.close(fd)
        if self._group is not None and self._host.cgroups is not None:
            self._host.cgroups.give_back(self._group)
            self._group = None

    def _launch(self, ends: tuple[int, int], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        joins = "\n".join(self._group.joins) if self._group else ""
        if self._namespaces:
            script = 'IFS="\n"\nfor group in $1; do echo 0 >"$group"; done; shift; exec "$@"'
            command = [*self._enter(), "sh", "-c", script, "sh", joins]
        else:
            script = (resources.files("rollout.sandbox") / "overlay_mount.sh").read_text(encoding="utf-8")
            disk = str(self._scratch or self._limits.disk_bytes)
            mount = [str(self._host.mount_point), disk, self._options(), joins]
            command = [*self._unshare(), "sh", "-c", script, "sh", *mount]
        return subprocess.Popen(
            [*command, *self._bubblewrap()],
            stdin=ends[0],
            stdout=ends[1],
            stderr=errors,
            pass_fds=[fd for _, fd in self._namespaces],
            start_new_session=True,  # so that Ctrl-C reaches the host alone, which then closes its sandboxes
        )

    def _unshare(self) -> list[str]:
        user = [] if self._host.root else ["--user", "--map-root-user"]
        return ["unshare", *user, "--mount", "--propagation", "private", "--"]

    def _enter(self) -> list[str]:
        options = [f"{option}=/proc/self/fd/{fd}" for option, fd in self._namespaces]
        return ["nsenter", *([] if self._host.root else ["--preserve-credentials"]), *options, "--"]

    def _options(self) -> str:
        layers = f"lowerdir={':'.join(self._root().layers)}"
        return f"{layers},redirect_dir=off,metacopy=off,index=off" if self._host.root else f"{layers},userxattr"

    def _bubblewrap(self) -> list[str]:
        flags = ["--unshare-all", "--unshare-user", *self._host.flags, "--as-pid-1", "--die-with-parent"]
        flags += ["--new-session", "--cap-drop", "ALL", "--hostname", "sandbox", "--clearenv"]
        for name, value in self._root().environment.items():
            flags += ["--setenv", name, value]
        flags += ["--bind", f"{self._host.mount_point}/root", "/", "--proc", "/proc", "--dev", "/dev"]
        flags += ["--size", str(self._limits.disk_bytes), "--tmpfs", "/dev/shm", "--chdir", "/"]
        driver = driver_command(self._limits, self._root().folder, address_space=self._group is None)
        return ["bwrap", *flags, *driver]

    def _hold(self) -> None:
        """Keep the driver, the mounts and the upper directory in reach, whatever happens inside. Raises `OSError`."""
        assert self._process is not None
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        if self._first is not None:
            os.close(self._first)
            self._first = None
        self._first = os.pidfd_open(int(children[0]))
        if not self._namespaces:
            kinds = ("mnt", "mount"), *(() if self._host.root else (("user", "user"),))
            for kind, option in kinds:
                self._namespaces.append((f"--{option}", os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)))
            place = f"/proc/{pid}/root{self._host.mount_point}/upper"
            self._upper = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def _root(self) -> Root:
        assert self._found is not None, "not started"
        return self._found[0]

    def _signal(self, number: signal.Signals) -> None:
        if self._first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._first, number)

    async def _reap(self) -> None:
        assert self._process is not None
        process, self._process = self._process, None
        try:
            await asyncio.to_thread(process.wait, END_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise SandboxError(f"an overlay sandbox did not end within {END_SECONDS:.0f} s") from error
