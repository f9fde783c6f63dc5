"""`Launcher`: the host's end of `rollout.sandbox.guest.launcher`, the process that starts overlay sandboxes."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slime_swe.rollout.sandbox.base import SandboxError
from slime_swe.rollout.sandbox.bubblewrap import python_executable

ANSWER_SECONDS = 60.0
END_SECONDS = 5.0
# The packages around the guest are not run: it imports nothing of them.
_START = """
import sys, types
guest = sys.modules["slime_swe_guest"] = types.ModuleType("slime_swe_guest")
guest.__path__ = [sys.argv[3]]
from slime_swe_guest.launcher import main
main()
"""


class Launcher:
    """Owns the process. `start` may be called from any thread; it blocks for about a millisecond."""

    def __init__(self, *, root: bool) -> None:
        """Raises `SandboxError` where it does not come up."""
        self._lock = threading.Lock()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(ANSWER_SECONDS)
        guest = str(Path(__file__).parents[1] / "guest")
        program = [python_executable(), "-I", "-S", "-B", "-c", _START]
        with theirs:
            self._process = subprocess.Popen(
                [*program, str(theirs.fileno()), "root" if root else "user", guest],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # so that Ctrl-C reaches the host alone, which then closes its sandboxes
            )
        try:
            said = self._control.recv(64)
        except OSError:
            said = b""
        if said != b"ready":
            self.close()
            raise SandboxError(f"overlay sandboxes could not be started: {self._printed()}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

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
                ours.settimeout(ANSWER_SECONDS)
                answer, made, _, _ = socket.recv_fds(ours, 4096, 1)
                refused = json.loads(answer)
            except (OSError, ValueError) as error:
                raise SandboxError(f"an overlay sandbox gave no port {port}: {error}; {self._printed()}") from error
        if not made:
            raise OSError(refused["errno"] or errno.EIO, refused["error"], f"port {port}")
        os.set_inheritable(made[0], False)
        return socket.socket(fileno=made[0])

    def close(self) -> None:
        """End it, and with it every process that it has started."""
        self._control.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _printed(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode("utf-8", "replace").strip() or "it printed nothing"
