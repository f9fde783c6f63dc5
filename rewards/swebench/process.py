"""`HarnessProcess`: a child process that answers JSON lines, each by its id."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any, Self

import orjson

_LINE_BYTES = 1 << 28  # of one answer
_STORY_BYTES = 4_000  # of what the process wrote on stderr, told when it dies
_CLOSE_SECONDS = 30.0  # to remove what it runs
_GREETING = -1


class ProcessDied(RuntimeError):
    """It ended, or was ended because it did not answer; the message is the end of what it wrote on stderr."""


class HarnessProcess:
    """One process. Made by `start`; its first line is its greeting."""

    def __init__(self, process: asyncio.subprocess.Process, story: IO[bytes]) -> None:
        self._process = process
        self._story = story
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {_GREETING: _future()}
        self._writing = asyncio.Lock()
        self._reader = asyncio.create_task(self._read(), name="harness answers")

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Raises `OSError` where the command can't be run."""
        story = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=story,
            env=dict(environment),
            limit=_LINE_BYTES,
            start_new_session=True,  # Ctrl-C in a terminal is ours to handle: it ends when its input does
        )
        return cls(process, story)

    @property
    def alive(self) -> bool:
        return not self._reader.done()

    async def greeting(self, seconds: float) -> dict[str, Any]:
        """Raises `ProcessDied`."""
        return await self._answer(_GREETING, seconds)

    async def ask(self, request: dict[str, Any], seconds: float | None) -> dict[str, Any]:
        """The answer. A process that takes longer is ended, since it answers nobody else meanwhile: `ProcessDied`.

        `seconds` is None where it does not block the process. A cancelled call cancels the request.
        """
        if not self.alive:
            raise ProcessDied(self._tail())
        self._waiting[request["id"]] = _future()
        try:
            await self._send(request)
            return await self._answer(request["id"], seconds)
        except asyncio.CancelledError:
            with contextlib.suppress(ConnectionError):
                await self._send({"op": "cancel", "target": request["id"]})
            raise
        finally:
            self._waiting.pop(request["id"], None)

    async def close(self) -> None:
        """End it by the end of its input, and by force where it does not listen."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _CLOSE_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reader
        self._story.close()

    async def _answer(self, request_id: int, seconds: float | None) -> dict[str, Any]:
        try:
            return await asyncio.wait_for(self._waiting[request_id], seconds)
        except TimeoutError as error:
            self._process.kill()
            raise ProcessDied(f"no answer in {seconds} s") from error

    async def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        async with self._writing:
            self._process.stdin.write(orjson.dumps(request) + b"\n")
            with contextlib.suppress(ConnectionError):  # it died: whoever waits for an answer is told
                await self._process.stdin.drain()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = orjson.loads(line)
            waiting = self._waiting.get(answer.get("id", _GREETING))
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ProcessDied(self._tail()))

    def _tail(self) -> str:
        if self._story.closed:
            return "it was closed"
        size = self._story.seek(0, 2)
        self._story.seek(max(0, size - _STORY_BYTES))
        return self._story.read().decode(errors="replace") or f"exit code {self._process.returncode}"


def _future() -> asyncio.Future[dict[str, Any]]:
    return asyncio.get_running_loop().create_future()
