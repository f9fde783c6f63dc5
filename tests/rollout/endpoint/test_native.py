"""The native agent, whose model is at an endpoint: real sandboxes, a real server, a scripted model."""

from __future__ import annotations

import pytest

from slime_swe.rollout.agents.base import agent_class
from slime_swe.rollout.agents.native import no_call_notice
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.endpoint.replies import SPENDING, Spending
from slime_swe.rollout.episode import Episode, StopReason
from slime_swe.rollout.play import run_episode
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sandbox.pool import SandboxPool
from tests.data_sources.tasks import make_task
from tests.rollout.endpoint.served import FIX, KEY, REPAIR, SUBMIT, by_turn, call, calls, chat_endpoint
from tests.rollout.support import PARAMS


def settings_for(endpoint, folder, agent="native", **changes) -> RolloutSettings:
    values = dict(
        engine_host="", engine_port=0, checkpoint="", max_context=4096, agent=agent, tool_format="hermes",
        system_prompt="Be brief.", max_turns=6, time_budget=20.0, sandbox="local", sandbox_concurrency=2,
        run_dir=folder, seed=0, endpoint=endpoint.url, endpoint_model="large",
    )  # fmt: skip
    return RolloutSettings(**(values | changes))


async def play(endpoint, folder, **changes) -> Episode:
    settings = settings_for(endpoint, folder, **changes)
    async with (
        agent_class(settings.agent).open_at_endpoint(settings) as agent,
        SandboxPool(settings.sandbox, concurrency=1) as pool,
    ):
        return await run_episode(agent, make_task(), pool, Sampling(PARAMS), time_budget=settings.time_budget)


async def test_an_episode_is_played_by_the_api_s_own_calls(tmp_path):
    async with chat_endpoint(by_turn(*REPAIR)) as endpoint:
        episode = await play(endpoint, tmp_path)
    assert (episode.stop_reason, episode.turns, episode.counters.edits) == (StopReason.SUBMITTED, 3, 1)
    assert "+    return a + b" in episode.patch
    (segment,) = episode.segments
    assert (segment.tokens, segment.loss_mask, segment.log_probs) == ([], [], [])
    roles = ["system", "user", "assistant", "tool", "assistant", "tool", "assistant", "tool"]
    assert [turn.role for turn in segment.turns] == roles
    assert segment.turns[2].text == "Let me look." and segment.turns[3].call_id == "c1"
    counters = episode.counters
    assert (counters.prompt_tokens, counters.cached_tokens, counters.completion_tokens) == (1200, 900, 30)
    assert Spending.of(tmp_path / SPENDING).used.total == 1230


async def test_what_is_asked_is_what_is_recorded(tmp_path):
    async with chat_endpoint(by_turn(*REPAIR)) as endpoint:
        episode = await play(endpoint, tmp_path)
    last = endpoint.requests[-1]
    assert [message["role"] for message in last["messages"]] == [turn.role for turn in episode.segments[0].turns[:6]]
    assert last["messages"][2]["tool_calls"] == REPAIR[0]["tool_calls"]
    assert last["messages"][3]["content"] == episode.segments[0].turns[3].text
    assert (last["model"], last["temperature"], last["max_tokens"]) == ("large", 1.0, 200)
    assert {tool["function"]["name"] for tool in last["tools"]} == {
        "bash",
        "view",
        "str_replace",
        "run_tests",
        "submit",
    }
    assert "Authorization" not in endpoint.headers[0]


@pytest.mark.parametrize("field", ("reasoning_content", "reasoning"))
async def test_reasoning_goes_back_in_the_field_that_it_came_in(field, tmp_path):
    thinking = FIX | {field: "It subtracts."}
    async with chat_endpoint(by_turn(thinking, SUBMIT)) as endpoint:
        episode = await play(endpoint, tmp_path)
    assert episode.segments[0].turns[2].reasoning == "It subtracts."
    assert endpoint.requests[1]["messages"][2][field] == "It subtracts."


async def test_a_malformed_call_is_answered_and_every_call_has_an_answer(tmp_path):
    broken = {"id": "b1", "type": "function", "function": {"name": "bash", "arguments": "{not json"}}
    async with chat_endpoint(by_turn(calls(broken, call("view", "b2", path="calc.py")), *REPAIR[1:])) as endpoint:
        episode = await play(endpoint, tmp_path)
    assert (episode.stop_reason, episode.counters.malformed_calls) == (StopReason.SUBMITTED, 1)
    asked = endpoint.requests[1]["messages"]
    assert asked[2]["tool_calls"][0]["function"]["arguments"] == "{}"  # servers refuse a history that they can't read
    answers = [message for message in asked if message["role"] == "tool"]
    assert [answer["tool_call_id"] for answer in answers] == ["b1", "b2"]
    assert "must be one JSON object" in answers[0]["content"] and "not run" in answers[1]["content"]
    assert episode.segments[0].turns[2].calls[0].arguments == "{not json"


async def test_replies_without_a_call_are_answered_and_at_last_end_the_episode(tmp_path):
    async with chat_endpoint(by_turn({"role": "assistant", "content": "I am done."})) as endpoint:
        episode = await play(endpoint, tmp_path, tool_format="bash_block")  # of a recipe; the API has its own
    assert (episode.stop_reason, episode.turns) == (StopReason.NO_TOOL_CALL, 3)
    asked = endpoint.requests[-1]["messages"]
    assert [message["role"] for message in asked] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert asked[0]["content"] == "Be brief." and asked[-1]["content"] == no_call_notice(None)
    async with chat_endpoint(by_turn({"role": "assistant", "content": "I am done."})) as endpoint:
        assert (await play(endpoint, tmp_path, no_call_turns=1)).turns == 1


async def test_turns_are_limited(tmp_path):
    async with chat_endpoint(by_turn(calls(call("bash", command="true")))) as endpoint:
        episode = await play(endpoint, tmp_path)
    assert (episode.stop_reason, episode.turns, len(endpoint.requests)) == (StopReason.MAX_TURNS, 6, 6)


async def test_the_context_is_full_by_the_recipe_s_limit_or_the_model_s_own(tmp_path):
    talk = calls(call("bash", command="true"))
    async with chat_endpoint(by_turn(talk)) as endpoint:
        episode = await play(endpoint, tmp_path, max_context=420)
    assert (episode.stop_reason, episode.turns) == (StopReason.CONTEXT_FULL, 2)  # 410 tokens after the second
    too_long = {"error": {"message": "This model's maximum context length is 512 tokens.", "code": 400}}
    async with chat_endpoint(by_turn(talk), fail=[None, (400, too_long, {})]) as endpoint:
        episode = await play(endpoint, tmp_path)
    assert (episode.stop_reason, episode.turns) == (StopReason.CONTEXT_FULL, 1)


async def test_long_results_are_cut_to_the_room_that_is_left(tmp_path):
    shown = calls(call("bash", command="seq 100000"))
    async with chat_endpoint(by_turn(shown, SUBMIT)) as endpoint:
        await play(endpoint, tmp_path)
    result = endpoint.requests[1]["messages"][-1]["content"]
    assert "[cut: " in result and len(result) <= 3 * 4096


async def test_neither_the_key_nor_the_address_is_in_the_sandbox(tmp_path, monkeypatch):
    monkeypatch.setenv("LARGE_API_KEY", KEY)
    look = calls(call("bash", command="env; cat /proc/*/environ | tr '\\0' '\\n'"))
    async with chat_endpoint(by_turn(look, SUBMIT), key=KEY) as endpoint:
        episode = await play(endpoint, tmp_path, endpoint_key="LARGE_API_KEY")
    assert episode.stop_reason is StopReason.SUBMITTED
    seen = endpoint.requests[1]["messages"][-1]["content"]
    assert "PATH=" in seen
    assert KEY not in seen and endpoint.url not in seen
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
