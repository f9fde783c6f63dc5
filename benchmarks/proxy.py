"""What the recording proxy costs a turn, beside a proxy that only passes on and one that renders everything anew.

Conversations grow with Qwen's real vocabulary; at each size a few turns are taken through each server in turn, to
an engine that answers at once. The overhead is what a turn took beyond posting its tokens to the engine directly.
Figures are medians, in milliseconds. Throughput is of 16 conversations at once.

    python -m benchmarks.proxy [--turns N] [--json] [--check] [--save]
    python -m benchmarks.proxy --turns 1 --scale 0.01 --tokenizer embedded/seed/checkpoint    a quick try

Needs PyPI once, for the vocabulary, which is kept in ~/.cache/slime-swe.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from benchmarks import qwen_vocabulary
from benchmarks.command import Figures, run

CONTEXTS = {"1k": 1_000, "8k": 8_000, "32k": 32_000, "100k": 100_000}  # tokens
AT_ONCE = 16
CONVERSATIONS = 8
RERENDERED = 8  # one of so many turns: it takes a hundred times as long
TURNS_AT_ONCE = 60
GROWTH = "def f(x):\n    return [x + 1, 'a string', {'key': x * 2}]  # a comment\n" * 24  # about 600 tokens
RESULT = "1\t import os\n2\t import sys\n" * 3
LIMITS = {"overhead_p50_ms_at_32k": 2.5, "overhead_100k_to_1k": 1.5, "request_ms_at_16": 3.3}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Run a command in the repository. " * 12,
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
    for name in ("bash", "view", "edit", "find")
]
Laps = dict[str, list[float]]  # seconds, by server
_START = [{"role": "system", "content": "You repair software."}, {"role": "user", "content": "Fix the bug."}]


@dataclass
class Conversation:
    """A client that only appends, and the server's address."""

    http: aiohttp.ClientSession
    url: str
    key: str
    messages: list[Any] = field(default_factory=lambda: list(_START))

    async def turn(self, result: str) -> tuple[bytes, int, float]:
        """The request's body, the prompt's tokens, and the seconds that it took."""
        body = orjson.dumps({"model": "m", "messages": self.messages, "tools": _TOOLS})
        reply, seconds = await _post(self.http, self.url, body, self.key)
        answer = orjson.loads(reply)
        said = answer["choices"][0]["message"]
        answers = [{"role": "tool", "tool_call_id": call["id"], "content": result} for call in said["tool_calls"]]
        self.messages += [said, *answers]
        return body, answer["usage"]["prompt_tokens"], seconds


async def measure(turns: int, tokenizer: str, scale: float) -> Figures:
    """turns: of each conversation at each size of context. tokenizer: a folder, in place of Qwen's vocabulary. scale:
    of the contexts' sizes and of the number of conversations."""
    vocabulary = Path(tokenizer) if tokenizer else qwen_vocabulary.folder()
    conversations = max(1, int(CONVERSATIONS * scale))
    with (
        _server("engine", vocabulary) as engine,
        _server("bare", vocabulary, engine["url"]) as bare,
        _server("rerender", vocabulary, engine["url"]) as rerender,
        _server("ours", vocabulary, engine["url"], AT_ONCE + conversations) as ours,
    ):
        urls = {"direct": f"{engine['url']}/generate", "bare": bare["url"], "rerender": rerender["url"]}
        laps: dict[str, Laps] = {name: defaultdict(list) for name in CONTEXTS}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            talks = [Conversation(http, **session) for session in ours["sessions"]]
            for talk in talks[:conversations]:
                for name, size in CONTEXTS.items():
                    while (await talk.turn(GROWTH))[1] < size * scale:
                        pass
                    for _ in range(turns):
                        await _each(talk, urls, laps[name])
            return _overheads(laps) | await _at_once(talks[conversations:], bare["url"])


async def _each(talk: Conversation, urls: Mapping[str, str], laps: Laps) -> None:
    """One turn of ours, and the same by the others."""
    body, tokens, seconds = await talk.turn(RESULT)
    laps["ours"].append(seconds)
    ids = orjson.dumps({"input_ids": [*range(100_000, 100_000 + tokens)], "return_logprob": True})
    for server, url in urls.items():
        if server != "rerender" or len(laps["ours"]) % RERENDERED == 1:
            laps[server].append((await _post(talk.http, url, ids if server == "direct" else body))[1])


def _overheads(laps: Mapping[str, Laps]) -> Figures:
    figures: Figures = {}
    for name, times in laps.items():
        medians = {server: statistics.median(values) * 1e3 for server, values in times.items()}
        figures[f"direct_ms_at_{name}"] = medians["direct"]
        for server, prefix in (("ours", ""), ("bare", "bare_"), ("rerender", "rerender_")):
            figures[f"{prefix}overhead_p50_ms_at_{name}"] = medians[server] - medians["direct"]
    figures["overhead_100k_to_1k"] = figures["overhead_p50_ms_at_100k"] / figures["overhead_p50_ms_at_1k"]
    return figures


async def _at_once(talks: list[Conversation], bare: str) -> Figures:
    """Milliseconds a request, ours and the bare proxy's for the very same requests."""
    bodies: list[list[bytes]] = [[] for _ in talks]

    async def talk(number: int) -> None:
        for _ in range(TURNS_AT_ONCE):
            bodies[number].append((await talks[number].turn(RESULT))[0])

    async def again(number: int) -> None:
        for body in bodies[number]:
            await _post(talks[number].http, bare, body)

    each = []
    for play in (talk, again):
        started = time.perf_counter()
        await asyncio.gather(*map(play, range(len(talks))))
        each.append(1e3 * (time.perf_counter() - started) / (len(talks) * TURNS_AT_ONCE))
    return {"request_ms_at_16": each[0], "bare_request_ms_at_16": each[1]}


async def _post(http: aiohttp.ClientSession, url: str, body: bytes, key: str = "") -> tuple[bytes, float]:
    started = time.perf_counter()
    async with http.post(url, data=body, headers={"Authorization": f"Bearer {key}"}) as response:
        reply = await response.read()
    assert response.status == 200, reply[:500]
    return reply, time.perf_counter() - started


@contextmanager
def _server(role: str, vocabulary: Path, engine: str = "", sessions: int = 1) -> Iterator[Any]:
    command = [sys.executable, "-m", "benchmarks.proxy_servers", role, "--tokenizer", str(vocabulary)]
    command += ["--engine", engine, "--sessions", str(sessions)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(run(__doc__, "proxy", measure, limits=LIMITS, turns=12, tokenizer="", scale=1.0))
