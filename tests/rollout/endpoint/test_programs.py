"""Real agents, whose model is at an endpoint: they ask the proxy, and it asks the endpoint."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from slime_swe.errors import UserError
from slime_swe.rewards.grade import grade
from slime_swe.rollout.agents.base import AGENTS, Agent, agent_class
from slime_swe.rollout.agents.toy_task import tool_call, toy_task
from slime_swe.rollout.chat.tool_formats import ToolCall, parse
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.episode import Episode, StopReason
from slime_swe.rollout.play import run_episode
from slime_swe.sandbox.pool import SandboxPool
from tests.rollout.agents.tiny_agent import TinyAgent
from tests.rollout.endpoint.served import KEY, ChatEndpoint, Said, by_turn, call, calls, chat_endpoint
from tests.rollout.endpoint.test_native import settings_for
from tests.rollout.support import PARAMS, overlay_pool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first of each agent installs it

TINY = f"{TinyAgent.__module__}.{TinyAgent.__qualname__}"
PROGRAMS = [name for name in AGENTS if agent_class(name).is_program]
BIG = {"max_context": 1 << 20, "max_turns": 40, "time_budget": 300.0, "sandbox": "overlay", "system_prompt": ""}


@pytest.fixture
async def pool() -> AsyncIterator[SandboxPool]:
    async with overlay_pool(2) as made:
        yield made


def said(text: str) -> Said:
    """What a policy of the hermes format says, as an endpoint gives it."""
    turn = parse(text, "hermes", ())
    made = [one for one in turn.written if isinstance(one, ToolCall)]
    if not made:
        return {"role": "assistant", "content": text}
    return calls(
        *(call(one.name, secrets.token_hex(4), **one.arguments) for one in made), text=turn.text_before.strip()
    )


def by_content(*script: Said) -> Callable[[Said], Said]:
    """The first of these that the request does not hold yet: agents have examples in their prompts, and side calls."""

    def say(asked: Said) -> Said:
        seen = [_words(message) for message in asked["messages"]]
        return next((message for message in script if _words(message) not in seen), script[-1])

    return say


def _words(message: Said) -> tuple[str, list[str]]:
    made = [one["function"]["arguments"] for one in message.get("tool_calls") or ()]
    return (message["content"] or "").strip(), made


async def play(endpoint, pool, folder, name=TINY, **changes) -> Episode:
    settings = settings_for(endpoint, folder, name, **(BIG | changes))
    async with AsyncExitStack() as stack:
        try:
            agent = await stack.enter_async_context(agent_class(name).open_at_endpoint(settings))
        except UserError as error:
            if name in PROGRAMS:
                pytest.skip(f"{name} can't be installed here: {error}")
            raise
        sampling = Sampling(PARAMS | {"max_new_tokens": 2048})
        return await run_episode(agent, toy_task(), pool, sampling, time_budget=settings.time_budget)


@pytest.mark.parametrize(
    "name", [TINY, *(pytest.param(name, marks=pytest.mark.extended("agents")) for name in PROGRAMS)]
)
async def test_every_agent_repairs_the_task(name, pool, tmp_path):
    script = [said(turn) for turn in agent_class(name).check_script]
    async with chat_endpoint(by_content(*script)) as endpoint:
        episode = await play(endpoint, pool, tmp_path, name)
    assert episode.stop_reason is StopReason.SUBMITTED, episode.detail
    assert (await grade(toy_task(), episode.patch, pool)).solved
    assert episode.segments and not any(segment.tokens for segment in episode.segments)
    spoken = [turn for segment in episode.segments for turn in segment.turns if turn.role == "assistant"]
    assert len(spoken) >= len(script)
    assert episode.counters.completion_tokens == 10 * episode.turns
    assert {request["model"] for request in endpoint.requests} == {"large"}


async def test_a_tiny_agent_s_record_is_what_the_endpoint_was_sent(pool, tmp_path, monkeypatch):
    monkeypatch.setenv("LARGE_API_KEY", KEY)
    look = calls(call("sh", command="env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"))
    script = [look, *(said(turn) for turn in TinyAgent.check_script)]
    async with chat_endpoint(by_turn(*script), key=KEY) as endpoint:
        episode = await play(endpoint, pool, tmp_path, endpoint_key="LARGE_API_KEY")
    (segment,) = episode.segments
    assert [turn.role for turn in segment.turns] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    last = endpoint.requests[-1]
    assert [message["role"] for message in last["messages"]] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [message["content"] for message in last["messages"]][2] == segment.turns[2].text
    assert last["tools"] == [*segment.tools] and last["temperature"] == 1.0
    environment = segment.turns[2].text
    assert "TASK=" in environment and KEY not in environment and endpoint.url not in environment


def test_an_agent_of_the_users_that_needs_tokens_says_so(tmp_path):
    class Mine(Agent):
        pass

    with pytest.raises(UserError, match="Mine has no open_at_endpoint"):
        Mine.open_at_endpoint(settings_for(ChatEndpoint(by_turn()), tmp_path, "mine.Mine"))


async def test_an_endpoint_that_refuses_ends_the_evaluation_and_not_only_the_episode(pool, tmp_path):
    refusal = (403, {"error": {"message": "this key may not"}}, {})
    async with chat_endpoint(by_turn(said(tool_call("sh", command="ls"))), fail=[None, refusal]) as endpoint:
        with pytest.raises(UserError, match="status 403: this key may not"):
            await play(endpoint, pool, tmp_path)


async def test_a_full_context_and_the_turns_are_limits_here_too(pool, tmp_path):
    full = (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, {})
    async with chat_endpoint(by_turn(said(tool_call("sh", command="ls"))), fail=[None, full]) as endpoint:
        assert (await play(endpoint, pool, tmp_path)).stop_reason is StopReason.CONTEXT_FULL
        episode = await play(endpoint, pool, tmp_path, max_turns=3)
    assert (episode.stop_reason, episode.turns) == (StopReason.MAX_TURNS, 3)
