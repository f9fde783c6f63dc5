"""`CappedOutput`: the beginning and the end of what a command printed, in bounded memory."""

from __future__ import annotations


class CappedOutput:
    """Keeps the first and the last half of `limit` bytes; `missing` counts those between, which are dropped."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._tail_limit + 65536:  # trimmed rarely, so that a flood costs no quadratic copying
            self._trim()

    def parts(self) -> tuple[bytes, bytes]:
        """The head and the tail; `missing` bytes lie between them."""
        self._trim()
        return bytes(self._head), bytes(self._tail)

    @property
    def missing(self) -> int:
        return max(0, self.total - self._head_limit - self._tail_limit)

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
