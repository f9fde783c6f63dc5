"""Real SGLang on this machine's CPU, as a process of its own, for tests that compare with it."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from slime_swe.launch.slime_cpu import sglang_cpu

ROOT = Path(__file__).parents[1]
START_SECONDS = 400.0
ANSWER_SECONDS = 120.0
_HTTP = build_opener(ProxyHandler({}))
_POOL = ThreadPoolExecutor(16)


def interpreter() -> str | None:
    """This one where it has SGLang and what it serves with, or that of `.venv-slime`."""
    if find_spec("sglang") and find_spec("gguf"):
        return sys.executable
    own = ROOT / ".venv-slime" / "bin" / "python"
    return str(own) if own.exists() else None


if find_spec("psutil") and find_spec("torchvision"):  # its CUDA build, which Transformers imports
    from slime_swe.launch.slime_cpu.shims import declare_torchvision_operators

    declare_torchvision_operators()

needed = pytest.mark.skipif(interpreter() is None, reason="needs SGLang: the environment of engine=slime_cpu")


class Server:
    """One that speaks SGLang's protocol."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, body: object = None, method: str = "POST") -> tuple[int, object]:
        """Status and answer, JSON where it is some. body: bytes, or what JSON is made of."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data=data, headers={"Content-Type": "application/json"}, method=method)
        try:
            with _HTTP.open(request, timeout=ANSWER_SECONDS) as response:
                return response.status, _parsed(response.read().decode())
        except HTTPError as error:
            return error.code, _parsed(error.read().decode())

    def get(self, path: str) -> tuple[int, object]:
        return self.ask(path, method="GET")

    def generate(self, ids: list[int], *, rid: str | None = None, **sampling: object) -> tuple[int, object]:
        """Greedy and to the end, unless `sampling` says otherwise."""
        sampling = {"temperature": 0.0, "ignore_eos": True, "max_new_tokens": 8, **sampling}
        body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True}
        return self.ask("/generate", body | ({"rid": rid} if rid else {}))

    def start(self, *args: object, **options: object) -> Future[tuple[int, object]]:
        """The same, on the way."""
        return _POOL.submit(self.generate, *args, **options)  # type: ignore[arg-type]

    @property
    def running(self) -> int:
        _, said = self.get("/v1/loads")
        return said["loads"][0]["num_running_reqs"]  # type: ignore[index]


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def environment() -> dict[str, str]:
    """Of a process that imports SGLang."""
    return os.environ | sglang_cpu.environment(os.environ.get("PYTHONPATH", "")) | {"OMP_NUM_THREADS": "1"}


@contextmanager
def serving(checkpoint: Path, log: Path, **more: object) -> Iterator[Server]:
    """SGLang of this checkpoint; `more` are arguments of its own."""
    port = _free_port()
    command = [interpreter(), *sglang_cpu.command(checkpoint, port, **more)[1:]]
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=environment(), stdout=output, stderr=output, start_new_session=True)
    server = Server(f"http://127.0.0.1:{port}")
    try:
        _wait(server, process, log)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    """SGLang takes the one 10000 above it as well."""
    while True:
        port = random.SystemRandom().randrange(20000, 30000)
        with closing(socket.socket()) as found, suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):  # not there yet, or ended in the midst of an answer
            if server.get("/health_generate")[0] == 200:
                return
        time.sleep(0.5)
    raise AssertionError(f"SGLang did not start:\n{log.read_text(errors='replace')[-3000:]}")
