"""Processes and signals: which processes are ours, which Ray runs here already, and what stops a run.

A process is ours if its environment holds the mark that its ancestor was started with. That finds daemons too, which
have left their parent, group and session; it misses a process that was started with an emptied environment.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

PROC = Path("/proc")
MARK = "SLIME_SWE_OWNER"
POLL_SECONDS = 0.1
_OF_RAY = frozenset({"gcs_server", "raylet"})


def owned(mark: str) -> list[int]:
    """List the ids of the living processes whose environment holds `mark`, this one left out."""
    wanted = f"{MARK}={mark}".encode()
    return [pid for pid in _processes() if pid != os.getpid() and wanted in _read(pid, "environ") and lives(pid)]


def stop_owned(mark: str, grace: float) -> list[int]:
    """Terminate the processes that hold `mark`, kill after `grace` seconds what is left, and return what outlived
    it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + grace
        for pid in owned(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while owned(mark) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
    return owned(mark)


def running_ray() -> tuple[int, str] | None:
    """Return process id and GCS address of a Ray that this machine is part of; the address is empty where unknown."""
    found = None
    for pid in _processes():
        argv = [word.decode(errors="replace") for word in _read(pid, "cmdline")]
        if argv and Path(argv[0]).name in _OF_RAY:
            given = [word.partition("=")[2] for word in argv if word.startswith("--gcs-address=")]
            found = (pid, given[0]) if given else found or (pid, "")
    return found


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def _read(pid: int, name: str) -> list[bytes]:
    """Read the zero-terminated words of a file of one process; none where it has ended or is another user's."""
    try:
        return (PROC / str(pid) / name).read_bytes().split(b"\0")[:-1]
    except OSError:
        return []


def lives(pid: int) -> bool:
    """Say whether the process is more than an exit code that nobody has asked for yet."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class _AsCtrlC:
    """A handler that has Ctrl-C's own called: Python's, or the one of an event loop that runs.

    Only once, since who ends a job often signals a process twice, and a second Ctrl-C cuts the clean-up short.
    """

    def __init__(self) -> None:
        self.received: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        if len(self.received) > 1:
            return
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


@contextmanager
def interrupting() -> Iterator[list[int]]:
    """Have SIGTERM and SIGHUP do what Ctrl-C does; yield those received so far.

    SIGHUP stays ignored where `nohup` has it so. Ctrl-C itself is heeded also where a shell's background job has it
    ignored. Within another `interrupting`, that one goes on.
    """
    outer = signal.getsignal(signal.SIGTERM)
    if isinstance(outer, _AsCtrlC):
        yield outer.received
        return
    handler = _AsCtrlC()
    ending: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: handler}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ending[signal.SIGHUP] = handler
    with handling(ending):
        yield handler.received


@contextmanager
def deferring() -> Iterator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP inside: for clean-up whose time is bounded."""
    with handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)):
        yield


@contextmanager
def handling(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Handle signals inside as `handlers` say, by the signal's number."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may have handlers, and only it is interrupted
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
