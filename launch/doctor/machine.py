"""`Machine`: how checks ask this machine. Whatever it answers, a question ends after a while."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import IO

from slime_swe.errors import InfrastructureError

MAX_BYTES = 1 << 20  # kept of an answer: nothing that is asked for here says more
DYING_SECONDS = 1.0  # for a killed command to go; one that the kernel holds does not, and is left to it


class MachineError(InfrastructureError):
    """A program is missing, fails, or doesn't answer; the message says which and what it printed."""


@dataclass(frozen=True)
class Machine:
    """seconds: for any command to answer."""

    seconds: float = 15.0

    def has(self, program: str) -> bool:
        return shutil.which(program) is not None

    def ask(self, *command: str) -> str:
        """What the command prints, errors included. Raises `MachineError` unless it exits with 0 in time."""
        asked = " ".join(command)
        if not self.has(command[0]):
            raise MachineError(f"there is no program {command[0]!r} on PATH")
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that what it started dies with it
            )
        except OSError as error:
            raise MachineError(f"`{asked}` can't be run: {error.strerror}") from error
        assert process.stdout is not None, asked
        with process.stdout as pipe:
            output = _read(pipe, time.monotonic() + self.seconds)
            code = _end(process, waits=output is not None)
        if output is None:
            raise MachineError(f"`{asked}` has not answered within {self.seconds:g} s and {MAX_BYTES >> 20} MiB")
        if code != 0:
            raise MachineError(f"`{asked}` failed (exit code {code}): {_brief(output)}")
        return output


def _read(pipe: IO[bytes], deadline: float) -> str | None:
    """All that is printed; None where that takes too long, or is more than anybody reads."""
    chunks: list[bytes] = []
    while sum(map(len, chunks)) < MAX_BYTES:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return None
        chunk = os.read(pipe.fileno(), 1 << 16)
        if not chunk:
            return b"".join(chunks).decode("utf-8", "replace")
        chunks.append(chunk)
    return None


def _end(process: subprocess.Popen[bytes], *, waits: bool) -> int | None:
    """The exit code; a command that is not waited for is killed, with all that it started."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if waits:
            return process.wait(DYING_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(DYING_SECONDS)
    return process.returncode


def _brief(output: str) -> str:
    """The output on one line, its end where it is long."""
    text = " ".join(output.split())
    return text if len(text) <= 300 else f"… {text[-300:]}"
