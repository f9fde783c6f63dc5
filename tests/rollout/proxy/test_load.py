"""A hostile client of one session: the proxy's memory stays, and no other session waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import tempfile
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

CHAT, COUNT = "/v1/chat/completions", "/v1/messages/count_tokens"
HANG = "this is never answered"
MIB = 1 << 20
# Yardsticks of a `Watch`: of many requests; of one body of 8 MiB, to parse which takes more.
MOST_BUSY, MOST_HELD = 4.0, 8.0
MOST_FOR_A_BODY = 1.0
TRIES = 5
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
    tokenizer, checkpoint, max_context: int, sessions: int = 2, answer: Handler | None = None, *, traced: bool = False
) -> AsyncIterator[Served]:
    """A proxy in a process of its own, which must print no traceback. answer: the engine, instead of one that says yes
    and may hang. traced: its reports have the bytes that it holds.
    """
    options = [checkpoint, str(max_context), str(sessions), *["traced"] * traced]
    engine = ScriptedEngine(tokenizer, by_turn("Yes." + END), remember=False)

    async def agree(request: web.Request) -> web.StreamResponse:
        asked = orjson.loads(await request.read())
        if HANG in tokenizer.decode(asked["input_ids"][-60:]):
            await asyncio.sleep(60)
        return web.json_response(engine.answer(asked))

    with tempfile.TemporaryFile() as errors:
        async with serve(answer or agree) as url, aiohttp.ClientSession() as http:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.rollout.proxy.served", url, *options),
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
HOSTILE: dict[str, Callable[[], bytes]] = {  # made when they are asked for: together they have 150 MB
    "one long word": lambda: filled(b"a"),
    "white space": lambda: filled(b" "),
    "words of one letter": lambda: filled(b"a "),
    "words": lambda: filled(words(0)),
    "emoji": lambda: filled("🙂é".encode()),
    "combining characters": lambda: filled("e\u0301\u0323".encode()),
    "escapes": lambda: filled(rb"\u00e9"),
    "halves of pairs": lambda: filled(rb"\ud83d"),
    "backslashes": lambda: filled(rb"\\", HEAD + rb'"\ud83d'),
    "escapes and half a pair": lambda: filled(rb"\u0041", HEAD + rb'"\ud83d'),
    "control tokens": lambda: filled(b"<|im_end|>"),
    "empty objects": lambda: filled(b"{},", HEAD + b"[", b"{}]" + END_OF_BODY),
    "empty parts": lambda: filled(PARTS, HEAD + b"[", PARTS[:-1] + b"]" + END_OF_BODY),
    "lists of empty parts": lambda: filled(
        b'{"role":"user","content":[' + PARTS * 9_000 + PARTS[:-1] + b"]},",
        b'{"model":"m","messages":[',
        b'{"role":"user","content":"x"}]}',
    ),
    "empty messages": lambda: filled(
        b'{"role":"user","content":""},', b'{"model":"m","messages":[', b'{"role":"user"}]}'
    ),
    "nested": lambda: filled(b"[", b'{"model":', b""),
    "numbers": lambda: filled(b"1,", b'{"model":"m","messages":[],"x":[', b"1]}"),
    "keys": lambda: b'{"model":"m","messages":[],"x":{' + b",".join(b'"%d":0' % n for n in range(700_000)) + b"}}",
    "a long number": lambda: filled(b"9", b'{"model":', b"}"),
    "unclosed thoughts": lambda: filled(
        b"<think>", HEAD + b'"x"},{"role":"assistant","content":"</think>', b'"},{"role":"user","content":"x"}]}'
    ),
    "a tool's schema": lambda: filled(
        b"x", HEAD + b'"x"}],"tools":[{"type":"function","function":{"name":"f","description":"', b'"}}]}'
    ),
    "many tools": lambda: (
        HEAD
        + b'"x"}],"tools":['
        + b",".join(b'{"type":"function","function":{"name":"f%d"}}' % n for n in range(4_000))
        + b"]}"
    ),
    "calls": lambda: (
        HEAD
        + b'"x"},{"role":"assistant","content":null,"tool_calls":['
        + b",".join(b'{"id":"c%d","type":"function","function":{"name":"f","arguments":"{"}}' % n for n in range(4_000))
        + b']},{"role":"user","content":"x"}]}'
    ),
    "arguments": lambda: filled(
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
        ("empty parts", "unclosed thoughts", "halves of pairs", "backslashes", "calls", "arguments"),
        pytest.param(HOSTILE, marks=[pytest.mark.slow, pytest.mark.extended("a hostile session")]),
    ],
    ids=["some", "all"],
)
async def test_no_body_of_8_mib_holds_the_loop(tokenizer, checkpoint, names):
    async with served(tokenizer, checkpoint, 1 << 30) as one:  # with a context that any body fits
        assert (await one.post(0, CHAT, asked("Hello.")))[0] == 200
        for name in names:
            body = HOSTILE[name]()
            for path in (CHAT, COUNT):
                seen = [await _tried(one, path, body)]
                while len(seen) < TRIES and not (seen[-1][0] < MOST_FOR_A_BODY and seen[-1][1] < MOST_HELD):
                    seen.append(await _tried(one, path, body))  # the machine may be busy with something else
                print(name, path, [f"{busy:.1f} {held:.1f}" for busy, held in seen])
                assert min(busy for busy, _ in seen) < MOST_FOR_A_BODY, (name, path, seen)
                assert min(held for _, held in seen) < MOST_HELD, (name, path, seen)
                assert (await one.post(1, CHAT, asked(f"And {name}?")))[0] == 200


async def _tried(one: Served, path: str, body: bytes) -> tuple[float, float]:
    """Yardsticks in which the loop was busy without a break, and in which it had to wait, with nothing known of the
    body.
    """
    await one.forget(0)
    await one.report()
    status, answer = await one.post(0, path, body)
    assert status in (200, 400, 413), answer
    assert orjson.loads(answer)
    seen = await one.report()
    return seen["busy"], seen["held"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "count", [100, pytest.param(4_000, marks=[pytest.mark.slow, pytest.mark.extended("a hostile session")])]
)
async def test_abandoned_and_counting_requests_leave_nothing_and_hold_nobody_up(tokenizer, checkpoint, count):
    async with served(tokenizer, checkpoint, 32_768, traced=True) as one:
        await _pester(one, 1, 20)  # what all sessions share is there before
        before, turns = await one.report(), 0

        async def other() -> None:
            nonlocal turns
            turns += 1
            assert (await one.post(1, CHAT, asked(f"My number is {turns}.")))[0] == 200

        await _pester(one, 0, count, other)
        assert (await one.post(0, CHAT, asked("And yet it works.")))[0] == 200
        after = await one.report()
        print(f"{turns} turns of another session, {before}, {after}")
        assert after["bytes"] - before["bytes"] < MIB // 4 + turns * 8192  # of these requests it is over a MiB
        assert after["objects"] - before["objects"] < 500 + turns * 60
        assert after["busy"] < MOST_BUSY
        assert after["held"] < MOST_HELD


async def _pester(one: Served, session: int, count: int, beside: Callable[[], Awaitable[None]] | None = None) -> None:
    """So many requests of a session, ten at once; `beside` with each ten."""
    chance = random.Random(count)

    async def each(number: int) -> None:
        text = f"{number} " + " ".join(chance.randbytes(4).hex() for _ in range(chance.choice([10, 500, 2_000])))
        if number % 2:
            assert (await one.post(session, COUNT, asked(text)))[0] == 200
        else:
            await _hang_up(one, session, orjson.dumps(asked(f"{text} {HANG}")), wait=number % 4 == 0)

    for start in range(0, count, 10):
        await asyncio.gather(*map(each, range(start, start + 10)), *([beside()] if beside else []))


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
