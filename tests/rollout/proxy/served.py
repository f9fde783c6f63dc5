"""A proxy in a process of its own, for tests that look at its memory and at how long its event loop is busy.

Prints its sessions as JSON. For each line that it reads it prints what has happened since the last one: `rss`, bytes;
`busy`, the longest time in seconds that the loop's thread worked without a break; `late`, the longest time by which the
loop was late.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from benchmarks.proxy_servers import open_sessions
from tests.rollout.support import PARAMS

from slime_swe.rollout.chat.tokenizer import load_tokenizer

PAGE = 4096
TICK = 0.002


class Watch:
    """What the loop's thread does between two of its own ticks."""

    def __init__(self) -> None:
        self.busy = self.late = 0.0

    async def watch(self) -> None:
        while True:
            begun, worked = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK)
            self.busy = max(self.busy, time.thread_time() - worked)
            self.late = max(self.late, time.perf_counter() - begun - TICK)

    def report(self) -> str:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        line = json.dumps({"rss": pages * PAGE, "busy": self.busy, "late": self.late})
        self.busy = self.late = 0.0
        return line


async def main(engine: str, checkpoint: str, max_context: int, count: int) -> None:
    tokenizer = load_tokenizer(checkpoint)
    async with open_sessions(engine, tokenizer, count, PARAMS, max_context=max_context) as (proxy, opened):
        print(json.dumps({"sessions": opened, "proxy": proxy.url, "key": proxy.key}), flush=True)
        watch, lines = Watch(), asyncio.StreamReader()
        watching = asyncio.ensure_future(watch.watch())
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while await lines.readline():
            print(watch.report(), flush=True)
        watching.cancel()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
