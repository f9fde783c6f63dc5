"""Ray's workers, forked from a process that has imported PyTorch, Megatron-LM and SLiME already.

    python -m slime_swe.launch.slime_cpu.fork_server FILE MODULE,... MODULE,...     # FILE: number of a listening socket

These imports take a worker 15 seconds of a processor, and a run with eight ranks starts a dozen workers. Ray starts
each by `forked.py`, which sends its arguments, environment and files here.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from wrapt import register_post_import_hook

from slime_swe.launch.slime_cpu.forked import address

_CLIENT = Path(__file__).with_name("forked.py")
_FILES = 3  # standard input, output and error
_PATIENCE = 10.0  # seconds that a client has to ask, in which no other is served
Asked = dict[str, Any]


@contextmanager
def fork_server(first: Sequence[str], with_ray: Sequence[str] = ()) -> Iterator[str]:
    """Start a server that imports modules, `first` at once; it ends with this process. Yields Ray's `py_executable`.

    Ray reads its variables when it is imported. So the server imports `with_ray` once a worker is asked for, in the
    environment that Ray has given to this.
    """
    with tempfile.TemporaryDirectory(prefix="slime-swe-fork-") as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address(folder))
        listening.listen(128)
        argv = (sys.executable, "-m", "slime_swe.launch.slime_cpu.fork_server", str(listening.fileno()))
        # In a session of its own, as Ray's workers are; the end of its standard input ends it.
        with subprocess.Popen(
            [*argv, ",".join(first), ",".join(with_ray)],
            stdin=subprocess.PIPE,
            pass_fds=[listening.fileno()],
            start_new_session=True,
        ) as process:
            listening.close()  # else clients would wait for a server that has died
            try:
                yield shlex.join((sys.executable, "-IS", str(_CLIENT), folder))
            finally:
                process.kill()


def serve(listening: socket.socket, modules: Sequence[str]) -> Asked | None:
    """Fork a worker for each client, with these modules. Returns in a worker, with what it is asked; and in the server,
    with None, when its standard input has ended.
    """
    workers: dict[int, tuple[int, socket.socket]] = {}  # by process: its pidfd, its client
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ, None)
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return None
                if key.fileobj is listening:
                    client, _ = listening.accept()
                    try:
                        asked = _received(client)
                    except OSError:
                        client.close()
                        continue
                    _import(modules, asked["environment"])
                    process = os.fork()
                    if not process:
                        return asked
                    workers[process] = os.pidfd_open(process), client
                    selector.register(workers[process][0], selectors.EVENT_READ, process)
                    selector.register(client, selectors.EVENT_READ, process)
                    _close(asked["files"])
                elif key.data in workers:
                    _end(selector, key.data, *workers.pop(key.data))


def _end(selector: selectors.BaseSelector, process: int, pidfd: int, client: socket.socket) -> None:
    """Kill and forget a worker that has ended, or whose client has, which Ray may kill."""
    os.kill(process, signal.SIGKILL)  # nobody has waited for it, so the number is still its own
    os.waitpid(process, 0)
    for file in (pidfd, client):
        selector.unregister(file)
    os.close(pidfd)
    client.close()


def _received(client: socket.socket) -> Asked:
    """Receive what a client asks for. Raises `OSError` where it ends before it has asked, as one does that Ray kills
    while it starts, or takes longer than `_PATIENCE`."""
    client.settimeout(_PATIENCE)
    size, files, *_ = socket.recv_fds(client, 4, _FILES)
    asked, rest = bytearray(), int.from_bytes(size, "big")
    try:
        while not asked or rest > len(asked):
            part = client.recv(rest - len(asked))
            if not part:
                raise ConnectionResetError("the client has ended")
            asked += part
    except OSError:
        _close(files)
        raise
    return {**json.loads(asked), "files": files}


def become(asked: Asked) -> None:
    """Run a worker's program in this process, in a group of its own: Ray ends all of a worker's group."""
    os.setpgid(0, 0)
    for place, file in enumerate(asked["files"]):
        os.dup2(file, place)
    _close(asked["files"])
    _set(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = asked["argv"]
    code = compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec")
    # Processes that the worker spawns import its `__main__` again. This module stays it, as it is light: each rank
    # spawns one for Megatron's checkpoints.
    exec(code, {"__name__": "__main__", "__file__": sys.argv[0]})


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def _import(modules: Sequence[str], environment: Mapping[str, str]) -> None:
    if set(modules) <= sys.modules.keys():
        return
    _set(environment)
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # else a collection in a worker copies the pages that it shares with the others


def _set(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def set_up() -> None:
    """Have PyTorch and SLiME bring the shims along, not before they are imported. Ray calls this first in each worker.

    Some of SLiME's actors need neither (one a GPU that only says its number, a lock), and PyTorch takes seconds to
    import.
    """
    register_post_import_hook(_after_torch, "torch")
    register_post_import_hook(_after_slime, "slime")  # a package without code: none of its modules is there yet


def _after_torch(_: ModuleType) -> None:
    from slime_swe.launch.slime_cpu.shims import without_cuda

    without_cuda()


def _after_slime(_: ModuleType) -> None:
    importlib.import_module("torch")  # the shims import it, and the other hook needs all of them
    from slime_swe.launch.slime_cpu.shims import install

    install()


def main(file: str, first: str, with_ray: str) -> None:
    set_up()
    _import(first.split(","), dict(os.environ))
    with socket.socket(fileno=int(file)) as listening:
        asked = serve(listening, [module for module in with_ray.split(",") if module])
    if asked:
        become(asked)


if __name__ == "__main__":
    main(*sys.argv[1:])
