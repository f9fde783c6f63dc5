"""Whatever a command left running: finding it and killing it, from the process that adopts its orphans."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from . import kernel

OPEN_FILES = 4096  # of a process; a sandbox's share of the machine's is as many times its processes
# The kernel counts these for each user, and lets a user run out of them.
_PENDING_SIGNALS, _LOCKED_BYTES, _QUEUE_BYTES = 1024, 1 << 20, 128 << 10
_INOTIFY_INSTANCES, _INOTIFY_WATCHES = 4, 4096
_RLIMIT_SIGPENDING, _RLIMIT_MSGQUEUE = 11, 12  # `resource` does not name them
_STOP_PASSES = 50


def set_limits(limits: Mapping[str, Any], contained: bool) -> None:
    """Apply the resource limits to the calling process and to all that it starts, which are to be the first to go where
    the machine is out of memory: never what runs them.
    """
    kernel.write("/proc/self/oom_score_adj", "1000")
    caps = {
        resource.RLIMIT_CPU: limits["cpu_seconds"],
        resource.RLIMIT_AS: limits["memory_bytes"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: _LOCKED_BYTES,
        _RLIMIT_SIGPENDING: _PENDING_SIGNALS,
        _RLIMIT_MSGQUEUE: _QUEUE_BYTES,
    }
    if contained:  # elsewhere RLIMIT_NPROC would count all processes of the user
        caps[resource.RLIMIT_NPROC] = limits["processes"]
    for kind, wanted in caps.items():
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def limit_watches() -> None:
    """Limit how much inotify there may be in the current user namespace, whose root the caller is. The kernel counts it
    for the host's user too, who by default may have 128 instances.
    """
    kernel.write("/proc/sys/user/max_inotify_instances", str(_INOTIFY_INSTANCES))
    kernel.write("/proc/sys/user/max_inotify_watches", str(_INOTIFY_WATCHES))


def reset_signals() -> None:
    """Give signals the defaults that a freshly started program expects, however this one was started: `nohup` and a
    shell's background ignore signals, Python ignores some, PID 1 more.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def descendants(pid: int) -> list[int]:
    """List all living processes below `pid`, parents first."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = list(_children(waiting.pop()))
        found += children
        waiting += children
    return found


def kill_all(contained: bool) -> None:
    """Kill every process below this one, daemons and double forks too, and reap them.

    In a pid namespace of its own one call reaches all of them at once. Elsewhere they are stopped first, so that none
    can fork between being found and being killed.
    """
    if contained:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    else:
        _stop_and_kill()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def reap() -> list[int]:
    """Collect the children that have ended, adopted ones too, and return their pids."""
    ended: list[int] = []
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            ended.append(pid)
    return ended


def _stop_and_kill() -> None:
    stopped: set[int] = set()
    for _ in range(_STOP_PASSES):
        new = set(descendants(os.getpid())) - stopped
        if not new:
            break
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _children(pid: int) -> Iterator[int]:
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        return
