"""The agent that takes one step of a recorded episode."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slime_swe.data_sources.steps import ANSWER, load
from slime_swe.errors import UserError
from slime_swe.patches import apply_patch
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rollout.agents.native import SCHEMAS, load_template
from slime_swe.rollout.agents.step import StepAgent
from slime_swe.rollout.chat.tokenizer import vocabulary_of
from slime_swe.rollout.chat.tool_formats import tool_format
from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import Episode, StopReason
from slime_swe.rollout.play import run_episode
from slime_swe.sandbox.pool import SandboxPool
from tests.rollout.support import END, FIX, SUBMIT, VIEW, call
from tests.rollout.test_native import settings  # noqa: F401

PROMPT = "Repair calc.py."


@pytest.fixture
def step(tokenizer, checkpoint, tmp_path):
    """`step(vocabulary) -> the task of a recorded reply that views calc.py`, and the tokens before it."""

    def make(vocabulary: str | None = None):
        before, said = (tokenizer.encode(text, add_special_tokens=False) for text in (PROMPT, VIEW))
        calls = [{"type": "function", "function": {"name": "view", "arguments": '{"path": "calc.py"}'}}]
        reply = {"role": "assistant", "content": "", "tool_calls": calls, "step_loss_mask": 1}
        line = {
            "episode": "e", "task": "t", "messages": [{"role": "user", "content": PROMPT}, reply], "tools": SCHEMAS,
            "tokens": [*before, *said], "loss_mask": [1] * len(said),
            "replies": [[len(before), len(before) + len(said)]],
            "vocabulary": vocabulary_of(Path(checkpoint)) if vocabulary is None else vocabulary,
        }  # fmt: skip
        (tmp_path / "solved.jsonl").write_text(json.dumps(line) + "\n")
        (task,) = load(str(tmp_path / "solved.jsonl"))
        return task, before

    return make


@pytest.fixture
async def play(settings, checkpoint):  # noqa: F811
    template = load_template(checkpoint, "", tool_format("hermes"))
    async with SandboxPool("local", concurrency=2) as pool:

        async def run(url: str, task, max_new_tokens: int = 400, **changes) -> Episode:
            chosen = replace(settings, agent="step", **changes)
            async with EngineClient(url, timeout=5, attempts=2, pause=0.01) as client:
                agent = StepAgent(chosen, client, template, vocabulary_of(Path(checkpoint)))
                sampling = Sampling({"max_new_tokens": max_new_tokens, "temperature": 1.0, "stop": None}, ("k",))
                return await run_episode(agent, task, pool, sampling, time_budget=20)

        yield run


def answer(episode: Episode) -> list:
    return json.loads(apply_patch({}, episode.patch)[ANSWER])


async def test_one_reply_goes_on_from_the_episode_s_own_tokens_and_its_calls_are_the_answer(scripted, play, step):
    task, before = step()
    two = call("bash", command="ls é") + "\n" + SUBMIT
    async with scripted("So.\n" + two) as engine:
        episode = await play(engine.url, task)
    assert (episode.stop_reason, episode.turns) == (StopReason.SUBMITTED, 1)
    assert engine.requests[0]["input_ids"] == before
    assert answer(episode) == [
        {"name": "bash", "arguments": {"command": "ls é"}}, {"name": "submit", "arguments": {}},
    ]  # fmt: skip
    (segment,) = episode.segments
    assert segment.tokens[: len(before)] == before and sum(segment.loss_mask) == len(segment.tokens) - len(before)
    user, reply = segment.turns
    assert (
        task.statement == user.text and reply.text == "So." and [one.name for one in reply.calls] == ["bash", "submit"]
    )


@pytest.mark.parametrize(
    ("reply", "malformed"), [("I look." + END, 0), ("<tool_call>{</tool_call>" + END, 1), (FIX[:-30] + END, 1)]
)
async def test_a_reply_without_a_whole_call_leaves_no_answer(scripted, play, step, reply, malformed):
    task, _ = step()
    async with scripted(reply) as engine:
        episode = await play(engine.url, task)
    assert (episode.patch, episode.stop_reason) == ("", StopReason.NO_TOOL_CALL)
    assert episode.counters.malformed_calls == malformed


@pytest.mark.parametrize(
    "value",
    ['"\\ud800"', "1" + "0" * 400, "[" * 300 + "]" * 300, "1e999"],
    ids=["half a pair", "long", "deep", "infinite"],
)
async def test_a_call_that_json_can_write_and_few_can_read_is_an_answer_like_others(scripted, play, step, value):
    """Such as half of a surrogate pair: it is the policy's own, and breaks nothing."""
    task, _ = step()
    call_of_it = f'<tool_call>\n{{"name": "view", "arguments": {{"path": {value}}}}}\n</tool_call>'
    async with scripted(call_of_it + END) as engine:
        episode = await play(engine.url, task, max_new_tokens=1500)
    assert episode.stop_reason is StopReason.SUBMITTED and episode.patch
    score = await grade(task, episode.patch, None, GradingSettings("fraction"))
    assert (score.value, score.solved) == (0.0, False)


async def test_limits_end_a_step(scripted, play, step):
    task, before = step()
    async with scripted(call("bash", command="echo " + "x " * 300) + END) as engine:
        cut = await play(engine.url, task, max_new_tokens=60)
        full = await play(engine.url, task, max_context=len(before) + 4)
    assert (cut.patch, cut.stop_reason) == ("", StopReason.MAX_RESPONSE)
    assert (full.turns, full.stop_reason) == (0, StopReason.CONTEXT_FULL)


async def test_an_episode_of_another_vocabulary_is_refused(scripted, play, step):
    task, _ = step("0123")
    async with scripted(SUBMIT) as engine:
        with pytest.raises(UserError, match="the steps of e are tokens of another vocabulary"):
            await play(engine.url, task)
