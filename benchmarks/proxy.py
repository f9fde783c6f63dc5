"""What the recording proxy costs a turn, beside a proxy that only passes on and one that renders everything anew.

Conversations grow with Qwen's real vocabulary; at each size a few turns are taken through each server in turn, to
an engine that answers at once. The overhead is what a turn took beyond posting its tokens to the engine directly.
Figures are medians, in milliseconds. Throughput is of 16 conversations at once.

    python -m benchmarks.proxy [--turns N] [--json] [--check] [--save]
    python -m benchmarks.proxy --turns 1 --scale 0.01 --tokenizer embedded/seed/checkpoint    a quick try

Needs PyPI once, for the vocabulary, which is kept in ~/.cache/slime-swe.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from benchmarks import qwen_vocabulary
from benchmarks.baseline import add_options, conclude

BASELINE = Path(__file__).parent / "baselines" / "proxy.json"
CONTEXTS = {"1k": 1_000, "8k": 8_000, "32k": 32_000, "100k": 100_000}  # tokens
RIVALS = ("bare", "rerender")
AT_ONCE = 16
CONVERSATIONS = 8
RERENDERED = 8  # one of so many turns: it takes a hundred times as long
TURNS_AT_ONCE = 60
GROWTH = "def f(x):\n    return [x + 1, 'a string', {'key': x * 2}]  # a comment\n" * 24  # about 600 tokens
RESULT = "1\t import os\n2\t import sys\n" * 3
TARGETS = {"overhead_p50_ms_at_32k": 2.5, "overhead_100k_to_1k": 1.5}
MIN_REQUESTS = 300.0
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
_START = [{"role": "system", "content": "You repair software."}, {"role": "user", "content": "Fix the bug."}]

Figures = dict[str, float]


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


async def measure(turns: int, vocabulary: Path, scale: float = 1.0) -> Figures:
    """`scale`: of the contexts' sizes, and of the number of conversations."""
    contexts = {name: int(size * scale) for name, size in CONTEXTS.items()}
    conversations = max(1, int(CONVERSATIONS * scale))
    with (
        _server("engine", vocabulary) as engine,
        _server("bare", vocabulary, engine["url"]) as bare,
        _server("rerender", vocabulary, engine["url"]) as rerender,
        _server("ours", vocabulary, engine["url"], AT_ONCE + conversations) as ours,
    ):
        grown, others = ours["sessions"][:conversations], ours["sessions"][conversations:]
        rivals = {"bare": bare["url"], "rerender": rerender["url"]}
        figures = await _by_context(grown, rivals, engine["url"], turns, contexts)
        return figures | await _at_once(others, bare["url"])


async def _by_context(
    sessions: list[Any], rivals: Mapping[str, str], engine: str, turns: int, contexts: Mapping[str, int]
) -> Figures:
    laps: dict[str, dict[str, list[float]]] = {
        name: {server: [] for server in ("ours", "direct", *RIVALS)} for name in CONTEXTS
    }
    async with _client() as http:
        for session in sessions:
            talk = Conversation(http, **session)
            for name, size in contexts.items():
                while (await talk.turn(GROWTH))[1] < size:
                    pass
                for _ in range(turns):
                    await _each(http, talk, rivals, engine, laps[name])
    return _overheads(laps)


async def _each(
    http: aiohttp.ClientSession,
    talk: Conversation,
    rivals: Mapping[str, str],
    engine: str,
    laps: dict[str, list[float]],
) -> None:
    """One turn of ours, and the same by the others."""
    body, tokens, seconds = await talk.turn(RESULT)
    laps["ours"].append(seconds)
    ids = orjson.dumps({"input_ids": [*range(100_000, 100_000 + tokens)], "return_logprob": True})
    laps["direct"].append((await _post(http, f"{engine}/generate", ids))[1])
    laps["bare"].append((await _post(http, rivals["bare"], body))[1])
    if len(laps["ours"]) % RERENDERED == 1:
        laps["rerender"].append((await _post(http, rivals["rerender"], body))[1])


def _overheads(laps: Mapping[str, Mapping[str, list[float]]]) -> Figures:
    figures: Figures = {}
    for name, times in laps.items():
        medians = {server: statistics.median(values) * 1e3 for server, values in times.items()}
        figures[f"direct_ms_at_{name}"] = round(medians["direct"], 3)
        for server, prefix in (("ours", ""), ("bare", "bare_"), ("rerender", "rerender_")):
            figures[f"{prefix}overhead_p50_ms_at_{name}"] = round(medians[server] - medians["direct"], 3)
    figures["overhead_100k_to_1k"] = round(figures["overhead_p50_ms_at_100k"] / figures["overhead_p50_ms_at_1k"], 3)
    return figures


async def _at_once(sessions: list[Any], bare: str) -> Figures:
    """Requests a second, ours and the bare proxy's for the very same requests."""
    async with _client() as http:
        talks = [Conversation(http, **session) for session in sessions]
        bodies: list[list[bytes]] = [[] for _ in talks]

        async def talk(number: int) -> None:
            for _ in range(TURNS_AT_ONCE):
                bodies[number].append((await talks[number].turn(RESULT))[0])

        async def again(number: int) -> None:
            for body in bodies[number]:
                await _post(http, bare, body)

        seconds = []
        for play in (talk, again):
            started = time.perf_counter()
            await asyncio.gather(*map(play, range(len(talks))))
            seconds.append(time.perf_counter() - started)
    count = len(talks) * TURNS_AT_ONCE
    return {
        "requests_per_second_at_16": round(count / seconds[0], 1),
        "bare_requests_per_second_at_16": round(count / seconds[1], 1),
    }


async def _post(http: aiohttp.ClientSession, url: str, body: bytes, key: str = "") -> tuple[bytes, float]:
    started = time.perf_counter()
    async with http.post(url, data=body, headers={"Authorization": f"Bearer {key}"}) as response:
        reply = await response.read()
    assert response.status == 200, reply[:500]
    return reply, time.perf_counter() - started


@asynccontextmanager
async def _client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        yield http


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


def _vocabulary() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slime-swe" / "benchmarks"
    folder = cache / qwen_vocabulary.PACKAGE.replace("==", "-")
    if not (folder / "tokenizer.json").exists():
        print("preparing Qwen's vocabulary: half a minute, once", file=sys.stderr)
        qwen_vocabulary.save(folder)
    return folder


def table(figures: Mapping[str, float]) -> str:
    rows = [f"{'overhead, ms':12} {'ours':>9} {'bare':>9} {'rerender':>9} {'direct':>9}"]
    for name in CONTEXTS:
        values = [figures[f"{prefix}overhead_p50_ms_at_{name}"] for prefix in ("", "bare_", "rerender_")]
        rows.append(f"{name:12} " + " ".join(f"{value:9.2f}" for value in [*values, figures[f"direct_ms_at_{name}"]]))
    rows.append(f"100k to 1k: {figures['overhead_100k_to_1k']:.2f}")
    ours, bare = figures["requests_per_second_at_16"], figures["bare_requests_per_second_at_16"]
    return "\n".join([*rows, f"requests a second, 16 at once: {ours:.0f} (bare {bare:.0f})"])


def slower(figures: Mapping[str, float], baseline: Mapping[str, float]) -> list[str]:
    worse = [
        f"{name} is {figures[name]}, more than {target} (baseline: {baseline[name]})"
        for name, target in TARGETS.items()
        if figures[name] > target
    ]
    if figures["requests_per_second_at_16"] < MIN_REQUESTS:
        worse.append(f"{figures['requests_per_second_at_16']} requests a second are fewer than {MIN_REQUESTS}")
    return worse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12, help="of each conversation at each size of context")
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER", help="in place of Qwen's vocabulary from PyPI")
    parser.add_argument("--scale", type=float, default=1.0, help="of the contexts' sizes, to try the benchmark out")
    add_options(parser)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        figures = asyncio.run(measure(options.turns, options.tokenizer or _vocabulary(), options.scale))
        return conclude(options, figures, table(figures), BASELINE, slower)
    return 130


if __name__ == "__main__":
    sys.exit(main())
