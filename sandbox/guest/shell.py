"""A persistent bash that runs each command in a forked sub-shell: ~1 ms a command instead of a new program."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Mapping
from typing import Any

from . import kernel, processes

_COMMAND_FD, _STATUS_FD = 8, 9  # bash can redirect single digits only
_TOKEN_BYTES = 8
# The sub-shell closes bash's own pipes and forgets its variables before it runs the command. It can still reach them
# through /proc, so each status comes with a token that the command does not know.
_LOOP = """
while IFS= read -r -d '' __token <&8 && IFS= read -r -d '' __command <&8; do
( eval "unset __token __command; $__command" ) </dev/null 2>&1 8<&- 9>&-
printf '%s %d\\n' "$__token" $? >&9
done
"""


class Shell:
    """One bash process. Its commands print to `output_fd`; `status_fd` gives one line for each that has ended."""

    def __init__(self, limits: Mapping[str, Any], contained: bool) -> None:
        command_read, self._command_fd = os.pipe()
        self.output_fd, output_write = os.pipe()
        self.status_fd, status_write = os.pipe()
        self._token = b""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _become_bash(command_read, output_write, status_write, limits, contained)
            finally:
                os._exit(127)
        for fd in (command_read, output_write, status_write):
            os.close(fd)
        os.set_blocking(self.output_fd, False)

    def start(self, command: bytes) -> None:
        """Have bash run a command (no NUL bytes). Raises `BrokenPipeError` where bash has died."""
        self._token = os.urandom(_TOKEN_BYTES).hex().encode()
        data = memoryview(self._token + b"\0" + command + b"\0")
        while data:
            data = data[os.write(self._command_fd, data) :]

    def exit_code(self) -> int | None:
        """The status that `status_fd` has ready; None where bash died instead, or is killed here for a forged one."""
        line = os.read(self.status_fd, 64)  # bash writes a line at once
        token, _, status = line.partition(b" ")
        if token == self._token and status[:-1].isdigit():
            return int(status)
        if line:
            os.kill(self.pid, signal.SIGKILL)
        return None

    def close(self) -> None:
        for fd in (self._command_fd, self.output_fd, self.status_fd):
            os.close(fd)


def _become_bash(commands: int, output: int, status: int, limits: Mapping[str, Any], contained: bool) -> None:
    os.setsid()
    # First out of the way, so that no target is another one's source.
    commands, output, status = (fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (commands, output, status))
    null = os.open("/dev/null", os.O_WRONLY)
    for fd, target in ((output, 1), (null, 2), (commands, _COMMAND_FD), (status, _STATUS_FD)):
        os.dup2(fd, target)
    os.closerange(3, _COMMAND_FD)
    os.closerange(_STATUS_FD + 1, 65536)
    processes.reset_signals()
    kernel.set_dumpable(True)
    processes.set_limits(limits, contained)
    environment = {name: value for name, value in os.environ.items() if name not in ("SHLVL", "_")}  # bash sets them
    os.execve("/bin/bash", ["bash", "--noprofile", "--norc", "-c", _LOOP], environment)
