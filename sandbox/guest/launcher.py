"""A small process that forks what runs over an overlay, so that mounts cost system calls and not programs.

The host sends a request over a socket, with the new process's stdin, stdout and stderr, and gets the pid and a pidfd.
Or it sends a network namespace, a port and a socket for the answer: a fork enters the namespace, opens the port and
ends. When the host closes its socket, the launcher ends with everything that it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from . import confinement, kernel, processes, seccomp

MAX_REQUEST_BYTES = 1 << 18
_MAX_FDS = 5
_PAUSE_SECONDS = 0.002
SECCOMP_FD = 20  # where the runner finds the filter's program; no request's is as high


def main() -> None:
    """Serve the socket at file descriptor argv[2]; argv[3] is "root" where this user can mount as it is."""
    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)  # no sandbox may have it
    processes.reset_signals()  # whatever the host was started with: a child is waited for next
    root = sys.argv[3] == "root"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits: the host watches the pidfd
    kernel.become_subreaper()  # nor for what it leaves
    os.umask(0o022)  # / of an overlay has the mode of the folder that we make for it
    if not root:
        confinement.become_root_inside()
    control.send(b"ready")
    while True:
        data, fds, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, _MAX_FDS)
        if not data:
            return _end_all()
        for fd in fds:
            os.set_inheritable(fd, False)  # `recv_fds` does not heed MSG_CMSG_CLOEXEC
        request: dict[str, Any] = json.loads(data)
        pid = os.fork()
        if pid == 0:
            if "port" in request:
                _listen(request["port"], *fds)
            _become(request, fds, root)
        if "port" not in request:
            pidfd = os.pidfd_open(pid)
            socket.send_fds(control, [str(pid).encode()], [pidfd])
            fds.append(pidfd)
        for fd in fds:
            os.close(fd)


def _end_all() -> None:
    """Kill every child; what each leaves becomes ours, in its turn. Not all of them die with their parent."""
    while pids := Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split():
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)


def _listen(port: int, namespace: int, answers: int) -> None:
    """In the fork: never returns. Answers with the socket, or with what is in its way."""
    try:
        with socket.socket(fileno=answers) as answer:
            try:
                with kernel.listen(namespace, port) as listening:
                    socket.send_fds(answer, [b"{}"], [listening.fileno()])
            except OSError as error:
                answer.send(json.dumps({"errno": error.errno, "error": error.strerror}).encode())
    finally:
        os._exit(0)


def _become(request: dict[str, Any], fds: list[int], root: bool) -> None:
    """In the fork: never returns. What goes wrong is reported on the new process's stderr."""
    try:
        os.setsid()
        for group in request["joins"]:
            kernel.write(group, "0")
        if len(fds) == _MAX_FDS:
            kernel.setns(fds[3], kernel.NEWNS)
            kernel.setns(fds[4], kernel.NEWNET)
        else:
            confinement.mount_overlay(request["mount_point"], request["disk"], request["layers"], request["options"])
            kernel.unshare(kernel.NEWNET)
            kernel.bring_up_loopback()
            kernel.open_low_ports()
        kernel.join_new_session_keyring()
        for target in range(3):
            os.dup2(fds[target], target)
        if request["filter"]:
            _put_filter()
        if not root:
            confinement.become_root_inside()
        elif request["users"]:
            confinement.enter_all_users()
        if not root or request["users"]:
            confinement.limit_watches()
        processes.reset_signals()
        os.execvp(request["command"][0], request["command"])
    except OSError as error:
        os.write(fds[2], f"{error}\n".encode())
    finally:
        os._exit(126)


def _put_filter() -> None:
    """A file of its own: what reads it moves its position."""
    program = os.memfd_create("seccomp")
    os.write(program, seccomp.program())
    os.lseek(program, 0, os.SEEK_SET)
    os.dup2(program, SECCOMP_FD)
