"""Runs code that may do anything, in a process of its own: what it gives comes back as data, and so does its failure.

The process has its own standard output, so that nothing that the code prints is taken for a result. It is ended at a
time limit, together with the processes that it started and did not take out of its session.

Not covered: code can find this process's descriptors and write there, or end this process. Whoever reads the output
must expect that, and `rewards.arc` does.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from .forms import Grid, grid_of

PROGRAM = "solution.py"
TIMEOUT = "Timeout"  # the type of an error that is the time limit
PATIENCE = 4  # seconds on the clock for one of CPU time
MEMORY = 512 << 20  # bytes of address space
MOST_REPORTED = 1 << 18  # bytes
MOST_PRINTED = 4_000  # bytes that are kept
_TICK = 0.05  # seconds between two looks at a process that has closed its pipes
_MESSAGE = 200  # characters


class Outcome(NamedTuple):
    """The outcome of work in another process. value: what the work gave; None where there is an error. error: `type`,
    `message` and `line` (of the program, or 0). printed: the beginning of what it printed."""

    value: Any
    error: dict[str, Any] | None
    printed: str


def apart(work: Callable[[], Any], seconds: float, most_seconds: float = 60.0) -> Outcome:
    """Do the work in another process. What it gives must have a form in JSON.

    seconds: of CPU time. On the clock it may take `PATIENCE` times as long, since the machine may be busy, but not
    more than `most_seconds`.
    """
    sys.stdout.flush()
    reported, printed = os.pipe(), os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        for number in (*reported, *printed):
            os.close(number)
        return Outcome(None, _error("OSError", f"no further process can be had: {error.strerror}"), "")
    if child == 0:
        _work(work, reported[1], printed[1], seconds)
    os.close(reported[1])
    os.close(printed[1])
    end = time.monotonic() + min(PATIENCE * seconds, most_seconds)
    texts, status = _wait(child, reported[0], printed[0], end)
    return Outcome(*_read(texts[0], status), texts[1].decode("utf-8", "replace"))


def function_of(source: str, name: str) -> Callable[..., Any]:
    """Run the program and return its function. Raises what the program raises."""
    module = sys.modules["solution"] = ModuleType("solution")  # where dataclasses look for it
    exec(compile(source, PROGRAM, "exec"), module.__dict__)
    found: Callable[..., Any] = getattr(module, name)
    return found


def called(source: str, name: str, grid: Grid) -> Grid:
    """Return the grid that the program makes of a grid. Raises what it raises, and `ValueError` for what is no grid."""
    return grid_of(function_of(source, name)(grid))


def described(error: dict[str, Any]) -> str:
    """Describe the error in one line, as the end of a traceback does."""
    line = error["line"]
    return f"{error['type']}: {error['message']}" + (f" (line {line})" if line else "")


def _work(work: Callable[[], Any], report: int, output: int, seconds: float) -> NoReturn:
    """Do the work in the new process, which ends here."""
    try:
        os.setsid()
        for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
            os.dup2(source, number)
        _limit(resource.RLIMIT_AS, MEMORY)
        _limit(resource.RLIMIT_CPU, ceil(seconds), grace=1)
        _limit(resource.RLIMIT_FSIZE, 0)
        _limit(resource.RLIMIT_CORE, 0)
        try:
            text = json.dumps({"value": work()})
        except BaseException as error:  # also SystemExit: it is the program's
            text = json.dumps({"error": error_of(error)})
        sys.stdout.flush()
        content = text.encode("ascii")
        while content:
            content = content[os.write(report, content) :]
    finally:
        os._exit(0)


def _limit(what: int, most: int, grace: int = 0) -> None:
    """Limit a resource. grace: how much more it takes until a process that goes on is ended."""
    hard = resource.getrlimit(what)[1]
    soft, end = (value if hard == resource.RLIM_INFINITY else min(value, hard) for value in (most, most + grace))
    resource.setrlimit(what, (soft, end))


def error_of(error: BaseException) -> dict[str, Any]:
    try:
        message = str(error)[:_MESSAGE]
    except BaseException:  # the program's own exception may raise in turn
        message = ""
    lines = [at for frame, at in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == PROGRAM]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 0
    return _error(type(error).__name__, message, line or 0)


def _error(kind: str, message: str, line: int = 0) -> dict[str, Any]:
    return {"type": kind, "message": message, "line": line}


def _wait(child: int, reported: int, printed: int, deadline: float) -> tuple[tuple[bytes, bytes], int | None]:
    """Return what came through both pipes, and the status with which the process ended; None where it was stopped."""
    texts = {reported: bytearray(), printed: bytearray()}
    most = {reported: MOST_REPORTED, printed: MOST_PRINTED}
    left = set(texts)
    for number in texts:
        os.set_blocking(number, False)
    ended, status = 0, None
    while not ended and time.monotonic() < deadline and len(texts[reported]) < MOST_REPORTED:
        ended, code = os.waitpid(child, os.WNOHANG)
        status = code if ended else None
        wait = 0.0 if ended else min(_TICK, max(0.0, deadline - time.monotonic()))
        for number in select.select([*left], [], [], wait)[0]:
            left -= _drain(number, texts[number], most[number])
        if not left and not ended:
            time.sleep(_TICK / 10)
    _kill(child, reap=not ended)
    for number in texts:
        os.close(number)
    return (bytes(texts[reported]), bytes(texts[printed])), status


def _drain(number: int, text: bytearray, most: int) -> set[int]:
    """Read what is there, and keep its beginning. Return a set: the descriptor where nothing more will come."""
    try:
        while len(text) <= most:
            part = os.read(number, 1 << 16)
            if not part:
                return {number}
            text += part[: max(0, most - len(text))]
            if len(part) < 1 << 16 or len(text) >= most:
                break
    except BlockingIOError:
        pass
    return set()


def _kill(child: int, *, reap: bool) -> None:
    for kill in (os.killpg, os.kill) if reap else (os.killpg,):
        with suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    if reap:
        os.waitpid(child, 0)


def _read(text: bytes, status: int | None) -> tuple[Any, dict[str, Any] | None]:
    try:
        report = json.loads(text)
        return report.get("value"), report.get("error")
    except (ValueError, RecursionError, AttributeError):
        pass
    if status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return None, _error(TIMEOUT, "it took too long, or gave too much")
    how = f"by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"with code {os.WEXITSTATUS(status)}"
    return None, _error("Exit", f"the process ended {how} and gave nothing")
