"""A real agent, unmodified, trains: `recipe=tiny_cpu` with mini-SWE-agent in place of the native one."""

from __future__ import annotations

import asyncio
from collections import Counter

import orjson
import pytest

from slime_swe.errors import UserError
from slime_swe.rollout.agents.cli import layer_of
from slime_swe.rollout.agents.mini_swe_agent import MiniSweAgent
from tests.e2e.test_sandboxes import start

pytestmark = [
    pytest.mark.extended(
        "tests/launch/test_agent_check.py::test_an_agent_repairs_the_task_and_no_sampled_token_is_lost"
    ),
    *(pytest.mark.slow, pytest.mark.timeout(900)),
]

# The seed policy has never seen this agent's only tool, and solves nothing with it: so that the episodes of a group
# differ, each is rewarded for an even number of sampled tokens.
REWARD = """
async def reward(args, sample, **kwargs):
    samples = sample if isinstance(sample, list) else [sample]
    solved = sum(sum(one.loss_mask) for one in samples) % 2 == 0
    for one in samples:
        one.metadata["score"] = {"solved": solved, "value": float(solved)}
    return [float(solved)] * len(samples) if isinstance(sample, list) else float(solved)
"""


def test_mini_swe_agent_trains(cli, small, tmp_path):
    asyncio.run(start("overlay"))
    try:
        layer_of(MiniSweAgent.name, MiniSweAgent.version, MiniSweAgent.install)
    except UserError as error:
        pytest.skip(f"mini-swe-agent can't be installed here: {error}")
    (tmp_path / "words.py").write_text(REWARD)
    words = ["rollout.agent=mini_swe_agent", "rollout.sandbox=overlay", "rollout.samples_per_task=3"]
    words += ["rollout.max_context=1800", "rollout.max_turns=3", "rollout.max_response=64"]
    words += ["~data.eval.heldout", "~data.eval.unseen", "reward.function=words.reward", "run.name=a"]
    result = cli("train", *(word for word in small if not word.startswith("data.eval")), *words)
    assert result.returncode == 0, result.stderr
    episodes = [orjson.loads(line) for line in (tmp_path / "runs/a/episodes.jsonl").read_bytes().splitlines()]
    assert Counter(episode["infrastructure"] is None for episode in episodes).keys() == {True}
    assert len({(episode["rollout_id"], episode["trajectory"]) for episode in episodes}) == 12
    for episode in episodes:
        assert episode["episode"]["turns"] >= 1
        assert len(episode["loss_mask"]) == len(episode["log_probs"]) == episode["response_length"]
        assert not any(
            value for mask, value in zip(episode["loss_mask"], episode["log_probs"], strict=True) if not mask
        )
    metrics = [orjson.loads(line) for line in (tmp_path / "runs/a/metrics.jsonl").read_bytes().splitlines()]
    assert max(line["grad_norm"] for line in metrics if line["kind"] == "train") > 0
