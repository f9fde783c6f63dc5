"""What the sandboxes of every backend do alike."""

from __future__ import annotations

import abc
import asyncio
import codecs
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Self

from slime_swe.errors import UserError
from slime_swe.patches import bounded_patch
from slime_swe.rollout.sandbox.base import ExecResult
from slime_swe.rollout.sandbox.pool import names_that

GONE = "[the sandbox's shell was killed and does not start again]\n"
KILLED = 137
_PIECE = 1 << 20  # bytes that are decoded at once: no other thread runs meanwhile
_UNKNOWN = b"\0"  # stands for a content that is not known: a patch only names what is not text


class BaseSandbox(abc.ABC):
    """Leaves what it could not enter, and gives out no port unless its backend can."""

    @abc.abstractmethod
    async def _enter(self) -> None:
        """Bring it up, with its files in place. Raises `SandboxError`."""

    @abc.abstractmethod
    async def _leave(self) -> None:
        """Leave nothing of it, whatever there is. Raises `SandboxError`."""

    async def __aenter__(self) -> Self:
        try:
            await self._enter()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._leave()

    async def listen(self, port: int) -> socket.socket:
        allowed = ", ".join(names_that("takes_layers"))
        raise UserError(f"this sandbox gives out no port (asked for {port}): set rollout.sandbox to one of {allowed}")


async def result(code: int | None, seconds: float, head: bytes, tail: bytes, missing: int) -> ExecResult:
    """`missing` bytes of output were dropped between head and tail. A long text is decoded in a thread."""
    short = len(head) + len(tail) <= _PIECE
    output = render(head, tail, missing) if short else await asyncio.to_thread(render, head, tail, missing)
    return ExecResult(code, output, seconds, timed_out=code is None, truncated=missing > 0)


def render(head: bytes, tail: bytes, missing: int) -> str:
    """The text; where `missing` bytes were dropped between head and tail, with a marker that says how many."""
    if not missing:
        return "".join(_decoded(head + tail, "replace"))
    marker = f"\n[truncated: {missing} bytes missing here]\n"
    return "".join((*_decoded(head, "ignore"), marker, *_decoded(tail, "ignore")))


def _decoded(data: bytes, errors: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    for start in range(0, len(data), _PIECE):
        yield decoder.decode(data[start : start + _PIECE], final=start + _PIECE >= len(data))


async def patch(
    files: Mapping[str, bytes], oversized: Iterable[str], deleted: Iterable[str], before: Callable[[str], bytes | None]
) -> str:
    """The patch to `files`, the new and changed ones. `before` gives a file's content at the start, if it was there.

    oversized: changed files of too many bytes, which are only named. It is made in a thread, in bounded time: what a
    command has written decides how long it takes.
    """

    def make() -> str:
        after = {**files, **dict.fromkeys(oversized, _UNKNOWN)}
        found = {path: content for path in (*after, *deleted) if (content := before(path)) is not None}
        return bounded_patch(found, after)

    return await asyncio.to_thread(make)
