"""Each start and each resume of a run is an attempt: a line of `attempts.jsonl`, and a lock on it while it lasts.

The lock is `flock`'s. The kernel frees it when the process ends, however it ends, so a file that a killed process left
stops nobody. Programs that the process starts don't inherit it; a child that it forks without `exec` would.

Not covered: file systems without locks (which is said on standard error), and NFS mounts with `nolock` or
`local_lock=flock`, where it keeps apart the processes of one machine only. There `Attempt.require_last` notices a
later attempt before the next write.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from slime_swe.errors import UserError
from slime_swe.files import writing
from slime_swe.redaction import redacted, secrets_of

ATTEMPTS = "attempts.jsonl"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_ALONE = {  # kind of file system -> options with which each machine has locks of its own (nfs(5), mount.lustre(8))
    "nfs": {"nolock", "local_lock=flock", "local_lock=all"},
    "lustre": {"localflock"},
}
_SHOWN = 200  # characters of a command in a message
GRACE = 0.4  # seconds: `require_ended`, and a program that is just being started, hold the lock for an instant

T = TypeVar("T")


class HeldError(UserError):
    """Another process writes this run; the message says which, since when, and what to do."""


class Process(msgspec.Struct, frozen=True):
    """The process that made an attempt. `attempt` counts from 1; `since` is UTC, as `2026-01-31 12:00:00`."""

    attempt: int
    host: str = ""
    pid: int = 0
    since: str = ""
    command: str = ""


class Attempt:
    """An attempt that this process has begun and not ended."""

    def __init__(self, path: Path, descriptor: int, number: int) -> None:
        self.path, self.descriptor, self.number = path, descriptor, number
        self._size = os.fstat(descriptor).st_size

    def require_last(self) -> None:
        """Raise `HeldError` where a later attempt has begun, or the run's folder was removed or replaced."""
        if not _is_at(self.path, self.descriptor):
            raise HeldError(
                f"{self.path} was removed or replaced: this process stops, since the run is no longer its own"
            )
        if os.fstat(self.descriptor).st_size != self._size:
            raise HeldError(f"attempt {self.number} stops, since a later one has begun: {_who(self.path)}")


@contextmanager
def attempting(path: Path) -> Iterator[Attempt]:
    """Begin the next attempt and append its line to `path`, whose folder must exist. It ends with the process at the
    latest.

    Raises `HeldError` where another process's lasts, `FileError` where the file can't be written.
    """
    descriptor = _locked(path)
    try:
        number = last_attempt(path) + 1
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
        command = redacted(shlex.join(sys.orig_argv), secrets_of(os.environ))
        process = Process(number, socket.gethostname(), os.getpid(), since, command)
        with writing(path):
            _append(descriptor, msgspec.json.encode(process) + b"\n")
        yield Attempt(path, descriptor, number)
    finally:
        os.close(descriptor)


def last_attempt(path: Path) -> int:
    """Return the number of the last attempt; 0 where there is none."""
    return max((process.attempt for process in _processes(path)), default=0)


def last_process(path: Path) -> Process | None:
    """Return the process that made the last attempt; None where there is none."""
    return max(_processes(path), key=lambda process: process.attempt, default=None)


def require_ended(path: Path) -> None:
    """Raise `HeldError` where an attempt lasts."""
    if path.exists():
        os.close(_locked(path, fcntl.LOCK_SH))


def lasts(path: Path) -> bool | None:
    """Say whether an attempt lasts. Writes nothing, and holds the lock for an instant where it is free.

    Returns None where that can't be known: the last attempt is another machine's, and the folder's file system has no
    locks, or none between machines (`_between_machines`).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    locks = True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        locks = False
    finally:
        os.close(descriptor)
    process = last_process(path)
    if process is not None and process.host == socket.gethostname():
        return not locks and Path(f"/proc/{process.pid}").exists()
    return False if locks and _between_machines(path) else None


def _between_machines(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Say whether other machines see a lock on a file there, by the options of its mount (proc(5)). True for a disk
    that no other machine writes, and where there is no list of mounts."""
    kind, options, longest = "", set[str](), -1
    for line in mounts.read_text("utf-8").splitlines() if mounts.exists() else ():
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")  # a blank is \040
        if path.resolve().is_relative_to(point) and len(point) >= longest:
            kind, _, given = after.split(maxsplit=2)
            options, longest = {*given.split(","), *before.split()[5].split(",")}, len(point)
    alone = next((found for name, found in _ALONE.items() if kind.startswith(name)), set[str]())
    return not (options & alone or kind.startswith("fuse"))


def of_last_attempt(records: Iterable[T], key: Callable[[T], Hashable], attempt: Callable[[T], int | None]) -> list[T]:
    """Return the records in order, but those whose key a later attempt has too: what was written twice counts once."""
    everything, last = list(records), dict[Hashable, int]()
    for record in everything:
        last[key(record)] = max(last.get(key(record), 0), attempt(record) or 0)
    return [record for record in everything if (attempt(record) or 0) == last[key(record)]]


def _locked(path: Path, kind: int = fcntl.LOCK_EX) -> int:
    """Open the file, made where there is none, and lock it; return its descriptor. Raises `HeldError`."""
    deadline = time.monotonic() + GRACE
    while True:
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return descriptor
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise HeldError(_who(path)) from error
            time.sleep(GRACE / 20)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                print(
                    f"the file system of {path.parent} has no locks ({error.strerror}): see to it that no second "
                    "process writes this run",
                    file=sys.stderr,
                )
                return descriptor
            os.close(descriptor)
            raise
        os.close(descriptor)  # it was held, or removed before it was locked


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _append(descriptor: int, line: bytes) -> None:
    """Append the line durably, after a newline where a crash has cut the last line short."""
    size = os.fstat(descriptor).st_size
    cut_short = size and os.pread(descriptor, 1, size - 1) != b"\n"
    if os.write(descriptor, b"\n" + line if cut_short else line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(descriptor)


def _processes(path: Path) -> Iterator[Process]:
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            yield msgspec.json.decode(line, type=Process)
        except msgspec.DecodeError:
            continue  # cut short by a crash


def _who(path: Path) -> str:
    """Say for people who holds the run, and what to do."""
    *_, holder = (Process(0), *_processes(path))
    if not holder.attempt:
        return f"another process writes {path.parent}: wait until it ends (`fuser {path}` names it)"
    here = holder.host == socket.gethostname()
    where = "on this machine" if here else f"on {holder.host}"
    command = " ".join(holder.command.split())  # on one line
    command = command if len(command) <= _SHOWN else f"{command[:_SHOWN]}…"
    said = f"{path.parent} is written by process {holder.pid} {where} since {holder.since} UTC ({command})"
    if here and not Path(f"/proc/{holder.pid}").exists():
        return f"{said}. That process is gone, and another one holds the lock: `fuser {path}` names it; end that one"
    return f"{said}: wait until it ends, or stop it with `kill {holder.pid}`" + ("" if here else " there")
