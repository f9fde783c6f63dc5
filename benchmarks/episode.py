"""The agent loop's own cost per turn: everything but the model and the sandbox.

A scripted engine on the loopback says prepared tokens at once, and a sandbox that lives in a dictionary answers the
tool calls, so what remains is the loop: parsing, tokenising, templates, the session, HTTP on both ends. `http` is the
bare round trip of the same requests and replies, of which the server's half is the benchmark's own. Times are of the
processor, since nothing here waits: so a busy machine measures the same.

    python -m benchmarks.episode [--rounds N] [--json] [--check] [--save]
"""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.command import Figures, run
from slime_swe.data_sources.task import Image, Task, TestsOracle, Workspace
from slime_swe.rollout.agents.native import NativeAgent, opening
from slime_swe.rollout.chat.template import ChatTemplate
from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.play import run_episode
from slime_swe.rollout.scripted import Say, scripted_engine
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.rollout.tools import TOOLS
from slime_swe.sandbox.base import ExecResult, Limits, SandboxError

CHECKPOINT = Path(__file__).parents[1] / "embedded" / "seed" / "checkpoint"
RATIOS = {"turn_ms_1": "http_ms_1", "turn_ms_64": "http_ms_64"}
WIDTHS = ((1, 16), (64, 128))  # (episodes at once, episodes in all)
SOURCE = "def add(first, second):\n    return first - second\n" * 4
TURNS: tuple[tuple[str, dict[str, str]], ...] = (
    ("view", {"path": "module.py"}),
    ("bash", {"command": "ls"}),
    ("str_replace", {"path": "module.py", "old_str": "nowhere", "new_str": "x"}),
    ("run_tests", {}),
    ("view", {"path": "module.py"}),
    ("submit", {}),
)
TASK = Task(
    "t",
    "Some tests fail. Fix module.py.",
    Workspace({"module.py": SOURCE}),
    TestsOracle(("t.py::t",), (), (), "python3 runtests.py", ""),
    "benchmark",
    "none",
)
SETTINGS = RolloutSettings(
    engine_host="",
    engine_port=0,
    checkpoint=str(CHECKPOINT),
    max_context=8192,
    agent="native",
    tool_format="hermes",
    system_prompt="You repair code.",
    max_turns=len(TURNS),
    time_budget=60.0,
    sandbox="local",
    sandbox_concurrency=64,
    run_dir=Path("."),
    seed=0,
    deterministic=True,
)


class DictSandbox:
    """Files in a dictionary; every command says the same."""

    def __init__(self, files: Mapping[str, str | bytes]) -> None:
        self._files = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def exec(self, command: str, *, timeout: float | None = None) -> ExecResult:
        return ExecResult(1, "FAILED test_module.py::test_add - AssertionError: -1 != 3\n1 failed, 4 passed\n", 0.0)

    async def read_file(self, path: str) -> bytes:
        return self._files[path]

    async def write_file(self, path: str, content: bytes) -> None:
        self._files[path] = content

    async def snapshot(self) -> Mapping[str, bytes]:
        return dict(self._files)

    async def diff(self) -> str:
        return ""

    async def listen(self, port: int) -> socket.socket:
        raise SandboxError("there is no network, and no process, behind these files")


class DictSandboxes:
    def open(
        self,
        files: Mapping[str, str | bytes],
        limits: Limits | None = None,
        image: Image | None = None,
        layers: Sequence[Path] = (),
    ) -> DictSandbox:
        return DictSandbox(files)


def replay(tokenizer: Any) -> Say:
    """The script's turns, prepared beforehand, by the number of messages that the prompt opens."""
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    calls = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in TURNS)
    turns = [
        tokenizer.encode(f"<tool_call>\n{call}\n</tool_call><|im_end|>", add_special_tokens=False) for call in calls
    ]
    # Each turn after the first adds a result and a reply, and each opens with one <|im_start|>.
    return lambda engine, asked: turns[(asked["input_ids"].count(start) - 3) // 2]


async def measure(rounds: int) -> Figures:
    """Milliseconds per turn: median over rounds, for one episode at a time and for 64 at once."""
    tokenizer = load_tokenizer(str(CHECKPOINT))
    started = time.process_time()
    template = ChatTemplate(tokenizer, [tool.spec.schema() for tool in TOOLS])
    template.prove()
    figures = {"template_proof_ms": (time.process_time() - started) * 1e3}
    async with (
        scripted_engine(tokenizer, replay(tokenizer), log_prob=-0.12345678, remember=False) as engine,
        EngineClient(engine.url) as client,
    ):
        agent = NativeAgent(SETTINGS, client, template)
        for width, episodes in WIDTHS:
            loop = [await _timed(agent, width, episodes) for _ in range(rounds)]
            http = [await _timed_http(client, agent, width, episodes) for _ in range(rounds)]
            figures[f"turn_ms_{width}"] = statistics.median(loop)
            figures[f"http_ms_{width}"] = statistics.median(http)
    return figures


async def _timed(agent: NativeAgent, width: int, episodes: int) -> float:
    """Milliseconds per turn of this many episodes, `width` of them at once."""
    sampling, places = Sampling({"max_new_tokens": 96, "temperature": 1.0}, ("k",)), asyncio.Semaphore(width)

    async def one() -> int:
        async with places:
            return (await run_episode(agent, TASK, DictSandboxes(), sampling, time_budget=60.0)).turns

    started = time.process_time()
    turns = await asyncio.gather(*(one() for _ in range(episodes)))
    assert turns == [len(TURNS)] * episodes, f"the script was not followed: {turns}"
    return (time.process_time() - started) * 1e3 / sum(turns)


async def _timed_http(client: EngineClient, agent: NativeAgent, width: int, episodes: int) -> float:
    prompt = agent.template.first_prompt(opening(TASK, agent.settings.system_prompt))
    params, places = {"max_new_tokens": 96, "stop_token_ids": agent.template.stop_token_ids}, asyncio.Semaphore(width)

    async def one() -> None:
        async with places:
            for _ in TURNS:
                await client.generate(prompt, params)

    started = time.process_time()
    await asyncio.gather(*(one() for _ in range(episodes)))
    return (time.process_time() - started) * 1e3 / (episodes * len(TURNS))


if __name__ == "__main__":
    sys.exit(run(__doc__, "episode", measure, ratios=RATIOS, rounds=5))
