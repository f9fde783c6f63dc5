"""The agent whose one reply is the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slime_swe.data_sources.task import Workspace
from slime_swe.patches import apply_patch
from slime_swe.rollout.agents.base import AGENTS, IN_PROCESS, Agent, agent_class
from slime_swe.rollout.agents.blocks import _PATH, BlocksAgent, _load_template
from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import Episode, StopReason
from slime_swe.rollout.play import run_episode
from slime_swe.sandbox.pool import SandboxPool
from tests.data_sources.tasks import BROKEN, FIXED, make_task
from tests.effort import assert_linear
from tests.rollout.support import END
from tests.rollout.test_native import settings  # noqa: F401

BLOCK = "### calc.py\n<<<<<<< SEARCH\n    return a - b\n=======\n    return a + b\n>>>>>>> REPLACE\n"
_TEMPLATES = []


@pytest.fixture
async def play(settings):  # noqa: F811
    async with SandboxPool("local", concurrency=2) as pool:

        async def run(url: str, task=make_task(), max_new_tokens: int = 400, **changes) -> Episode:  # noqa: B008
            chosen = replace(settings, agent="blocks", **changes)
            if not _TEMPLATES:
                _TEMPLATES.append(_load_template(chosen))
            async with EngineClient(url, timeout=5, attempts=2, pause=0.01) as client:
                agent = BlocksAgent(chosen, client, _TEMPLATES[0])
                sampling = Sampling({"max_new_tokens": max_new_tokens, "temperature": 1.0, "stop": None}, ("k",))
                return await run_episode(agent, task, pool, sampling, time_budget=20)

        yield run


def fixed(episode: Episode) -> str:
    return apply_patch(make_task().workspace.files, episode.patch)["calc.py"].decode()


@pytest.mark.parametrize(
    "reply",
    [
        f"The sign is wrong.\n{BLOCK}",
        "--- a/calc.py\n+++ b/calc.py\n@@ -9,2 +9,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n",
    ],
)
async def test_one_reply_is_applied_and_its_patch_is_the_answer(scripted, play, reply):
    async with scripted(reply + END) as engine:
        episode = await play(engine.url)
    assert (episode.stop_reason, episode.turns, episode.counters.edits) == (StopReason.SUBMITTED, 1, 1)
    assert episode.counters.malformed_calls == 0 and fixed(episode) == FIXED
    (segment,) = episode.segments
    said = [token for token, mask in zip(segment.tokens, segment.loss_mask, strict=True) if mask]
    assert engine.tokenizer.decode(said) == reply + END
    prompt = engine.tokenizer.decode(engine.requests[0]["input_ids"])
    assert BROKEN in prompt and "<<<<<<< SEARCH" in prompt and "test_calc" not in prompt.partition("### calc.py")[2]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("I don't know.", "holds no search/replace block"),
        (BLOCK.replace("=======\n", ""), "a block without its marker"),
        (BLOCK.replace("a - b", "a * b"), "does not have what is searched for"),
        (BLOCK + BLOCK.replace("calc.py", "other.py"), "other.py is not there"),
        (BLOCK.replace("calc.py", "../calc.py"), "is not a path inside the repository"),
    ],
)
async def test_a_malformed_reply_changes_nothing_and_is_in_the_record(scripted, play, reply, said):
    async with scripted(reply + END) as engine:
        episode = await play(engine.url)
    assert (episode.patch, episode.stop_reason) == ("", StopReason.SUBMITTED)
    assert (episode.counters.malformed_calls, episode.counters.failed_edits, episode.counters.edits) == (1, 1, 0)
    (segment,) = episode.segments
    assert [turn.role for turn in segment.turns] == ["system", "user", "assistant", "user"]
    assert reply in segment.turns[-2].text and said in segment.turns[-1].text
    assert sum(segment.loss_mask) == len(engine.sampled[0].tokens)


async def test_a_reply_that_is_cut_is_malformed(scripted, play):
    async with scripted(BLOCK + "word " * 200 + END) as engine:
        episode = await play(engine.url, max_new_tokens=100)
    assert (episode.patch, episode.stop_reason) == ("", StopReason.MAX_RESPONSE)
    assert "was cut at its limit" in episode.segments[0].turns[-1].text


async def test_files_that_leave_no_room_for_a_reply_are_cut(scripted, play):
    files = {**make_task().workspace.files, "long.py": "x = 1\n" * 5000}
    async with scripted(BLOCK + END) as engine:
        episode = await play(engine.url, replace(make_task(), workspace=Workspace(files)), max_context=2000)
        assert len(engine.requests[0]["input_ids"]) <= 1600
        assert "[cut: " in engine.tokenizer.decode(engine.requests[0]["input_ids"])
        assert fixed(episode) == FIXED
        full = await play(engine.url, max_context=40, max_new_tokens=20)
    assert full.stop_reason is StopReason.CONTEXT_FULL and full.turns == 0


def test_paths_are_found_in_a_statement_of_one_long_word_in_linear_time():
    assert _PATH.findall("in a/b.py, ../c.d/e.txt. (f.g-h) and -") == ["a/b.py", "../c.d/e.txt", "f.g"]
    assert_linear(lambda size: _PATH.findall("a/" * size), 20_000)


def test_which_agents_are_no_programs_and_which_can_be_evaluated_at_an_endpoint():
    classes = {name: agent_class(name) for name in AGENTS}
    assert {name for name, made in classes.items() if not made.is_program} == IN_PROCESS
    missing = [n for n, made in classes.items() if made.open_at_endpoint.__func__ is Agent.open_at_endpoint.__func__]
    assert missing == ["blocks", "step"]
