"""A proxy in a process of its own, for tests that look at its memory and at how long its event loop is busy.

Prints its sessions as JSON. For each line that it reads it prints what a `Watch` has seen since the last one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack

from tests.rollout.support import PARAMS
from tests.rollout.watch import watched

from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import EpisodeStatistics
from slime_swe.rollout.proxy.server import open_proxy
from slime_swe.rollout.proxy.sessions import Policy, ProxySession
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.session import Session


async def main(engine: str, checkpoint: str, max_context: int, count: int) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(EngineClient(engine))
        templates = Templates(load_tokenizer(checkpoint), "hermes")
        policy = Policy(client, templates, "hermes", max_context=max_context, max_turns=1 << 30)
        proxy = await stack.enter_async_context(open_proxy())
        opened = []
        for _ in range(count):
            session = ProxySession(policy, Session(), Sampling(PARAMS), EpisodeStatistics())
            path = await stack.enter_async_context(proxy.serve(session))
            opened.append({"url": f"{proxy.url}{path}", "key": session.key})
        print(json.dumps({"sessions": opened, "proxy": proxy.url, "key": proxy.key}), flush=True)
        watch = await stack.enter_async_context(watched())
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while await lines.readline():
            print(json.dumps(vars(watch)), flush=True)
            watch.reset()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
