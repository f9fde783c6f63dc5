"""How episodes of real agents end, in sandboxes without a network; that they solve a task is `test_agent_check`'s."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from slime_swe.errors import UserError
from slime_swe.patches import apply_patch
from slime_swe.rollout.agents import cli
from slime_swe.rollout.agents.base import agent_class
from slime_swe.rollout.agents.cli import CliAgent
from slime_swe.rollout.agents.toy_task import tool_call, toy_task
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.episode import Episode, StopReason
from slime_swe.rollout.play import run_episode
from slime_swe.rollout.scripted import Sampled, by_content, scripted_engine, serve
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sandbox.pool import SandboxPool
from tests.rollout.agents.tiny_agent import TinyAgent
from tests.rollout.support import END, PARAMS, make_args, overlay_pool
from tests.rollout.watch import watched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first of each agent installs it

EXTENDED = pytest.mark.extended("agents")
TINY = f"{TinyAgent.__module__}.{TinyAgent.__qualname__}"
NO_EDIT = "calc.py\n```python\n<<<<<<< SEARCH\n    return nothing\n=======\n    return a + b\n>>>>>>> REPLACE\n```\n"
IDLE = {
    TINY: tool_call("sh", command="ls"),
    "mini_swe_agent": tool_call("bash", command="ls"),
    "qwen_code": tool_call("read_file", file_path="/testbed/calc.py"),
    "aider": NO_EDIT,
    "claude_code": tool_call("Bash", command="ls"),
    "codex": tool_call("exec_command", cmd="ls"),
    "opencode": tool_call("bash", command="ls", description="List"),
    "openhands": tool_call("terminal", command="ls", security_risk="LOW"),
}
REAL_AND_TINY = [TINY, *(pytest.param(name, marks=EXTENDED) for name in IDLE if name != TINY)]


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    async with overlay_pool(4) as made:
        yield made


Play = Callable[[], Any]


@pytest.fixture
def opened(checkpoint: str, tmp_path: Path, pool: SandboxPool) -> Callable[..., Any]:
    """`async with opened(name, url, **changed args) as (agent, play)`."""

    @asynccontextmanager
    async def start(name: str, url: str, **changes: Any) -> AsyncIterator[tuple[CliAgent, Play]]:
        chosen = {"swe_max_turns": 8, "rollout_max_context_len": 400_000, "swe_time_budget": 300, **changes}
        args = make_args(checkpoint, url, tmp_path, swe_agent=name, swe_system_prompt="", **chosen)
        settings = RolloutSettings.from_args(args)
        async with AsyncExitStack() as stack:
            try:
                agent = await stack.enter_async_context(agent_class(name).open(settings))
            except UserError as error:
                pytest.skip(f"{name} can't be installed here: {error}")
            sampling = Sampling({**PARAMS, "max_new_tokens": 2000})

            async def play() -> Episode:
                return await run_episode(agent, toy_task(), pool, sampling, time_budget=settings.time_budget)

            yield agent, play

    return start


def trained(episodes: list[Episode]) -> Iterator[Sampled]:
    """Each run of trained tokens, and what was before it."""
    for segment in (segment for episode in episodes for segment in episode.segments):
        start = 0
        for mask, run in groupby(segment.loss_mask):
            end = start + len(list(run))
            if mask:
                yield Sampled(segment.tokens[:start], segment.tokens[start:end], segment.log_probs[start:end])
            start = end


@pytest.mark.parametrize("name", REAL_AND_TINY)
async def test_agents_at_once_have_workspaces_and_records_of_their_own(name, opened, tokenizer):
    files = toy_task().workspace.files
    async with (
        scripted_engine(tokenizer, by_content(*(turn + END for turn in agent_class(name).check_script))) as engine,
        opened(name, engine.url) as (_, play),
    ):
        episodes = await asyncio.gather(play(), play())
        for episode in episodes:
            assert episode.stop_reason is StopReason.SUBMITTED, episode.detail
            mended = apply_patch(files, episode.patch)
            assert mended.keys() == files.keys()  # nothing of the agent's own
            assert [path for path in files if mended[path] != files[path].encode()] == ["calc.py"]
        given = sorted(engine.sampled, key=lambda one: one.log_probs)
        assert sorted(trained(episodes), key=lambda one: one.log_probs) == given


@pytest.mark.parametrize("name", REAL_AND_TINY)
async def test_an_agent_has_its_model_calls_and_no_more(name, opened, tokenizer):
    async with (
        scripted_engine(tokenizer, by_content(IDLE[name] + END)) as engine,
        opened(name, engine.url, swe_max_turns=2) as (_, play),
    ):
        episode = await play()
        assert (episode.stop_reason, len(engine.sampled)) == (StopReason.MAX_TURNS, 2), episode.detail


@pytest.mark.parametrize("name", REAL_AND_TINY)
async def test_a_prompt_without_room_for_a_reply_ends_the_episode(name, opened, tokenizer):
    async with (
        scripted_engine(tokenizer, by_content(IDLE[name] + END)) as engine,
        opened(name, engine.url, rollout_max_context_len=1000) as (_, play),
    ):
        episode = await play()
        assert (episode.stop_reason, episode.turns) == (StopReason.CONTEXT_FULL, 0), episode.detail


@pytest.mark.extended(
    "tests/rollout/agents/test_episodes.py::test_a_policy_that_kills_its_agent_is_judged_by_what_it_did"
)
async def test_an_agent_whose_policy_says_nothing_it_can_use_gives_up(opened, tokenizer):
    async with (
        scripted_engine(tokenizer, by_content(f"I don't know.{END}")) as engine,
        opened("mini_swe_agent", engine.url) as (_, play),
    ):
        episode = await play()
        assert (episode.stop_reason, episode.turns) == (StopReason.GAVE_UP, 3)


@pytest.mark.parametrize(
    ("name", "shell", "more"),
    [
        (TINY, "sh", {}),
        pytest.param("mini_swe_agent", "bash", {}, marks=EXTENDED),
        pytest.param("opencode", "bash", {"description": "End"}, marks=EXTENDED),
        pytest.param("openhands", "terminal", {"security_risk": "LOW"}, marks=EXTENDED),
    ],
)
async def test_a_policy_that_kills_its_agent_is_judged_by_what_it_did(name, shell, more, opened, tokenizer):
    """Nothing waits for an agent that is dead: the time budget would end that."""
    commands = ("sed -i 's/a - b/a + b/' calc.py", "kill -9 -1; sleep 1000")
    script = [f"{tool_call(shell, command=command, **more)}{END}" for command in commands]
    async with scripted_engine(tokenizer, by_content(*script)) as engine, opened(name, engine.url) as (_, play):
        episode = await play()
        assert (episode.stop_reason, episode.turns) == (StopReason.GAVE_UP, 2)
        assert "+    return a + b" in episode.patch


@pytest.mark.extended("tests/sandbox/test_large_output.py::test_600_mb_in_one_line")
async def test_an_agent_whose_command_prints_600_mb_costs_the_host_nothing(opened, tokenizer):
    """It sends all of that to its policy, which takes 8 MiB."""
    command = "sed -i 's/a - b/a + b/' calc.py; head -c 600000000 /dev/zero | tr '\\0' x"
    async with (
        scripted_engine(tokenizer, by_content(tool_call("sh", command=command) + END)) as engine,
        opened(TINY, engine.url) as (_, play),
        watched() as loop,
    ):
        tracemalloc.start()
        try:
            episode = await play()
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (episode.stop_reason, episode.turns) == (StopReason.GAVE_UP, 1), episode.detail
    assert "+    return a + b" in episode.patch
    assert most < 64 << 20
    loop.assert_free()


async def test_the_time_budget_ends_an_agent_and_keeps_what_it_did(opened, tokenizer):
    command = "sed -i 's/a - b/a + b/' calc.py && sleep 1000"
    async with (
        scripted_engine(tokenizer, by_content(tool_call("sh", command=command) + END)) as engine,
        opened(TINY, engine.url, swe_time_budget=5) as (_, play),
    ):
        episode = await play()
        assert (episode.stop_reason, episode.turns) == (StopReason.TIME_BUDGET, 1)
        assert "+    return a + b" in episode.patch


@pytest.mark.parametrize(
    ("name", "start_seconds", "budget", "why"),
    [
        (TINY, 120.0, 300, "tiny_agent ended without a model call (exit code 1)"),
        pytest.param("qwen_code", 120.0, 300, "qwen_code ended without a model call (exit code 1)", marks=EXTENDED),
        pytest.param("codex", 3.0, 300, "codex did not call its model within 3 s", marks=EXTENDED),  # it never ends
        pytest.param("codex", 120.0, 3, "codex did not call its model", marks=EXTENDED),
    ],
)
async def test_an_agent_that_does_not_reach_its_model_is_infrastructure(
    name, start_seconds, budget, why, opened, monkeypatch
):
    monkeypatch.setattr(cli, "START_SECONDS", start_seconds)
    async with opened(name, "http://127.0.0.1:1", swe_time_budget=budget) as (agent, play):
        usual, elsewhere = agent.start, "http://127.0.0.1:9/s/x"
        monkeypatch.setattr(agent, "start", lambda launch: usual(replace(launch, url=elsewhere)))
        episode = await play()
        assert episode.stop_reason is StopReason.AGENT_ERROR
        assert why in episode.detail


@pytest.mark.parametrize("name", [TINY, pytest.param("codex", marks=EXTENDED)])
async def test_an_engine_that_fails_is_no_fault_of_the_agents(name, opened):
    async def broken(request: web.Request) -> web.Response:
        return web.Response(status=500, text="out of memory")

    async with serve(broken) as url, opened(name, url) as (_, play):
        episode = await play()
        assert episode.stop_reason is StopReason.ENGINE_ERROR
        assert "out of memory" in episode.detail


async def test_an_agent_pauses_at_a_closed_gate_and_ends_where_it_is_unwanted(opened, tokenizer):
    turns = [turn + END for turn in TinyAgent.check_script]
    async with scripted_engine(tokenizer, by_content(*turns)) as engine, opened(TINY, engine.url) as (agent, play):
        gate, usual = agent.policy.client.gate, engine.answer

        def close(asked: dict[str, Any]) -> dict[str, Any]:
            gate.close()
            return usual(asked)

        for unwanted, reason in ((False, StopReason.SUBMITTED), (True, StopReason.ENGINE_ERROR)):
            engine.answer, engine.aborts = close, [3]
            playing = asyncio.ensure_future(play())
            while not gate.is_closed:
                await asyncio.sleep(0.02)
            assert not (await asyncio.wait({playing}, timeout=1))[0]
            engine.answer = usual
            gate.stop_when(lambda unwanted=unwanted: unwanted)
            gate.open()
            episode = await asyncio.wait_for(playing, 60)
            assert episode.stop_reason is reason, episode.detail
        assert "wants no more" in episode.detail


@pytest.mark.extended("tests/rollout/agents/test_episodes.py::test_an_agent_has_its_model_calls_and_no_more")
@pytest.mark.parametrize(
    ("name", "shell", "more"),
    [("qwen_code", "run_shell_command", {"is_background": False}), ("claude_code", "Bash", {"description": "x"})],
)
async def test_the_shell_can_be_taken_away(name, shell, more, opened, tokenizer):
    """Neither offered nor executed."""
    without = f"slime_swe.rollout.agents.{name}.WithoutShell"
    turns = [tool_call(shell, command="echo x >made", **more) + END, f"Done.{END}"]
    async with scripted_engine(tokenizer, by_content(*turns)) as engine:
        for chosen, made in ((name, True), (without, False)):
            engine.sampled.clear()
            async with opened(chosen, engine.url) as (_, play):
                episode = await play()
            assert episode.stop_reason is StopReason.SUBMITTED, episode.detail
            assert (f'"name": "{shell}"' in tokenizer.decode(engine.sampled[0].prompt)) is made
            assert ("made" in episode.patch) is made
