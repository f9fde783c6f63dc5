"""Start and stop `slime_swe.embedded.server` as a process of its own, and tell it about new weights."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import Namespace
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp

from slime_swe.errors import InfrastructureError
from slime_swe.rollout.play import end_all

START_SECONDS = 120.0
SPARE_SLOTS = 32  # contexts that the server keeps beyond those in flight, so that none of these is ever evicted
STOP_SECONDS = 10.0
REQUEST_SECONDS = 120.0
TAIL = 2000  # characters of the server's log in an error message
T = TypeVar("T")


class ServerError(InfrastructureError):
    """The engine's server did not start, died, or refused a request; the message holds the end of its log."""


class ServerProcess:
    """A server on loopback for as long as the context is open; it also dies with this process."""

    def __init__(self, model_dir: Path, log: Path, **options: int) -> None:
        """`options` are the server's own, such as `threads`, `seed`, `slots` and `context_length`."""
        self.log = log
        self.host, self.port = "127.0.0.1", 0
        pairs = {"model": model_dir, "host": self.host, "port": 0, **options}
        argv = [word for name, value in pairs.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        self._command = [
            sys.executable,
            "-m",
            "slime_swe.embedded.server",
            *argv,
            "--die-with-parent",
            str(os.getpid()),
        ]
        self._process: asyncio.subprocess.Process | None = None

    @classmethod
    def of_run(cls, args: Namespace, log: Path) -> Self:
        """Make the server of a run's policy, as the run's arguments want it."""
        return cls(
            Path(args.hf_checkpoint),
            log,
            threads=args.swe_threads,
            seed=args.seed,
            slots=args.sglang_server_concurrency + SPARE_SLOTS,
            context_length=args.rollout_max_context_len,
        )

    async def __aenter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a terminal's Ctrl-C is for the trainer, which then stops the server
            )
        try:
            url = await asyncio.wait_for(self._announcement(), START_SECONDS)
        except TimeoutError as error:
            await self._stop()
            raise ServerError(f"the engine's server did not start in {START_SECONDS:g} s: {self._tail()}") from error
        except BaseException:
            await self._stop()
            raise
        self.host, self.port = str(url.hostname), int(url.port or 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stop()

    def require_alive(self) -> None:
        """Raise `ServerError` where the process has ended."""
        if self._process is not None and self._process.returncode is not None:
            raise ServerError(f"the engine's server ended with code {self._process.returncode}: {self._tail()}")

    async def while_alive(self, playing: Awaitable[T]) -> T:
        """Await what is played by this server. Raises `ServerError` when it ends, which nobody starts again: no outage
        is waited for then."""
        assert self._process is not None, "started"
        tasks = asyncio.ensure_future(playing), asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.require_alive()
            return await tasks[0]
        finally:
            await end_all(tasks)

    async def _announcement(self) -> Any:
        assert self._process is not None and self._process.stdout is not None
        line = await self._process.stdout.readline()
        try:
            return urlsplit(json.loads(line)["url"])
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(f"the engine's server did not start ({line[:200]!r}): {self._tail()}") from error

    async def _stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()

    def _tail(self) -> str:
        text = self.log.read_text(errors="replace").strip() if self.log.exists() else ""
        return f"{self.log} ends with:\n{text[-TAIL:]}" if text else f"{self.log} is empty"


async def update_weights(host: str, port: int, model_dir: Path, version: int) -> None:
    """Have the server read `model_dir` and call it `version`. Raises `ServerError` where it does not."""
    url = f"{url_of(host, port)}/update_weights_from_disk"
    body = {"model_path": str(model_dir), "weight_version": str(version), "flush_cache": True}
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json=body) as response:
            answer = await response.text()
            if response.status != 200 or not json.loads(answer).get("success", False):
                raise ServerError(f"{url} refused the weights of {model_dir} ({response.status}): {answer[:TAIL]}")
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise ServerError(f"{url} did not take the weights of {model_dir}: {error!r}") from error


def url_of(host: str, port: int) -> str:
    """Return the base URL of a server; an IPv6 address goes in brackets (RFC 3986)."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
