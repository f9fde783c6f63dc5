"""A proxy in a process of its own, for tests that look at what it holds and at how long its event loop is busy.

Prints its sessions as JSON. For each line that it reads it prints a report, of the time since the last one:
busy, held: as a `Watch` has them, in yardsticks. worked: yardsticks that the process has worked in all.
objects: how many there are that were not there at the start; bytes: that they take, known with the argument `traced`
alone. Caches of a bounded size are emptied before.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
import tracemalloc
from functools import lru_cache
from typing import Any

from benchmarks.proxy_servers import open_sessions
from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.proxy.sessions import ProxySession
from tests.effort import yardstick
from tests.rollout.support import PARAMS
from tests.rollout.watch import Watch, watched

SETTLED = 0.01  # seconds: the watch has seen what was done before
Cache = type(lru_cache(int))


async def report(watch: Watch, began: float, caches: list[Any]) -> dict[str, float]:
    await asyncio.sleep(SETTLED)
    seen = {"busy": watch.busy, "held": watch.held, "worked": time.process_time() - began}
    unit = yardstick()
    for cache in caches:
        cache.cache_clear()
    gc.collect()
    return {name: seconds / unit for name, seconds in seen.items()} | {
        "objects": len(gc.get_objects()),
        "bytes": tracemalloc.get_traced_memory()[0],
    }


async def main(engine: str, checkpoint: str, max_context: int, count: int, *, traced: bool) -> None:
    tokenizer = load_tokenizer(checkpoint)
    if traced:
        tracemalloc.start()
    async with open_sessions(engine, tokenizer, count, PARAMS, max_context=max_context) as (proxy, opened):
        gc.unfreeze()
        caches = [one for one in gc.get_objects() if isinstance(one, Cache)]
        sessions = [one for one in gc.get_objects() if type(one) is ProxySession]
        gc.freeze()
        for session in sessions:
            session.forget()  # their first records: what is frozen is never collected where it is in a cycle
        async with watched() as watch:
            print(json.dumps({"sessions": opened, "proxy": proxy.url, "key": proxy.key}), flush=True)
            lines = asyncio.StreamReader()
            loop = asyncio.get_running_loop()
            await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
            began = time.process_time()
            while await lines.readline():
                seen = await report(watch, began, caches)
                await asyncio.sleep(SETTLED)
                watch.reset()
                began = time.process_time()
                print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    engine, checkpoint, max_context, count, *options = sys.argv[1:]
    asyncio.run(main(engine, checkpoint, int(max_context), int(count), traced="traced" in options))
