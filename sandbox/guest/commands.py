"""`Commands`: runs one command at a time in a sandbox, to its end, its time limit or its cancellation.

A persistent bash, `Shell`, runs each in a forked sub-shell: about 1 ms a command instead of a new program. A simple
command of Python runs in a fork of the interpreter (`python_fork`).
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import kernel, processes, python_fork
from .wire import CappedOutput, Channel

_READ_BYTES = 65536
_NUL_EXIT_CODE = 126
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


class Outcome(NamedTuple):
    """A command's outcome. `exit_code` is None where it was killed, at its time limit or by the host's cancellation."""

    exit_code: int | None
    seconds: float
    output: CappedOutput


class Commands:
    """Runs commands, and keeps the shell between them. After each command nothing that it started is alive."""

    def __init__(
        self, limits: Mapping[str, Any], contained: bool, interpreter: python_fork.Interpreter, channel: Channel
    ) -> None:
        self._limits = limits
        self._contained = contained
        self._interpreter = interpreter
        self._channel = channel
        self._shell: Shell | None = None

    def run(self, command: str, seconds: float) -> Outcome:
        """Run a command, and kill it after `seconds` or a cancellation. Raises `EOFError` where the host leaves."""
        started = time.monotonic()
        output = CappedOutput(int(self._limits["output_bytes"]))
        code = self._dispatch(command, started + seconds, output)
        return Outcome(code, time.monotonic() - started, output)

    def close(self) -> None:
        """Kill everything."""
        processes.kill_all(self._contained)

    def _dispatch(self, command: str, deadline: float, output: CappedOutput) -> int | None:
        if "\0" in command:
            output.add(b"a command can't hold a NUL byte\n")
            return _NUL_EXIT_CODE
        simple = python_fork.parse(command)
        if simple is not None and self._interpreter.accepts(simple):
            return self._run_python(simple, deadline, output)
        return self._run_shell(command.encode("utf-8", "replace"), deadline, output)

    def _run_python(self, command: python_fork.PythonCommand, deadline: float, output: CappedOutput) -> int | None:
        output_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become_python(command, write_fd)
        os.close(write_fd)
        os.set_blocking(output_fd, False)
        ended = os.pidfd_open(pid)
        try:
            code: int | None = None
            if self._watch(output_fd, ended, deadline, output):
                code = _exit_code(os.waitpid(pid, 0)[1])
            self._sweep(killed=code is None)
            _drain(output_fd, output)
            return code
        finally:
            os.close(ended)
            os.close(output_fd)

    def _become_python(self, command: python_fork.PythonCommand, output_fd: int) -> None:
        try:
            os.setsid()
            os.dup2(output_fd, 1)
            os.dup2(output_fd, 2)
            os.closerange(3, 65536)
            kernel.set_dumpable(True)
            processes.set_limits(self._limits, self._contained)
            self._interpreter.run(command)
        finally:
            os._exit(127)

    def _run_shell(self, command: bytes, deadline: float, output: CappedOutput) -> int | None:
        shell = self._start(command)
        code: int | None = None
        killed = True
        if self._watch(shell.output_fd, shell.status_fd, deadline, output):
            code = shell.exit_code()
            killed = code is None
            if code is None:  # the command killed the shell
                code = _exit_code(os.waitpid(shell.pid, 0)[1])
        self._sweep(killed)
        _drain(shell.output_fd, output)
        if self._shell is None:
            shell.close()
        return code

    def _start(self, command: bytes) -> Shell:
        shell = self._shell or Shell(self._limits, self._contained)
        try:
            shell.start(command)
        except BrokenPipeError:  # it died since the last command
            shell.close()
            shell = Shell(self._limits, self._contained)
            shell.start(command)
        self._shell = shell
        return shell

    def _watch(self, output_fd: int, ended_fd: int, deadline: float, output: CappedOutput) -> bool:
        """Collect output: return True when the command has ended, False when it is to be killed."""
        poller = select.poll()
        for fd in (output_fd, ended_fd, self._channel.fileno()):
            poller.register(fd, select.POLLIN)
        while (remaining := deadline - time.monotonic()) > 0:
            ready = [fd for fd, _ in poller.poll(remaining * 1000)]
            if output_fd in ready:
                data = os.read(output_fd, _READ_BYTES)
                output.add(data)
                if not data:
                    poller.unregister(output_fd)
            if ended_fd in ready:
                return True
            if self._channel.fileno() in ready:
                self._channel.receive()  # nothing but a cancellation comes during a command
                return False
        return False

    def _sweep(self, killed: bool) -> None:
        """Leave nothing of the command alive. The shell goes with the rest where there is anything to kill."""
        processes.reap()
        shells = [self._shell.pid] if self._shell else []
        if killed or [pid for pid in processes.descendants(os.getpid()) if pid not in shells]:
            processes.kill_all(self._contained)
            self._shell = None


def _drain(output_fd: int, output: CappedOutput) -> None:
    """Read what a command that is dead by now had left in the pipe."""
    try:
        while data := os.read(output_fd, _READ_BYTES):
            output.add(data)
    except BlockingIOError:
        pass


def _exit_code(wait_status: int) -> int:
    """Return the exit code that a shell reports of a process that ended with this wait status."""
    code = os.waitstatus_to_exitcode(wait_status)
    return 128 - code if code < 0 else code


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
        """Return the status that `status_fd` has; None where bash died instead, or is killed here for a forged one."""
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
