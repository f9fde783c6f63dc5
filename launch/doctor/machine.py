"""`Machine`: how checks ask this machine. Whatever it answers, a question ends after a while."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass

from slime_swe.errors import InfrastructureError

MAX_BYTES = 1 << 20  # of an answer: nothing that is asked for here says more


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
        with tempfile.TemporaryFile() as output:  # a pipe would be held open by what the command leaves behind
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_BYTES, MAX_BYTES)),
                )
            except OSError as error:
                raise MachineError(f"`{asked}` can't be run: {error.strerror}") from error
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.seconds)
            code = process.poll()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it started
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        if code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that the kernel holds is left to it
                process.wait(1.0)
            raise MachineError(f"`{asked}` has not answered within {self.seconds:g} s")
        if code != 0:
            raise MachineError(f"`{asked}` failed (exit code {code}): {' '.join(text.split())[-300:]}")
        return text
