"""A small process that forks what runs over an overlay, so that mounts cost system calls and not programs: those of an
image's sandbox, before bubblewrap or Apptainer confines it. What system calls it may make is in `seccomp`.

The host sends a request over a socket, with the new process's stdin, stdout and stderr, and gets the pid and a pidfd.
Or it sends a network namespace, a port and a socket for the answer: a fork enters the namespace, opens the port and
ends. When the host closes its socket, the launcher ends with everything that it has started.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import counters, devices, kernel, processes, seccomp

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
        _become_root_inside()
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
    """Answer with a listening socket, or with what is in its way. Runs in the fork and never returns."""
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
    """Become the process that was asked for. Runs in the fork and never returns: what goes wrong is reported on the new
    process's stderr.
    """
    try:
        os.setsid()
        for group in request["joins"]:
            kernel.write(group, "0")
        if len(fds) == _MAX_FDS:
            kernel.setns(fds[3], kernel.NEWNS)
            kernel.setns(fds[4], kernel.NEWNET)
        else:
            _mount_overlay(request["mount_point"], request["disk"], request["layers"], request["options"])
            kernel.unshare(kernel.NEWNET)
            kernel.bring_up_loopback()
            kernel.open_low_ports()
        kernel.join_new_session_keyring()
        for target in range(3):
            os.dup2(fds[target], target)
        if request["filter"]:
            _put_filter()
        if not root:
            _become_root_inside()
        elif request["users"]:
            _enter_all_users()
        if not root or request["users"]:
            processes.limit_watches()
        processes.reset_signals()
        os.execvp(request["command"][0], request["command"])
    except OSError as error:
        os.write(fds[2], f"{error}\n".encode())
    finally:
        os._exit(126)


def _mount_overlay(place: str, disk: str, layers: Sequence[str], options: str) -> None:
    """Mount, in a new mount namespace, what is written at `place`, and at place/root the overlay over the layers, the
    topmost first.

    disk: the bytes of a tmpfs for what is written, or a folder. In it are also place/shm, for a /dev/shm, and what is
    mounted over parts of /proc (`bubblewrap.proc_mounts`). No folder is mounted by its name: a sandbox reads in
    /proc/self/mountinfo what it was mounted by.
    """
    kernel.unshare(kernel.NEWNS)
    kernel.mount("none", "/", "none", kernel.MS_REC | kernel.MS_PRIVATE)
    if disk.startswith("/"):
        kernel.mount(disk, place, "none", kernel.MS_BIND)
    else:
        kernel.mount("slime-swe", place, "tmpfs", 0, f"size={disk},nr_inodes=200k,mode=755")
        _own_devices(f"{place}/dev")
    for name in ("upper", "work", "root", "shm", "proc", "nothing"):
        os.makedirs(f"{place}/{name}", exist_ok=True)
    os.mknod(f"{place}/none")
    counters.write(f"{place}/counters")
    _own_proc(f"{place}/proc")
    os.chmod(f"{place}/shm", 0o1777)
    os.chdir(place)
    lower = ":".join(f"/proc/self/fd/{os.open(layer, os.O_PATH | os.O_DIRECTORY)}" for layer in layers)
    kernel.mount("slime-swe", "root", "overlay", 0, f"lowerdir={lower},{options},upperdir=upper,workdir=work")
    os.chdir("/")


def _own_proc(folder: str) -> None:
    """Mount a /proc whose inodes nobody else has (Linux 5.8), for its read-only parts to be taken from. Of the host's
    pid namespace only the host's root may mount one: another user's sandboxes have those parts of the host's own.
    """
    try:
        kernel.mount("proc", folder, "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    except PermissionError:
        kernel.mount("/proc", folder, "none", kernel.MS_BIND | kernel.MS_REC)


def _own_devices(folder: str) -> None:
    """Replace the host's device files by ones of this mount namespace, since a sandbox's root that is the host's root
    owns the host's.

    Does nothing if this user can make none: then a sandbox can't change the host's device files either.
    """
    try:
        devices.make(folder)
    except PermissionError:
        return
    for name in devices.NUMBERS:
        kernel.bind(f"{folder}/{name}", f"/dev/{name}")


def _put_filter() -> None:
    """Put the filter at `SECCOMP_FD`, in a file of its own: what reads it moves its position."""
    program = os.memfd_create("seccomp")
    os.write(program, seccomp.program())
    os.lseek(program, 0, os.SEEK_SET)
    os.dup2(program, SECCOMP_FD)


def _become_root_inside() -> None:
    """Enter a user namespace in which this user is root, and there is nobody else."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEWUSER)
    for path, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        kernel.write(f"/proc/self/{path}", text)


def _enter_all_users() -> None:
    """Enter a user namespace with the users of this one, each as itself, whose root has no power outside. Needs root,
    who alone may map others.
    """
    ready, waits = os.pipe()
    mapped, maps = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.read(ready, 1)
            for kind in ("uid_map", "gid_map"):
                kernel.write(f"/proc/{parent}/{kind}", _as_themselves(f"/proc/self/{kind}"))
            os.write(maps, b"x")
            status = 0
        finally:
            os._exit(status)
    os.close(maps)
    kernel.unshare(kernel.NEWUSER)
    os.write(waits, b"x")
    answer = os.read(mapped, 1)
    with contextlib.suppress(ChildProcessError):  # where the kernel reaps it
        os.waitpid(pid, 0)
    if not answer:
        raise OSError(errno.EPERM, "the users of a sandbox could not be mapped")
    for fd in (ready, waits, mapped):
        os.close(fd)


def _as_themselves(path: str) -> str:
    """Return the map of this namespace's ids, each to itself."""
    with open(path, encoding="ascii") as file:
        rows = [line.split() for line in file]
    return "\n".join(f"{inside} {inside} {count}" for inside, _, count in rows)
