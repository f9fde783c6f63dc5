"""`Channel`: the host's end of a sandbox's socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any

from rollout.sandbox.base import SandboxError
from rollout.sandbox.guest import frames

MAX_JSON_BYTES = 64 << 20
CLOSE_SECONDS = 5.0


class Channel:
    """Requests and answers, one at a time. A cancelled request leaves the channel usable: its answer is skipped."""

    def __init__(self, sock: socket.socket, max_blob_bytes: int) -> None:
        self._socket = sock
        self._max_blob_bytes = max_blob_bytes
        self._lock = asyncio.Lock()
        self._received = bytearray()
        self._abandoned = 0  # answers to come that nobody waits for

    async def call(
        self, request: Mapping[str, Any], blob: bytes = b"", *, seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        """Raises `SandboxError` where the sandbox has died, or does not answer within `seconds`."""
        async with self._lock:
            try:
                async with asyncio.timeout(seconds):
                    return await self._exchange(frames.encode(request, blob))
            except TimeoutError as error:
                self.close()
                raise SandboxError(f"the sandbox did not answer {request['op']!r} within {seconds:.0f} s") from error
            except (OSError, ValueError) as error:  # ValueError: what it sent is not JSON
                self.close()
                raise SandboxError(f"the sandbox died: {error}") from error

    async def finish(self) -> None:
        """Tell the sandbox to end, and wait until it has."""
        loop = asyncio.get_running_loop()
        try:
            self._socket.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(CLOSE_SECONDS), self._lock:  # a call under way sees the sandbox die, and returns
                while await loop.sock_recv(self._socket, 1 << 16):
                    pass
        except (OSError, TimeoutError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        self._socket.close()

    async def _exchange(self, data: bytes) -> tuple[dict[str, Any], bytes]:
        await self._send(data)
        self._abandoned += 1
        try:
            while self._abandoned > 1:
                await self._answer()
                self._abandoned -= 1
            answer = await self._answer()
        except asyncio.CancelledError:
            self._cancel()
            raise
        self._abandoned -= 1
        return answer

    async def _send(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except asyncio.CancelledError:
            self.close()  # half a request can't be taken back
            raise

    def _cancel(self) -> None:
        with contextlib.suppress(OSError):  # it has died, or is being told to
            self._socket.send(frames.encode({"op": "cancel"}))

    async def _answer(self) -> tuple[dict[str, Any], bytes]:
        text_size, blob_size = frames.PREFIX.unpack(await self._peek(frames.PREFIX.size))
        if text_size > MAX_JSON_BYTES or blob_size > self._max_blob_bytes:
            raise ConnectionError(f"it sent {text_size} + {blob_size} bytes at once")
        start, end = frames.PREFIX.size, frames.PREFIX.size + text_size + blob_size
        data = await self._peek(end)
        answer = json.loads(data[start : start + text_size]), bytes(data[start + text_size : end])
        del self._received[:end]
        return answer

    async def _peek(self, size: int) -> bytes:
        """The next bytes, left in the buffer, so that a cancellation loses none."""
        loop = asyncio.get_running_loop()
        while len(self._received) < size:
            piece = await loop.sock_recv(self._socket, 1 << 18)
            if not piece:
                raise ConnectionError("it closed its socket")
            self._received += piece
        return bytes(self._received[:size])
