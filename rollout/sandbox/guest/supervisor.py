"""The fork server's supervisor: waits for the host to ask for a sandbox, and forks one.

It never sees what a sandbox holds or runs: the host talks to each over that sandbox's own socket.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from typing import Any

from .commands import Commands
from .confinement import Confinement, Contained, Plain
from .python_fork import Interpreter
from .server import Server
from .warm_imports import WarmImports
from .wire import Channel

MAX_REQUEST_BYTES = 65536


def main(imports: WarmImports, path: list[str]) -> None:
    """Serve the socket at file descriptor argv[1], as the JSON in argv[2] says, until the host is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # PID 1 of a sandbox must not die of one sent from inside
    control = socket.socket(fileno=int(sys.argv[1]))
    config: dict[str, Any] = json.loads(sys.argv[2])
    interpreter = Interpreter(imports, path)
    confinement: Confinement = Contained(config["outer_id"]) if config["contained"] else Plain(config["root"])
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every page that the forks share
    control.send(b"ready")
    for request, fds in _requests(control):
        if "script" in request:
            interpreter.precompile(request["script"], request["source"].encode())
            continue
        with socket.socket(fileno=fds[0]) as sock:
            if _fork(confinement, Channel(sock)) == 0:
                control.close()
                _become_sandbox(confinement, Channel(sock), request, interpreter)
    confinement.close()


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
        _report(channel, error)
        return -1


def _become_sandbox(
    confinement: Confinement, channel: Channel, limits: dict[str, Any], interpreter: Interpreter
) -> None:
    """In the forked child: never returns."""
    try:
        confinement.enter(limits)
        Server(Commands(limits, confinement.contained, interpreter, channel)).serve(channel)
    except OSError as error:
        _report(channel, error)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        confinement.leave()
        os._exit(0)


def _report(channel: Channel, error: OSError) -> None:
    """Tell the host that there will be no sandbox."""
    with contextlib.suppress(EOFError):
        channel.send({"failed": str(error)})
