"""A hostile client of one session: the proxy's memory stays, and no other session waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest
from aiohttp import web

from slime_swe.rollout.scripted import ScriptedEngine, by_turn, serve
from tests.rollout.support import END
from tests.slowness import slowness

CHAT, COUNT = "/v1/chat/completions", "/v1/messages/count_tokens"
HANG = "this is never answered"
MIB = 1 << 20
MOST_LATE = 0.1 * slowness()  # seconds
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Served:
    process: asyncio.subprocess.Process
    http: aiohttp.ClientSession
    sessions: list[dict[str, str]]
    proxy: str  # its address
    key: str

    async def report(self) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        return orjson.loads(await self.process.stdout.readline())

    async def forget(self, session: int) -> None:
        """Clear the record of a session."""
        url = f"{self.proxy}/sessions/{urlsplit(self.sessions[session]['url']).path.rpartition('/')[2]}"
        async with self.http.delete(url, headers={"x-api-key": self.key}) as response:
            assert response.status == 200, await response.text()

    async def post(self, session: int, path: str, body: Any) -> tuple[int, bytes]:
        one = self.sessions[session]
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        async with self.http.post(one["url"] + path, data=data, headers={"x-api-key": one["key"]}) as response:
            return response.status, await response.read()


@asynccontextmanager
async def served(
    tokenizer, checkpoint, max_context: int, sessions: int = 2, answer: Handler | None = None
) -> AsyncIterator[Served]:
    """A proxy in a process of its own, which must print no traceback. answer: the engine, instead of one that says yes
    and may hang.
    """
    engine = ScriptedEngine(tokenizer, by_turn("Yes." + END), remember=False)

    async def agree(request: web.Request) -> web.StreamResponse:
        asked = orjson.loads(await request.read())
        if HANG in tokenizer.decode(asked["input_ids"][-60:]):
            await asyncio.sleep(60)
        return web.json_response(engine.answer(asked))

    with tempfile.TemporaryFile() as errors:
        async with serve(answer or agree) as url, aiohttp.ClientSession() as http:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.rollout.proxy.served", url, checkpoint, str(max_context), str(sessions)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
            try:
                assert process.stdout is not None
                opened = json.loads(await process.stdout.readline())
                yield Served(process, http, **opened)
            finally:
                process.kill()
                await process.wait()
        errors.seek(0)
        said = errors.read()
        at = said.find(b"Traceback")
        assert at < 0, said[max(0, at - 500) : at + 5_000].decode()


BYTES = 8 << 20
HEAD = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":'
END_OF_BODY = b"}]}"


def filled(piece: bytes, before: bytes = HEAD + b'"', after: bytes = b'"' + END_OF_BODY) -> bytes:
    """8 MiB of a piece, over and over."""
    return before + piece * ((BYTES - len(before) - len(after)) // len(piece)) + after


def words(seed: int) -> bytes:
    chance = random.Random(seed)
    return b" ".join(chance.randbytes(chance.randrange(1, 5)).hex().encode() for _ in range(20_000))


PARTS = b'{"type":"text","text":""},'
HOSTILE = {
    "one long word": filled(b"a"),
    "white space": filled(b" "),
    "words of one letter": filled(b"a "),
    "words": filled(words(0)),
    "emoji": filled("🙂é".encode()),
    "combining characters": filled("e\u0301\u0323".encode()),
    "escapes": filled(rb"\u00e9"),
    "halves of pairs": filled(rb"\ud83d"),
    "control tokens": filled(b"<|im_end|>"),
    "empty objects": filled(b"{},", HEAD + b"[", b"{}]" + END_OF_BODY),
    "empty parts": filled(PARTS, HEAD + b"[", PARTS[:-1] + b"]" + END_OF_BODY),
    "lists of empty parts": filled(
        b'{"role":"user","content":[' + PARTS * 9_000 + PARTS[:-1] + b"]},",
        b'{"model":"m","messages":[',
        b'{"role":"user","content":"x"}]}',
    ),
    "empty messages": filled(b'{"role":"user","content":""},', b'{"model":"m","messages":[', b'{"role":"user"}]}'),
    "nested": filled(b"[", b'{"model":', b""),
    "numbers": filled(b"1,", b'{"model":"m","messages":[],"x":[', b"1]}"),
    "keys": b'{"model":"m","messages":[],"x":{' + b",".join(b'"%d":0' % n for n in range(700_000)) + b"}}",
    "a long number": filled(b"9", b'{"model":', b"}"),
    "unclosed thoughts": filled(
        b"<think>", HEAD + b'"x"},{"role":"assistant","content":"</think>', b'"},{"role":"user","content":"x"}]}'
    ),
    "a tool's schema": filled(
        b"x", HEAD + b'"x"}],"tools":[{"type":"function","function":{"name":"f","description":"', b'"}}]}'
    ),
    "many tools": HEAD
    + b'"x"}],"tools":['
    + b",".join(b'{"type":"function","function":{"name":"f%d"}}' % n for n in range(4_000))
    + b"]}",
    "calls": HEAD
    + b'"x"},{"role":"assistant","content":null,"tool_calls":['
    + b",".join(b'{"id":"c%d","type":"function","function":{"name":"f","arguments":"{"}}' % n for n in range(4_000))
    + b']},{"role":"user","content":"x"}]}',
    "arguments": filled(
        rb"\"\",",
        HEAD
        + b'"x"},{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":'
        + rb'{"name":"f","arguments":"{\"a\":[',
        rb'1]}"}}]},{"role":"user","content":"x"}]}',
    ),
}


def asked(text: str) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": text}]}


@pytest.mark.parametrize(
    "names",
    [
        ("empty parts", "unclosed thoughts", "arguments"),
        pytest.param(HOSTILE, marks=[pytest.mark.slow, pytest.mark.matrix("a hostile session")]),
    ],
    ids=["some", "all"],
)
async def test_no_body_of_8_mib_keeps_other_sessions_waiting(tokenizer, checkpoint, names):
    async with served(tokenizer, checkpoint, 1 << 30) as one:  # with a context that any body fits
        assert (await one.post(0, CHAT, asked("Hello.")))[0] == 200
        for name in names:
            for path in (CHAT, COUNT):
                seen = [await _tried(one, path, HOSTILE[name])]
                while len(seen) < 5 and max(seen[-1]) > MOST_LATE:  # the machine may be busy with something else
                    seen.append(await _tried(one, path, HOSTILE[name]))
                assert min(busy for busy, _ in seen) < 0.05 * slowness(), (name, path)
                assert min(late for _, late in seen) < MOST_LATE, (name, path)


async def _tried(one: Served, path: str, body: bytes) -> tuple[float, float]:
    await one.report()
    status, answer = await one.post(0, path, body)
    assert status in (200, 400, 413), answer
    assert orjson.loads(answer)
    seen = await one.report()
    return seen["busy"], seen["late"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "count", [200, pytest.param(2_000, marks=[pytest.mark.slow, pytest.mark.matrix("a hostile session")])]
)
async def test_abandoned_and_counting_requests_take_no_memory_and_no_time(tokenizer, checkpoint, count):
    async with served(tokenizer, checkpoint, 32_768) as one:
        await _pester(one, 1, 500)  # what all sessions share is there before: caches, threads' memory
        before, waits = (await one.report())["rss"], []

        async def other() -> None:
            number = 0
            while True:
                started = time.perf_counter()
                status, _ = await one.post(1, CHAT, asked(f"My number is {number}."))
                waits.append(time.perf_counter() - started)
                assert status == 200
                number += 1
                await asyncio.sleep(0.05)

        talking = asyncio.ensure_future(other())
        await _pester(one, 0, count)
        talking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await talking
        status, _ = await one.post(0, CHAT, asked("And yet it works."))
        assert status == 200
        after = await one.report()
        turns = len(waits)
        assert after["rss"] - before < 10 * MIB + turns * 8192, (before, after, turns)
        assert after["busy"] < 0.05 * slowness()
        waits.sort()
        print(f"{turns} turns of another session waited {waits[-1]:.3f} s at most")
        assert waits[turns * 99 // 100] < MOST_LATE  # one in a hundred may have waited for the machine


async def _pester(one: Served, session: int, count: int) -> None:
    chance = random.Random(count)

    async def each(number: int) -> None:
        text = f"{number} " + " ".join(chance.randbytes(4).hex() for _ in range(chance.choice([10, 500, 2_000])))
        if number % 2:
            assert (await one.post(session, COUNT, asked(text)))[0] == 200
        else:
            await _hang_up(one, session, orjson.dumps(asked(f"{text} {HANG}")), wait=number % 4 == 0)

    for start in range(0, 2 * count, 10):
        await asyncio.gather(*map(each, range(start, start + 10)))


async def _hang_up(one: Served, session: int, body: bytes, *, wait: bool) -> None:
    """Send a request and go: at once, or when it is being answered."""
    url = urlsplit(one.sessions[session]["url"])
    _, writer = await asyncio.open_connection(url.hostname, url.port)
    head = f"POST {url.path}{CHAT} HTTP/1.1\r\nHost: x\r\nx-api-key: {one.sessions[session]['key']}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    if wait:
        await asyncio.sleep(0.05)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
