"""The code of docs/plugins.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.slime_plugin import sample_of
from slime_swe.rollout.hooks import checked_reward
from slime_swe.rollout.records import record_of

pytest.importorskip("cydifflib")
PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"


async def test_the_reward_of_the_page_is_one():
    (code,) = re.findall(r"^```python\n(.*?def reward\(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(code.splitlines()) <= 15
    module: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), module)
    reward = checked_reward(module["reward"], "my_reward.reward")
    (task,) = load_tasks("synthetic:train?limit=1")
    gold = task.oracle.gold_patch
    wrong = gold.replace("\n+", "\n+# ")
    for patch, solved in ((gold, True), (wrong, False), ("", False)):
        sample = sample_of(task, index=0, group_index=0)
        sample.metadata["episode"] = {"patch": patch}
        value = await reward(None, sample)
        record = record_of(sample, None)
        assert (value == 1.0) == record.solved == solved and 0 <= value <= 1
        assert record.score.components == {"similarity": value}
