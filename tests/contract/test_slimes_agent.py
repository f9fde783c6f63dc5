"""What docs/beside_slime.md says of SLiME's own agents and its example, on their own code."""

from __future__ import annotations

import asyncio
import importlib
import re
from pathlib import Path

import pytest

from tests.contract.test_samples import make_manager

PAGE = (Path(__file__).parents[2] / "docs" / "beside_slime.md").read_text(encoding="utf-8")


def sample_of(index, reward, **changes):
    from slime.utils.types import Sample

    return Sample(group_index=index // 4, index=index, reward=reward, **changes)


def rewards_without_a_hook(manager_class, samples):
    manager = make_manager(manager_class, advantage_estimator="grpo")
    manager.custom_reward_post_process_func = None
    return manager._post_process_rewards(samples)[1]


def test_one_episode_of_two_samples_makes_all_groups_one(manager_class):
    solved, unsolved = [1.0] * 4, [0.0] * 4
    samples = [sample_of(index, reward) for index, reward in enumerate(solved + unsolved)]
    assert rewards_without_a_hook(manager_class, samples) == [0.0] * 8, "each group by itself teaches nothing"
    samples.insert(1, sample_of(0, 1.0))
    assert rewards_without_a_hook(manager_class, samples) == pytest.approx([4 / 9] * 5 + [-5 / 9] * 4)


def test_the_reward_of_an_aborted_episode_is_in_its_groups_mean(manager_class):
    generate = importlib.import_module("examples.coding_agent_rl.generate")
    (aborted,) = generate._abort_result(sample_of(3, None), "exception:OSError", "a")
    assert (aborted.reward, aborted.remove_sample) == (0.0, True)
    group = [*(sample_of(index, 1.0) for index in range(3)), aborted, *(sample_of(index, 0.0) for index in range(4, 8))]
    assert rewards_without_a_hook(manager_class, group)[:4] == [0.25, 0.25, 0.25, -0.75]


def test_a_grader_without_its_package_is_a_reward_of_0(slime_home, monkeypatch):
    swe = importlib.import_module("examples.coding_agent_rl.swe")
    monkeypatch.setattr(swe, "_SWEBENCH_IMPORT_ERROR", ImportError("swebench"))
    task = {"protocol": swe.PROTOCOL_SWEBENCH, "instance_id": "a", "grading": {"sweb_instance": {}}}
    assert asyncio.run(swe.run_evaluation(task, diff_text="", timeout_sec=1)) == (0.0, True)


def test_a_turn_that_is_tokenised_otherwise_later_is_not_trained(slime_home):
    """The client repeats the reply as it was; rendering it again gives other tokens."""
    from slime.agent.trajectory import TrajectoryManager, TurnRecord

    asked, said = {"role": "user", "content": "ab"}, {"role": "assistant", "content": "cde"}
    manager = TrajectoryManager()
    first = TurnRecord([1, 2], [10, 11, 12], "stop", [-0.5] * 3)
    manager.record_turn("s", turn=first, prompt_messages=[asked], response_message=said)
    second = TurnRecord([1, 2, 10, 13, 3], [20], "stop", [-0.5])
    manager.record_turn("s", turn=second, prompt_messages=[asked, said, asked], response_message=said)
    (sample,) = manager.get_trajectory("s", base_sample=sample_of(0, None), reward=1.0)
    trained = [token for token, mask in zip(sample.tokens[2:], sample.loss_mask, strict=True) if mask]
    assert trained == [20], "nothing of the first turn"


def test_what_the_page_names_of_slime_is_there(slime_home):
    """A file in backquotes, and after it the name in it that is meant."""
    cited = re.findall(r"`((?:slime|examples|tests/test_agent|docs/en)/[\w./-]+)`(?:\s\(`(\w+)`\))?", PAGE)
    assert len(cited) > 12
    for path, name in cited:
        assert (slime_home / path).exists(), path
        assert not name or re.search(rf"\b{name}\b", (slime_home / path).read_text(encoding="utf-8")), (path, name)
