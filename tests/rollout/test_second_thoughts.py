"""A native episode on a puzzle of grids: a program, what the command says of it, a better program."""

from __future__ import annotations

from pathlib import Path

from slime_swe.data_sources.registry import load_tasks
from slime_swe.rewards.grade import grade
from slime_swe.rollout.agents.native import NativeAgent, load_template
from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import StopReason
from slime_swe.rollout.play import run_episode
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sandbox.pool import SandboxPool
from tests.rollout.support import END, SUBMIT, TEST, call

WRONG = call("str_replace", path="solution.py", new_str="def transform(grid):\n    return grid\n") + END
TRACE = call("bash", command="python3 -B -m arc_tool trace 1") + END
RIGHT = call("str_replace", path="solution.py", old_str="grid\n", new_str="grid[::-1]\n") + END


async def test_a_second_program_after_what_the_tool_said_of_the_first(checkpoint, scripted):
    task = next(task for task in load_tasks("arc:generated") if is_turned_over(task))
    settings = RolloutSettings(
        engine_host="", engine_port=0, checkpoint=checkpoint, max_context=8192, agent="native", tool_format="hermes",
        system_prompt="", max_turns=8, time_budget=60.0, sandbox="local", sandbox_concurrency=2,
        run_dir=Path("."), seed=1, deterministic=True,
    )  # fmt: skip
    async with SandboxPool("local", concurrency=2) as pool, scripted(WRONG, TEST, TRACE, RIGHT, TEST, SUBMIT) as engine:
        async with EngineClient(engine.url, timeout=20, attempts=1, pause=0.01) as client:
            agent = NativeAgent(settings, client, load_template(checkpoint))
            sampling = Sampling({"max_new_tokens": 400, "temperature": 1.0, "stop": None}, ("k",))
            episode = await run_episode(agent, task, pool, sampling, time_budget=60.0)
        said = [turn.text for segment in episode.segments for turn in segment.turns if turn.role == "tool"]
        assert episode.stop_reason is StopReason.SUBMITTED
        assert said[1].startswith("transform, pair 1: wrong, ") and said[1].endswith(
            "0 of 2 pairs right\n[exit code 1]"
        )
        assert "   2 return grid\n     transform gives" in said[2]
        assert said[4] == "transform, pair 1: right\ntransform, pair 2: right\n2 of 2 pairs right"
        score = await grade(task, episode.patch, pool)
    assert (score.solved, score.value, score.evidence["outcome"]) == (True, 1.0, "solved")


def is_turned_over(task) -> bool:
    pairs = (*task.oracle.train, *task.oracle.test)
    return all(pair.output == pair.input[::-1] != pair.input for pair in pairs)
