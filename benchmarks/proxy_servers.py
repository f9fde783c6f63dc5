"""The servers that `benchmarks.proxy` times, each a process of its own. Prints its address, and then serves.

engine: answers every request at once with the same sampled turn. bare: passes requests on to it. rerender: renders and
tokenises the whole history each time, as peers do. ours: the recording proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import EpisodeStatistics, Session
from slime_swe.rollout.proxy.server import Proxy, open_proxy
from slime_swe.rollout.proxy.sessions import Policy, ProxySession
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.scripted import ScriptedEngine, by_turn

TURN = 'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "sed -n 1,40p a.py"}}\n</tool_call><|im_end|>'
UNBOUNDED = 1 << 30
PARAMS: dict[str, Any] = {"max_new_tokens": 4096, "temperature": 1.0, "top_p": 1.0}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def engine(tokenizer: Any) -> None:
    stops = [tokenizer.convert_tokens_to_ids("<|im_end|>")]
    scripted = ScriptedEngine(tokenizer, by_turn(TURN), log_prob=-0.5)
    reply = orjson.dumps(scripted.answer({"input_ids": [], "sampling_params": PARAMS | {"stop_token_ids": stops}}))

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=reply, content_type="application/json")

    await _serve(answer)


async def passing_on(engine_url: str, change: Callable[[bytes], bytes]) -> None:
    async with aiohttp.ClientSession() as http:

        async def answer(request: web.Request) -> web.Response:
            async with http.post(f"{engine_url}/generate", data=change(await request.read())) as response:
                return web.Response(body=await response.read(), content_type="application/json")

        await _serve(answer)


def rendered(tokenizer: Any, body: bytes) -> bytes:
    """The engine's request for a client's, all of it rendered and tokenised."""
    asked = orjson.loads(body)
    messages = [_plain(message) for message in asked["messages"]]
    text = tokenizer.apply_chat_template(messages, tools=asked["tools"], add_generation_prompt=True, tokenize=False)
    ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    return orjson.dumps({"input_ids": ids, "sampling_params": PARAMS, "return_logprob": True})


async def ours(engine_url: str, tokenizer: Any, sessions: int) -> None:
    async with open_sessions(engine_url, tokenizer, sessions, PARAMS) as (_, opened):
        chat = [session | {"url": f"{session['url']}/v1/chat/completions"} for session in opened]
        print(json.dumps({"sessions": chat}), flush=True)
        await asyncio.Event().wait()


@asynccontextmanager
async def open_sessions(
    engine_url: str, tokenizer: Any, count: int, params: dict[str, Any], *, max_context: int = UNBOUNDED
) -> AsyncIterator[tuple[Proxy, list[dict[str, str]]]]:
    """A proxy, and the address and key of each of its sessions."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(EngineClient(engine_url))
        policy = Policy(client, Templates(tokenizer, "hermes"), "hermes", max_context=max_context, max_turns=UNBOUNDED)
        proxy = await stack.enter_async_context(open_proxy())
        opened = []
        for _ in range(count):
            session = ProxySession(policy, Session(), Sampling(params), EpisodeStatistics())
            path = await stack.enter_async_context(proxy.serve(session))
            opened.append({"url": f"{proxy.url}{path}", "key": session.key})
        yield proxy, opened


async def _serve(handler: Handler) -> None:
    app = web.Application(client_max_size=UNBOUNDED)
    app.router.add_post("/{path:.*}", handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(json.dumps({"url": f"http://127.0.0.1:{runner.addresses[0][1]}"}), flush=True)
    await asyncio.Event().wait()


def _plain(message: dict[str, Any]) -> dict[str, str]:
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls", ())]
    text = "\n".join(filter(None, [message["content"], *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]))
    return {"role": message["role"], "content": text}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("engine", "bare", "rerender", "ours"))
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--engine", default="")
    parser.add_argument("--sessions", type=int, default=1)
    options = parser.parse_args()
    tokenizer = None if options.role == "bare" else load_tokenizer(options.tokenizer)
    match options.role:
        case "engine":
            asyncio.run(engine(tokenizer))
        case "bare":
            asyncio.run(passing_on(options.engine, lambda body: body))
        case "rerender":
            asyncio.run(passing_on(options.engine, partial(rendered, tokenizer)))
        case "ours":
            asyncio.run(ours(options.engine, tokenizer, options.sessions))


if __name__ == "__main__":
    main()
