"""A proxy in a process of its own, for tests that look at its memory and at how long its event loop is busy.

Prints its sessions as JSON. For each line that it reads it prints what a `Watch` has seen since the last one.
"""

from __future__ import annotations

import asyncio
import json
import sys

from benchmarks.proxy_servers import open_sessions
from slime_swe.rollout.chat.tokenizer import load_tokenizer
from tests.rollout.support import PARAMS
from tests.rollout.watch import watched


async def main(engine: str, checkpoint: str, max_context: int, count: int) -> None:
    tokenizer = load_tokenizer(checkpoint)
    async with (
        open_sessions(engine, tokenizer, count, PARAMS, max_context=max_context) as (proxy, opened),
        watched() as watch,
    ):
        print(json.dumps({"sessions": opened, "proxy": proxy.url, "key": proxy.key}), flush=True)
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while await lines.readline():
            print(json.dumps(vars(watch)), flush=True)
            watch.reset()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
