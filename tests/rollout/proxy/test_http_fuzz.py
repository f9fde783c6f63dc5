"""Spoilt bodies, spoilt HTTP and spoilt replies of an engine, by the sockets of a real proxy in a process of its own:
each is answered or refused, does not hold the loop, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
import socket
import struct
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from aiohttp import web

from slime_swe.rollout.scripted import ScriptedEngine
from tests.mutated_json import mutated
from tests.rollout.proxy.test_dialect_fuzz import DIALECTS
from tests.rollout.proxy.test_load import CHAT, COUNT, MOST_BUSY, TRIES, Served, served
from tests.rollout.support import END, call
from tests.rollout.test_parsers import JSON, TAGS

PATHS = (CHAT, "/v1/messages", "/v1/responses")
OF_A_SESSION = 1_000
AT_ONCE = 20
REPORTED = 100  # requests, of which there is one report
LEFT = 4_000  # objects that a proxy has besides its sessions' records: of connections, mostly
WAIT = 60.0  # seconds for an answer
PATIENCE = 0.1  # seconds for one to a request that may not be at its end
ENGINE_ERROR = 503


class Policy:
    """What it says, and now and then a reply of the engine that makes no sense."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def say(self, engine: ScriptedEngine, asked: dict[str, Any]) -> str:
        pieces = [*TAGS, *JSON, "Yes.", call("view", path="a"), call("view", path=1)]
        return "".join(self.dice.choices(pieces, k=self.dice.randint(0, 6))).replace("\ud800", "\ufffd") + END

    def reply(self, answer: dict[str, Any]) -> bytes:
        return orjson.dumps(answer) if self.dice.random() < 0.9 else mutated(answer, self.dice)


BOMB = gzip.compress(b" " * (64 << 20))
HEADERS = [
    "Host: x", "Expect: 100-continue", "Expect: x", "Upgrade: websocket", "Connection: close, upgrade", "X : y",
    "X\xe9: \xff", " folded", "X: a\0b", ":", "A" * 300, "Cookie: " + "a=b;" * 900, "X: " + "y" * 9_000,
    "Content-Length: 5", "Authorization: Bearer " + "\xe9" * 9, "Content-Type: multipart/form-data", "x-api-key: y",
]  # fmt: skip
PACKINGS = ["gzip", "deflate", "br", "zstd", "identity", "x"]
FAULTS = ("method", "path", "version", "end", "length", "chunks", "packing", "header", "bytes", "twice")


def spoilt_http(path: str, key: str, body: bytes, dice: random.Random) -> bytes:
    """A request with up to two faults in its head, in how its body is packed, or in what follows it."""
    faults = dice.sample(FAULTS, dice.choice([0, 1, 1, 2]))

    def pick(fault: str, right: Any, *wrong: Any) -> Any:
        return dice.choice(wrong) if fault in faults else right

    headers = ["Host: x", f"x-api-key: {key}", *pick("header", [], *([header] for header in HEADERS))]
    if packing := pick("packing", "", *PACKINGS):
        headers.append(f"Content-Encoding: {packing}")
        body = {"gzip": gzip.compress, "deflate": zlib.compress}.get(packing, bytes)(body)
        body = dice.choice([body, body[: len(body) // 2], body + b"x", BOMB])
    if "chunks" in faults:
        headers.append("Transfer-Encoding: " + dice.choice(["chunked", "chunked", "gzip, chunked", "chunked, x"]))
        size = dice.choice([f"{len(body):x}", f"{len(body):x};a=b", f"{len(body) - 1:x}", "ZZ", "-1", "f" * 40, ""])
        body = size.encode() + b"\r\n" + body + dice.choice([b"\r\n0\r\n\r\n", b"0\r\n\r\n", b"\r\n0\r\na: b\r\n\r\n"])
    else:
        wrong = [len(body) - 1, len(body) + 9, -1, 10**30, "", "0x5", "+5", "1_0", "5, 5"]
        headers.append(f"Content-Length: {pick('length', len(body), *wrong)}")
    version = pick("version", "HTTP/1.1", "HTTP/1.0", "HTTP/9.9", "HTTP/2", "", "HTTP/1.1 x")
    path += pick("path", "", "?a=b", "/%ff%00", "/../../x", "#x", "//", "\\", " ")
    first = f"{pick('method', 'POST', 'GET', 'PUT', 'post', 'PRI', '')} {path} {version}"
    head = pick("end", "\r\n", "\n", "\r").join([first, *headers, "", ""]).encode("latin-1")
    if "bytes" in faults:
        at = dice.randrange(len(head))
        head = head[:at] + dice.randbytes(dice.randint(0, 4)) + head[at + dice.randint(0, 4) :]
    return (head + body) * pick("twice", 1, 2)


async def exchange(url: str, request: bytes) -> bytes:
    """What comes back. A request that is not answered may be one that is not at its end: it is ended then."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(request)
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(reader.read(1 << 16), PATIENCE)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(1 << 16), WAIT)
    except ConnectionError:
        return b""
    finally:
        writer.close()


class Attack:
    """Makes requests and sends them, and counts what was seen."""

    def __init__(self, one: Served, seed: int) -> None:
        self.one, self.dice, self.seen = one, random.Random(seed), Counter[str]()

    def made(self, number: int) -> Callable[[], Awaitable[None]]:
        """What sends the request of this number, as often as it is called."""
        session, dialect = number // OF_A_SESSION, number % 3
        if number % 10 < 9:
            path = PATHS[dialect] if self.dice.random() < 0.9 else COUNT
            return partial(self.body, session, path, mutated(DIALECTS[dialect][1], self.dice))
        body = (
            json.dumps(DIALECTS[dialect][1]).encode()
            if self.dice.random() < 0.5
            else mutated(DIALECTS[dialect][1], self.dice)
        )
        url, key = (self.one.sessions[session][name] for name in ("url", "key"))
        return partial(self.http, url, spoilt_http(urlsplit(url).path + PATHS[dialect], key, body, self.dice))

    async def body(self, session: int, path: str, body: bytes) -> None:
        async with asyncio.timeout(WAIT):
            status, answer = await self.one.post(session, path, body)
        assert status in (200, ENGINE_ERROR) or 400 <= status < 500, (status, body, answer)
        assert status == 200 or orjson.loads(answer)["error"]["message"]
        self.seen[f"body {status}"] += 1

    async def http(self, url: str, request: bytes) -> None:
        answer = await exchange(url, request)
        status = answer[9:12].decode("ascii") if answer else "none"
        assert status != "500", (request, answer)
        self.seen[f"HTTP {status}"] += 1

    async def report(self, sending: Sequence[Callable[[], Awaitable[None]]]) -> dict[str, float]:
        """Of the time in which these were sent, some together."""
        for start in range(0, len(sending), AT_ONCE):
            await asyncio.gather(*(send() for send in sending[start : start + AT_ONCE]))
        return await self.one.report()


async def test_a_compressed_body_is_refused_and_not_unpacked(tokenizer, checkpoint) -> None:
    async with served(tokenizer, checkpoint, 32_768, 1) as one:
        session = one.sessions[0]
        for encoding in ("gzip", "x, GZIP"):
            head = f"POST {urlsplit(session['url']).path}{CHAT} HTTP/1.1\r\nHost: x\r\nx-api-key: {session['key']}\r\n"
            head += f"Content-Encoding: {encoding}\r\nContent-Length: {len(BOMB)}\r\n\r\n"
            await one.report()
            answer = await exchange(session["url"], head.encode() + BOMB)
            assert answer.startswith(b"HTTP/1.1 400 ") and b"Content-Encoding" in answer
            assert (await one.post(0, CHAT, {"model": "m", "messages": [{"role": "user", "content": "x"}]}))[0] == 200
            assert (await one.report())["busy"] < MOST_BUSY


async def test_a_client_that_goes_while_it_is_asked_for_its_body_is_no_error_of_ours(tokenizer, checkpoint) -> None:
    async with served(tokenizer, checkpoint, 32_768, 1) as one:
        address = urlsplit(one.sessions[0]["url"])
        request = f"POST {address.path}{CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
        for _ in range(20):
            with socket.create_connection((address.hostname, address.port)) as client:
                client.sendall(request.encode())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, at once
        assert b"100 Continue" in await exchange(one.sessions[0]["url"], request.encode())
        assert b" 417 " in await exchange(one.sessions[0]["url"], request.replace("100-continue", "x").encode())


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "count", [OF_A_SESSION, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.extended("a hostile session")])]
)
async def test_any_bytes_are_answered_or_refused_and_do_not_hold_the_loop(tokenizer, checkpoint, count) -> None:
    policy = Policy(count)
    engine = ScriptedEngine(tokenizer, policy.say, remember=False)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=policy.reply(engine.answer(orjson.loads(await request.read()))))

    sessions = -(-count // OF_A_SESSION)
    async with served(tokenizer, checkpoint, 1 << 30, sessions, answer) as one:  # else they are soon full
        attack, empty = Attack(one, count), (await one.report())["objects"]
        for session in range(sessions):
            worked = 0.0
            for start in range(session * OF_A_SESSION, (session + 1) * OF_A_SESSION, REPORTED):
                sending = [attack.made(number) for number in range(start, start + REPORTED)]
                report = await attack.report(sending)
                worked += report["worked"]
                if report["busy"] >= MOST_BUSY:
                    await _none_holds_the_loop(attack, sending)
            await one.forget(session)
            forgetting = await one.report()
            held, left = (seen["objects"] - empty for seen in (report, forgetting))
            print(f"{forgetting['busy']:.1f} of {worked:.1f} yardsticks to forget {held - left} objects, {left} left")
            assert forgetting["busy"] < worked / 8
            assert left < LEFT < held
        print(attack.seen)
    assert attack.seen["body 200"] > count // 20
    assert attack.seen["body 400"] > count // 20
    assert attack.seen["HTTP 200"] > count // 1000


async def _none_holds_the_loop(attack: Attack, sending: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Many requests at once may fall into one turn of the loop: each alone, in one of five tries, must not hold it."""
    for send in sending:
        busy = [(await attack.report([send]))["busy"]]
        while busy[-1] >= MOST_BUSY and len(busy) < TRIES:
            busy.append((await attack.report([send]))["busy"])
        assert min(busy) < MOST_BUSY, (busy, send)
