"""The proxy over HTTP: what clients of its protocols see, and what is recorded meanwhile."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest
from aiohttp import web

from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import EpisodeStatistics, Session
from slime_swe.rollout.proxy import server, sessions
from slime_swe.rollout.proxy.server import Proxy, open_proxy
from slime_swe.rollout.proxy.sessions import Policy, ProxySession
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.scripted import ScriptedEngine, by_turn, scripted_engine, serve
from tests.rollout.support import END, PARAMS, call

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Fix the bug."}]
CHAT = "/v1/chat/completions"
LOOK = "I look.\n" + call("bash", command="ls") + END


@pytest.fixture(scope="module")
def templates(tokenizer) -> Templates:
    return Templates(tokenizer, "hermes")


@dataclass
class Client:
    """Of one session, by its path and key."""

    http: aiohttp.ClientSession
    proxy: Proxy
    session: ProxySession
    path: str

    async def post(self, body: Any, path: str = CHAT, **headers: str) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = headers or {"Authorization": f"Bearer {self.session.key}"}
        async with self.http.post(f"{self.proxy.url}{self.path}{path}", data=data, headers=headers) as response:
            return response.status, orjson.loads(await response.read())

    async def stream(self, body: Any) -> list[Any]:
        """The events of a streamed reply."""
        headers = {"x-api-key": self.session.key}
        async with self.http.post(f"{self.proxy.url}{self.path}{CHAT}", json=body, headers=headers) as response:
            assert response.status == 200
            lines = (await response.read()).split(b"\n\n")
        return [orjson.loads(line[6:]) for line in lines if line.startswith(b"data: {")]

    async def record(self, method: str = "GET") -> Any:
        headers = {"Authorization": f"Bearer {self.proxy.key}"}
        url = f"{self.proxy.url}/sessions/{self.session.id}"
        async with self.http.request(method, url, headers=headers) as response:
            return orjson.loads(await response.read())


def chat(*more: Any, **changes: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [*MESSAGES, *more], "tools": [TOOL], **changes}


@asynccontextmanager
async def opened(templates: Templates, url: str, **changes: Any) -> AsyncIterator[Client]:
    async with (
        EngineClient(url, attempts=2, pause=0.01) as engine,
        open_proxy() as proxy,
        aiohttp.ClientSession() as http,
    ):
        policy = replace(Policy(engine, templates, "hermes", max_context=4096, max_turns=50), **changes)
        session = ProxySession(policy, Session(), Sampling(PARAMS), EpisodeStatistics())
        async with proxy.serve(session) as path:
            yield Client(http, proxy, session, path)


@pytest.fixture
def client(templates, scripted):
    @asynccontextmanager
    async def start(*turns: str, **changes: Any) -> AsyncIterator[tuple[Client, ScriptedEngine]]:
        async with scripted(*turns) as engine, opened(templates, engine.url, **changes) as client:
            yield client, engine

    return start


async def test_a_conversation_is_recorded_token_by_token(client):
    async with client(LOOK, "Done." + END) as (one, engine):
        status, reply = await one.post(chat())
        said = reply["choices"][0]["message"]
        assert (status, said["content"], reply["choices"][0]["finish_reason"]) == (200, "I look.", "tool_calls")
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a.py"}
        events = await one.stream(chat(said, result, stream=True, stream_options={"include_usage": True}))
        assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]) == "Done."
        assert len({event["id"] for event in events}) == 1
        (segment,) = (await one.record())["segments"]
        second = engine.requests[1]["input_ids"]
        assert segment["tokens"][: len(second)] == second
        assert events[-1]["usage"]["prompt_tokens"] == len(second)
        sampled = [t for t, mask in zip(segment["tokens"], segment["loss_mask"], strict=True) if mask]
        assert engine.tokenizer.decode(sampled) == LOOK + "Done." + END


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_client_sees_one_whole_reply_of_a_turn_that_the_engine_aborted(client, streamed):
    async with client(LOOK) as (one, engine):
        engine.aborts = [0, 3, 4]
        if streamed:
            events = [event["choices"][0] for event in await one.stream(chat(stream=True))]
            text = "".join(event["delta"].get("content") or "" for event in events)
            called = [call for event in events for call in event["delta"].get("tool_calls") or ()]
            finish = events[-1]["finish_reason"]
        else:
            _, reply = await one.post(chat())
            (choice,) = reply["choices"]
            text, called, finish = (
                choice["message"]["content"],
                choice["message"]["tool_calls"],
                choice["finish_reason"],
            )
        assert (text, called[0]["function"]["name"], finish) == ("I look.", "bash", "tool_calls")
        assert (len(engine.requests), one.session.statistics.turns) == (4, 1)
        (segment,) = (await one.record())["segments"]
        sampled = [t for t, mask in zip(segment["tokens"], segment["loss_mask"], strict=True) if mask]
        assert engine.tokenizer.decode(sampled) == LOOK


async def test_a_session_is_nobody_s_without_its_key(client):
    async with client(LOOK) as (one, engine):
        for headers in (
            {"Authorization": "Bearer "},
            {"x-api-key": one.session.key + "x"},
            {"x-api-key": one.proxy.key},
        ):
            status, reported = await one.post(chat(), **headers)
            assert (status, reported["error"]["code"]) == (401, "invalid_api_key")
        url = f"{one.proxy.url}/sessions/{one.session.id}"
        for method in ("GET", "DELETE"):
            async with one.http.request(method, url, headers={"x-api-key": one.session.key}) as response:
                assert response.status == 401  # no agent may read or forget its own record
        assert engine.requests == []


async def test_what_is_not_there_is_404(client):
    async with client(LOOK) as (one, _):
        for url in ("/s/none/v1/chat/completions", f"{one.path}/v1/embeddings", "/", "/s//x", "/%2e%2e/etc"):
            async with one.http.post(one.proxy.url + url, headers={"x-api-key": one.session.key}) as response:
                assert response.status == 404
                assert (await response.json())["error"]["message"]


async def test_a_session_that_has_been_left_is_gone(templates, scripted):
    async with scripted(LOOK) as engine, opened(templates, engine.url) as one:
        other = ProxySession(one.session.policy, Session(), Sampling(PARAMS), EpisodeStatistics())
        async with one.proxy.serve(other) as path:
            assert (await Client(one.http, one.proxy, other, path).post(chat()))[0] == 200
        assert (await Client(one.http, one.proxy, other, path).post(chat()))[0] == 404
        assert (await one.post(chat()))[0] == 200


async def test_it_listens_on_the_loopback_alone_and_on_sockets_that_a_session_brings(templates, scripted):
    async with scripted(LOOK) as engine, opened(templates, engine.url) as one:
        assert one.proxy.url.startswith("http://127.0.0.1:")
        with socket.create_server(("127.0.0.1", 0)) as listening:
            own = ProxySession(one.session.policy, Session(), Sampling(PARAMS), EpisodeStatistics())
            async with one.proxy.serve(own, listening) as path:
                url = f"http://127.0.0.1:{listening.getsockname()[1]}{path}{CHAT}"
                async with one.http.post(url, json=chat(), headers={"x-api-key": own.key}) as response:
                    assert response.status == 200
            async with aiohttp.ClientSession() as anew:
                with pytest.raises(aiohttp.ClientConnectionError):
                    await anew.post(url, json=chat())


async def test_models_and_the_deleted_record(client):
    async with client(LOOK) as (one, _):
        async with one.http.get(
            f"{one.proxy.url}{one.path}/v1/models", headers={"x-api-key": one.session.key}
        ) as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["policy"]
        await one.post(chat())
        assert len((await one.record("DELETE"))["segments"]) == 1
        assert (await one.record())["segments"] == []


async def test_a_client_that_goes_away_ends_the_sampling(templates):
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:  # cancelled: its client has gone
            ended.set()
        return web.Response()

    async with serve(hang) as url, opened(templates, url) as one:
        for stream in (False, True):
            begun.clear(), ended.clear()
            asking = asyncio.ensure_future(one.stream(chat(stream=True)) if stream else one.post(chat()))
            await asyncio.wait_for(begun.wait(), 60)
            asking.cancel()
            await asyncio.wait_for(ended.wait(), 60)
        assert one.session.session.segments() == ()


async def test_a_request_that_got_no_reply_leaves_nothing_behind(templates, tokenizer):
    """Neither an abandoned one nor a refused one makes a leaf, which would take the turns before it."""
    begun = asyncio.Event()
    async with scripted_engine(tokenizer, by_turn(LOOK, "Done." + END)) as engine:

        async def answer(request: web.Request) -> web.StreamResponse:
            if "never" in tokenizer.decode(orjson.loads(await request.read())["input_ids"]):
                begun.set()
                await asyncio.sleep(60)
            return await engine.handle(request)

        async with serve(answer) as url, opened(templates, url) as one:
            _, reply = await one.post(chat())
            said = reply["choices"][0]["message"]
            result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a.py"}
            asking = asyncio.ensure_future(one.post(chat(said, {**result, "content": "never"})))
            await asyncio.wait_for(begun.wait(), 60)
            asking.cancel()
            status, _ = await one.post(chat(said, {**result, "content": "long " * 9000}))
            assert status == 400
            await one.post(chat(said, result))
            (segment,) = (await one.record())["segments"]
            assert sum(segment["loss_mask"]) == sum(len(turn.tokens) for turn in engine.sampled)


async def test_a_stream_that_was_cut_is_sent_again_and_sampled_once(client, monkeypatch):
    async with client(LOOK) as (one, engine):
        whole, gone = server._waiting, asyncio.Event()

        async def slow(*arguments: Any) -> Any:
            answer = await whole(*arguments)
            try:
                await asyncio.sleep(60)  # the reply is there, and the client goes before it is reported
            finally:
                gone.set()
            return answer

        monkeypatch.setattr(server, "_waiting", slow)
        asking = asyncio.ensure_future(one.stream(chat(stream=True)))
        while not one.session._answers:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.wait_for(gone.wait(), 60)
        monkeypatch.undo()
        events = await one.stream(chat(stream=True))
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
        assert len(engine.requests) == 1
        assert len((await one.record())["segments"]) == 1


async def test_an_engine_that_dies_is_the_protocol_s_error_also_within_a_stream(templates):
    async def die(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    async with serve(die) as url, opened(templates, url) as one:
        status, reported = await one.post(chat())
        assert (status, reported["error"]["type"]) == (503, "server_error")
        events = await one.stream(chat(stream=True))
        assert events[-1]["error"]["type"] == "server_error"


async def test_512_sessions_at_once_lose_and_mix_no_token(templates, tokenizer):
    def say(engine: ScriptedEngine, asked: dict[str, Any]) -> str:
        text = tokenizer.decode(asked["input_ids"])
        return f"{text.partition('My number is ')[2][:5]} turn {engine.turns_in(asked['input_ids'])}{END}"

    trained: dict[int, list[int]] = {}
    async with scripted_engine(tokenizer, say) as engine, opened(templates, engine.url) as one:

        async def talk(number: int) -> None:
            session = ProxySession(one.session.policy, Session(), Sampling(PARAMS), EpisodeStatistics())
            async with one.proxy.serve(session) as path:
                client = Client(one.http, one.proxy, session, path)
                messages: list[Any] = [{"role": "user", "content": f"My number is {number:05}"}]
                for _ in range(2):
                    status, reply = await client.post({"model": "m", "messages": messages})
                    assert status == 200, reply
                    messages += [reply["choices"][0]["message"], {"role": "user", "content": "Go on."}]
            (segment,) = session.session.segments()
            pairs = zip(segment.tokens, segment.loss_mask, strict=True)
            trained[number] = [token for token, mask in pairs if mask]

        await asyncio.gather(*(talk(number) for number in range(512)))
        said: dict[int, list[list[int]]] = {}
        for turn in engine.sampled:
            said.setdefault(int(tokenizer.decode(turn.tokens)[:5]), []).append(turn.tokens)
        assert {number: len(turns) for number, turns in said.items()} == dict.fromkeys(range(512), 2)
        assert {number: [token for turn in turns for token in turn] for number, turns in said.items()} == trained


VALUES = [None, True, -1, 10**30, 1.5, "", "x", "\ud800", [], [[]], {}, {"type": "text"}, [{"type": "text", "text": 3}]]


def _mutated(body: Any, chance: random.Random) -> Any:
    """One value somewhere inside is another."""
    if isinstance(body, dict) and body and chance.random() < 0.9:
        key = chance.choice(list(body))
        return {**body, key: _mutated(body[key], chance)}
    if isinstance(body, list) and body and chance.random() < 0.9:
        at = chance.randrange(len(body))
        return [*body[:at], _mutated(body[at], chance), *body[at + 1 :]]
    return chance.choice(VALUES)


def _bodies(count: int) -> list[bytes]:
    chance = random.Random(0)
    asked = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    used = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    sound = [
        chat(
            {"role": "assistant", "content": None, "tool_calls": [asked]},
            {"role": "tool", "tool_call_id": "c"},
            stop=[],
        ),
        {
            "model": "m",
            "max_tokens": 5,
            "messages": [MESSAGES[1], {"role": "assistant", "content": [used]}, MESSAGES[1]],
        },
        {"model": "m", "input": [MESSAGES[1], {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}]},
    ]
    made = [b"", b"null", b"[" * 100_000, b"\xff\xfe", b'{"messages":' + b"[" * 2_000, b'{"a":1e999}', b"\x00" * 10]
    while len(made) < count:
        body = chance.choice(sound)
        for _ in range(chance.randrange(1, 4)):
            body = _mutated(body, chance)
        text = bytearray(json.dumps(body).encode())
        for _ in range(chance.choice([0, 0, 0, 1, 5])):
            text[chance.randrange(len(text))] = chance.randrange(256)
        made.append(bytes(text))
    return made


@pytest.mark.parametrize(
    "count", [1_000, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.extended("malformed requests")])]
)
async def test_malformed_requests_are_refused_with_a_message_and_never_a_500(client, count):
    async with client("Yes." + END, max_turns=1 << 30) as (one, _):
        for number, body in enumerate(_bodies(count)):
            path = list(server.DIALECTS)[number % len(server.DIALECTS)]
            async with one.http.post(
                f"{one.proxy.url}{one.path}{path}", data=body, headers={"x-api-key": one.session.key}
            ) as response:
                assert response.status in (200, 400), (response.status, body)
                if response.status == 400:
                    assert (await response.json())["error"]["message"]


NO_HTTP = [
    b"GARBAGE\r\n\r\n",
    b"\x16\x03\x01\x00\r\n\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"GET / HTTP/1.1\r\nA" + b"b" * 9000 + b": 1\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"%s\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
    b"%s\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"%s\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}xxxy\r\n0\r\n\r\n",
]


async def test_what_is_no_http_is_one_line_of_log(client, caplog):
    async with client(LOOK) as (one, _):
        port = int(one.proxy.url.rpartition(":")[2])
        head = f"POST {one.path}{CHAT} HTTP/1.1\r\nHost: x\r\nx-api-key: {one.session.key}".encode()
        for sent in NO_HTTP:
            caplog.clear()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent.replace(b"%s", head))
            answer = await asyncio.wait_for(reader.read(100), 60)
            assert answer.split()[1] == b"400", (sent, answer)
            writer.close()
            await writer.wait_closed()
            lines = [record for record in caplog.records if record.levelname != "DEBUG"]
            assert len(lines) <= 1
            assert all(line.exc_info is None and "\n" not in line.getMessage() for line in lines)
        assert one.proxy._connections.keys() <= {*one.proxy._runner.server.connections}
        assert (await one.post(chat()))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_left_in_the_buffers_of_a_client_that_closed_is_given_again(client, stream):
    """Sampled once, and recorded once: nobody has seen it but in the second answer."""
    async with client(LOOK, "Done." + END) as (one, engine):
        url = urlsplit(one.proxy.url)
        body = orjson.dumps(chat(stream=stream))
        head = f"POST {one.path}{CHAT} HTTP/1.1\r\nHost: x\r\nx-api-key: {one.session.key}\r\n"
        with socket.create_connection((url.hostname, url.port)) as deaf:  # reads nothing
            deaf.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            while not any(answer.connections for answer in one.session._answers.values()):
                await asyncio.sleep(0.01)
        while one.proxy._connections:
            await asyncio.sleep(0.01)
        status, reply = await one.post(chat())
        assert (status, len(engine.requests)) == (200, 1)
        said = reply["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "a.py"}
        assert (await one.post(chat(said, result)))[0] == 200
        (segment,) = (await one.record())["segments"]
        assert sum(segment["loss_mask"]) == sum(len(turn.tokens) for turn in engine.sampled)


MINIMAL: dict[str, dict[str, Any]] = {
    CHAT: chat(),
    "/v1/responses": {"model": "m", "input": "Fix the bug."},
    "/v1/messages": {"model": "m", "max_tokens": 100, "messages": MESSAGES[1:]},
}


@pytest.mark.parametrize("path", MINIMAL)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept alive", "new connections"])
async def test_the_same_asked_again_by_a_client_that_has_read_is_sampled_anew(client, path, stream, kept):
    """Ten times, as the kernel may have passed an answer's last bytes on by chance."""
    async with client("Yes." + END) as (one, engine):
        connector = aiohttp.TCPConnector(limit=1, force_close=not kept)
        async with aiohttp.ClientSession(connector=connector) as http:
            for _ in range(10):
                headers = {"x-api-key": one.session.key}
                url = f"{one.proxy.url}{one.path}{path}"
                async with http.post(url, json={**MINIMAL[path], "stream": stream}, headers=headers) as response:
                    assert b"Yes" in await response.read()
        assert len(engine.requests) == 10


async def test_a_later_answer_that_is_not_read_leaves_an_earlier_one_read(client):
    """The client reads its first answer and not its second; the first request is repeated by another connection."""
    async with client("word " * 2000 + END, max_context=100_000) as (one, engine):
        url, loop = urlsplit(one.proxy.url), asyncio.get_running_loop()
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # holds less than an answer
            slow.setblocking(False)
            await loop.sock_connect(slow, (url.hostname, url.port))

            async def send(body: Any) -> None:
                data = orjson.dumps(body)
                head = f"POST {one.path}{CHAT} HTTP/1.1\r\nHost: x\r\nx-api-key: {one.session.key}\r\n"
                await loop.sock_sendall(slow, f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)

            await send(chat())
            read = b""
            while not read.endswith(b"}"):
                read += await loop.sock_recv(slow, 1 << 16)
            (connection,) = one.proxy._connections.values()
            await send(chat({"role": "user", "content": "And?"}))
            while not (len(one.session._answers) == 2 and connection.is_unread(connection.received)):
                await asyncio.sleep(0.01)
            assert (await one.post(chat()))[0] == 200
            assert len(engine.requests) == 3


async def test_a_body_that_is_too_large_is_refused(client, monkeypatch):
    monkeypatch.setattr(sessions, "MAX_BODY_BYTES", 1000)
    async with client(LOOK) as (one, _):
        status, reported = await one.post(chat({"role": "user", "content": "x" * 2000}))
        assert (status, reported["error"]["code"]) == (413, "request_too_large")


async def test_a_sandbox_has_a_bounded_number_of_connections(templates, scripted, monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 4)
    async with scripted(LOOK) as engine, opened(templates, engine.url) as one:
        own = ProxySession(one.session.policy, Session(), Sampling(PARAMS), EpisodeStatistics())
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            async with one.proxy.serve(own, listening) as path:
                idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
                await asyncio.sleep(0.1)
                left = [reader for reader, _ in idle if not (reader.at_eof() or reader.exception())]
                assert len(left) == 4
                for _, writer in idle:
                    writer.close()
                await asyncio.sleep(0.1)
                url = f"http://127.0.0.1:{port}{path}{CHAT}"
                async with one.http.post(url, json=chat(), headers={"x-api-key": own.key}) as response:
                    assert response.status == 200


async def test_the_collector_passes_over_what_was_there_until_the_last_proxy_closes():
    assert gc.get_freeze_count() == 0
    async with open_proxy():
        record = {"of a session": []}
        async with open_proxy():
            assert any(each is record for each in gc.get_objects()), "it is collected when it is in a cycle"
        assert gc.get_freeze_count() > 10_000
    assert gc.get_freeze_count() == 0
