"""The wire format between host and sandbox: a JSON object and a blob of bytes, each preceded by its length."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable, Mapping
from typing import Any

PREFIX = struct.Struct(">IQ")  # bytes of JSON, bytes of blob


def encode(message: Mapping[str, Any], blob: bytes = b"") -> bytes:
    text = json.dumps(message, separators=(",", ":")).encode("ascii")
    return PREFIX.pack(len(text), len(blob)) + text + blob


def pack_files(files: Iterable[tuple[str, bytes]]) -> tuple[list[tuple[str, int]], bytes]:
    """Return an index of (path, size) for the JSON, and the contents, end to end, for the blob."""
    pairs = list(files)
    return [(path, len(content)) for path, content in pairs], b"".join(content for _, content in pairs)


def unpack_files(index: Iterable[tuple[str, int]], blob: bytes) -> dict[str, bytes]:
    """Undo `pack_files`. Raises `ValueError` where the sizes don't add up to the blob."""
    files: dict[str, bytes] = {}
    start = 0
    for path, size in index:
        files[path] = blob[start : start + size]
        start += size
    if start != len(blob):
        raise ValueError(f"the index names {start} bytes, the blob has {len(blob)}")
    return files


class Channel:
    """Sends and receives frames over a stream socket, and blocks. `EOFError`: the host has left, a sandbox must end."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> tuple[dict[str, Any], bytes]:
        text_size, blob_size = PREFIX.unpack(self._exactly(PREFIX.size))
        return json.loads(self._exactly(text_size)), self._exactly(blob_size)

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        try:
            self._socket.sendall(encode(message, blob))
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


class CappedOutput:
    """Keeps the first and the last half of `limit` bytes; `missing` counts those between, which are dropped."""

    def __init__(self, limit: int) -> None:
        self.head_limit = limit - limit // 2
        self.tail_limit = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self.tail_limit + 65536:  # trimmed rarely, so that a flood costs no quadratic copying
            self._trim()

    def parts(self) -> tuple[bytes, bytes]:
        """Return the head and the tail; `missing` bytes lie between them."""
        self._trim()
        return bytes(self._head), bytes(self._tail)

    @property
    def missing(self) -> int:
        return max(0, self.total - self.head_limit - self.tail_limit)

    def _trim(self) -> None:
        excess = len(self._tail) - self.tail_limit
        if excess > 0:
            del self._tail[:excess]
