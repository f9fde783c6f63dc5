"""The sandbox's end of its socket to the host."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from rollout.sandbox.guest import frames


class Channel:
    """Blocking frames over a stream socket. `EOFError` means that the host has left: the sandbox must end."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> tuple[dict[str, Any], bytes]:
        text_size, blob_size = frames.PREFIX.unpack(self._exactly(frames.PREFIX.size))
        return json.loads(self._exactly(text_size)), self._exactly(blob_size)

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        try:
            self._socket.sendall(frames.encode(message, blob))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError("the host has left") from error

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self._socket.recv(min(size - len(data), 1 << 20))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise EOFError("the host has left")
            data += piece
        return bytes(data)
