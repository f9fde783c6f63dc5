"""`Launcher`: the host's end of `rollout.sandbox.guest.launcher`, the process that starts overlay sandboxes."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slime_swe.rollout.sandbox.base import SandboxError
from slime_swe.rollout.sandbox.bubblewrap import popen, python_executable
from slime_swe.rollout.sandbox.fork_server import START_SECONDS, GuestProcess

# The packages around the guest are not run: it imports nothing of them.
_START = """
import sys, types
guest = sys.modules["slime_swe_guest"] = types.ModuleType("slime_swe_guest")
guest.__path__ = [sys.argv[3]]
from slime_swe_guest.launcher import main
main()
"""


class Launcher(GuestProcess):
    """`start` and `listen` may be called from any thread; `start` blocks for about a millisecond."""

    def __init__(self, *, root: bool) -> None:
        self._lock = threading.Lock()
        guest = str(Path(__file__).parents[1] / "guest")
        program = [python_executable(), "-I", "-S", "-B", "-c", _START]
        user = "root" if root else "user"
        super().__init__(lambda end, errors: popen([*program, str(end.fileno()), user, guest], errors, [end.fileno()]))

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
