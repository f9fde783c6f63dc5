"""The long-lived processes from which sandboxes are forked: `ForkServer` for `local`, `Launcher` for `overlay`.

With bubblewrap the supervisor (`sandbox.guest.supervisor`) lives in its own user, mount, pid, network, IPC and
UTS namespaces, sees a read-only system and nothing of the host's files but /usr and the Python installation, and holds
its capabilities inside its user namespace only. Every sandbox is a fork that unshares again and drops them all.
Without bubblewrap the same supervisor is an ordinary process: see `UNPROTECTED`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import itertools
import json
import os
import posixpath
import shutil
import socket
import subprocess
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import IO, Any

from slime_swe.sandbox import bubblewrap
from slime_swe.sandbox.base import Limits, SandboxError
from slime_swe.sandbox.guest.confinement import REPOSITORY
from slime_swe.sandbox.guest.python_fork import MAX_SCRIPTS

START_SECONDS = 60.0
END_SECONDS = 5.0
RUNS_TO_COMPILE = 3
MAX_SCRIPT_BYTES = 10_000  # six times as much, at the worst, in the one packet that the supervisor reads
UNPROTECTED = (
    "commands can reach the network, read the host's files, write what this user may write, see and signal this "
    "user's other processes, start any number of processes and fill the disk; only time, memory, file size and "
    "output are limited"
)


SHARED = (
    "this kernel mounts no overlay in a user namespace (that takes Linux 5.11), so all sandboxes share the files of "
    "their system: two of them can exchange text by locks on these files"
)


class ForkServerError(SandboxError):
    """The fork server could not be started; the message holds what it printed."""


class GuestProcess:
    """A process of the guest's code that is asked over a socket. With it or the socket ends all that it has started."""

    def __init__(self, start: Callable[[socket.socket, IO[bytes]], subprocess.Popen[bytes]]) -> None:
        """Blocks. `start` gets the other end of the socket, and a file for its errors. Raises `ForkServerError`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(START_SECONDS)  # and later, where the process lags by hundreds of requests
        greeting, problem = b"", ""
        try:
            with theirs:
                self._process = start(theirs, self._errors)
            greeting = self._control.recv(64)
        except OSError as error:
            problem = f"{error}; "
        if greeting == b"shared":
            warnings.warn(SHARED, RuntimeWarning, stacklevel=2)
        elif greeting != b"ready":
            self.close()
            raise ForkServerError(f"the process that forks sandboxes did not start: {problem}{self._printed()}")

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End it, and with it every process that it has started. Blocks."""
        self._control.close()
        if self._process is not None:
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _printed(self) -> str:
        self._errors.seek(0)
        said = self._errors.read()[-2000:].decode("utf-8", "replace").strip()
        return f"it printed: {said}" if said else "it printed nothing"


class ForkServer(GuestProcess):
    """Owns the supervisor process; every sandbox of it dies with it."""

    def __init__(self, *, contained: bool) -> None:
        self.contained = contained
        self._folder = "" if contained else tempfile.mkdtemp(prefix="slime-swe-")
        self._runs: Counter[tuple[str, bytes]] = Counter()
        self._numbers = itertools.count(1)
        plain = partial(bubblewrap.start_plain, folder=self._folder)
        super().__init__(bubblewrap.start_contained if contained else plain)

    def spawn(self, limits: Limits) -> tuple[int, socket.socket]:
        """Ask for a sandbox: its number, and the non-blocking socket on which it will answer. Raises `SandboxError`."""
        number = next(self._numbers)
        return number, self._ask({"number": number, "limits": dataclasses.asdict(limits)})

    async def kill(self, number: int) -> None:
        """End a sandbox, whatever it has become. Raises `SandboxError` where the fork server does not do it."""
        with self._ask({"kill": number}) as answer:
            try:
                async with asyncio.timeout(START_SECONDS):
                    done = await asyncio.get_running_loop().sock_recv(answer, 64)
            except (OSError, TimeoutError) as error:
                raise SandboxError(f"the fork server does not answer: {error}; {self._printed()}") from error
        if not done:
            raise SandboxError(f"the fork server has died; {self._printed()}")

    def _ask(self, request: Mapping[str, Any]) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                socket.send_fds(self._control, [json.dumps(request).encode()], [theirs.fileno()])
        except OSError as error:
            ours.close()
            raise SandboxError(f"the fork server does not answer: {error}; {self._printed()}") from error
        return ours

    def note_run(self, path: str, source: bytes) -> None:
        """A sandbox is about to run this script as it was given it. Scripts that many run are compiled once for all."""
        if not self.contained or len(source) > MAX_SCRIPT_BYTES:
            return
        script = posixpath.normpath(posixpath.join(REPOSITORY, path))
        self._runs[script, source] += 1
        if self._runs[script, source] == RUNS_TO_COMPILE:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                self._control.send(json.dumps({"script": script, "source": source.decode()}).encode())
        if len(self._runs) > MAX_SCRIPTS:
            self._runs.clear()

    def close(self) -> None:
        """End every sandbox and the supervisor, and remove what they left."""
        super().close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class Launcher(GuestProcess):
    """`start` and `listen` may be called from any thread; `start` blocks for about a millisecond."""

    def __init__(self, *, root: bool) -> None:
        self._lock = threading.Lock()
        program, user = bubblewrap.guest_program("launcher"), "root" if root else "user"
        super().__init__(
            lambda end, errors: bubblewrap.popen([*program, str(end.fileno()), user], errors, [end.fileno()])
        )

    def start(self, request: Mapping[str, Any], fds: Sequence[int]) -> tuple[int, int]:
        """Fork a process: its pid and a pidfd. Raises `SandboxError`."""
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(request).encode()], list(fds))
                answer, pidfds, _, _ = socket.recv_fds(self._control, 64, 1)
            os.set_inheritable(pidfds[0], False)
            return int(answer), pidfds[0]
        except (OSError, ValueError, IndexError) as error:
            raise SandboxError(f"an overlay sandbox could not be started: {error}; {self._printed()}") from error

    def listen(self, namespace: int, port: int) -> socket.socket:
        """A socket that listens on the loopback of an open network namespace.

        Raises `OSError` where the port can't be had, `SandboxError` where the process does not answer.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            try:
                with theirs, self._lock:
                    fds = [namespace, theirs.fileno()]
                    socket.send_fds(self._control, [json.dumps({"port": port}).encode()], fds)
                ours.settimeout(START_SECONDS)
                answer, made, _, _ = socket.recv_fds(ours, 4096, 1)
                refused = json.loads(answer)
            except (OSError, ValueError) as error:
                raise SandboxError(f"an overlay sandbox gave no port {port}: {error}; {self._printed()}") from error
        if not made:
            raise OSError(refused["errno"] or errno.EIO, refused["error"], f"port {port}")
        os.set_inheritable(made[0], False)
        return socket.socket(fileno=made[0])
