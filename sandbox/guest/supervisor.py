"""The fork server's supervisor: waits until the host asks for a sandbox, and forks one, whose first process is a
`Server`.

It never sees what a sandbox holds or runs: the host talks to each over that sandbox's own socket. No sandbox can reach
it; so where it answers and a sandbox does not, the sandbox has been ended from inside.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from . import files, processes, wire
from .commands import Commands
from .confinement import Confinement, Contained, Plain
from .python_fork import Interpreter
from .warm_imports import WarmImports
from .wire import Channel

MAX_REQUEST_BYTES = 65536

Answer = tuple[dict[str, Any], bytes]


class Server:
    """A sandbox's first process: it answers one request at a time, until the host is gone.

    Those are `start`, `exec`, `read`, `write` and `changes`. An `OSError` is an answer, not a failure.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._initial: dict[str, bytes] = {}

    def serve(self, channel: Channel) -> None:
        """Answer requests until the host has closed its end; nothing else is running then."""
        try:
            while True:
                request, blob = channel.receive()
                if request["op"] != "cancel":  # one that comes too late has nothing to cancel
                    channel.send(*self._answer(request, blob))
        except EOFError:
            pass
        finally:
            self._commands.close()

    def _answer(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        try:
            answer: Answer = getattr(self, f"_{request['op']}")(request, blob)
            return answer
        except OSError as error:
            return {"errno": error.errno, "error": error.strerror or str(error), "path": str(error.filename)}, b""
        except UnicodeEncodeError as error:
            return {"errno": 2, "error": f"not a path: {error.reason}", "path": ""}, b""

    def _exec(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        outcome = self._commands.run(request["command"], request["seconds"])
        head, tail = outcome.output.parts()
        answer = {"exit_code": outcome.exit_code, "seconds": outcome.seconds}
        return {**answer, "head": len(head), "missing": outcome.output.missing}, head + tail

    def _start(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        """Write the files that the sandbox starts with, and keep them for `changes` to compare with."""
        self._initial = wire.unpack_files(request["files"], blob)
        files.write(self._initial)
        return {}, b""

    def _read(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        return {}, files.read(request["path"])

    def _write(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        files.write(wire.unpack_files(request["files"], blob))
        return {}, b""

    def _changes(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        changes = files.changes(self._initial)
        index, contents = wire.pack_files(changes.files.items())
        return {"files": index, "oversized": changes.oversized, "deleted": changes.deleted}, contents


def main(imports: WarmImports, path: list[str]) -> None:
    """Serve the socket at file descriptor argv[1], as the JSON in argv[2] says, until the host is gone."""
    _start_afresh()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # PID 1 of a sandbox must not die of one sent from inside
    control = socket.socket(fileno=int(sys.argv[1]))
    config: dict[str, Any] = json.loads(sys.argv[2])
    interpreter = Interpreter(imports, path)
    confinement: Confinement = (
        Contained(config["users"], config["devices"]) if config["contained"] else Plain(config["root"])
    )
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every page that the forks share
    control.send(b"ready" if confinement.separate else b"shared")
    sandboxes: dict[int, int] = {}  # pid of the first process -> the host's number for the sandbox
    for request, fds in _requests(control):
        for pid in processes.reap():
            sandboxes.pop(pid, None)
            confinement.ended(pid)
        if "script" in request:
            interpreter.precompile(request["script"], request["source"].encode())
            continue
        with socket.socket(fileno=fds[0]) as sock:
            if "kill" in request:
                _kill([pid for pid, number in sandboxes.items() if number == request["kill"]])
                _answer(Channel(sock), {})
                continue
            pid = _fork(confinement, Channel(sock))
            if pid == 0:
                control.close()
                _become_sandbox(confinement, Channel(sock), request["limits"], interpreter)
            sandboxes[pid] = request["number"]
    confinement.close()


def _kill(first: list[int]) -> None:
    """End a sandbox, if it has not ended. Its pid is its own until it is reaped."""
    for pid in first:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _start_afresh() -> None:
    """Reset what forks would inherit of how the host was started: signals, but for Python's own, and the umask."""
    python_s = {number: signal.getsignal(number) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    processes.reset_signals()
    for number, handler in python_s.items():
        signal.signal(number, handler)
    os.umask(0o022)


def _requests(control: socket.socket) -> Iterator[tuple[dict[str, Any], list[int]]]:
    while True:
        data, fds, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 1)
        if not data:
            return
        yield json.loads(data), fds


def _fork(confinement: Confinement, channel: Channel) -> int:
    try:
        return confinement.fork()
    except OSError as error:
        _answer(channel, {"failed": str(error)})
        return -1


def _become_sandbox(
    confinement: Confinement, channel: Channel, limits: dict[str, Any], interpreter: Interpreter
) -> None:
    """Be the sandbox's first process. Runs in the forked child and never returns."""
    try:
        confinement.enter(limits)
        Server(Commands(limits, confinement.contained, interpreter, channel)).serve(channel)
    except OSError as error:
        _answer(channel, {"failed": str(error)})
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        confinement.leave()
        os._exit(0)


def _answer(channel: Channel, message: dict[str, Any]) -> None:
    with contextlib.suppress(EOFError):
        channel.send(message)
