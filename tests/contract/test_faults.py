"""Two drills with SLiME, Megatron and SGLang themselves: what the docs promise holds, whatever SLiME does."""

from __future__ import annotations

import pytest

from slime_swe.launch.rehearse.faults.outcome import PROMISES
from tests.contract.test_rehearse import outcome_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_a_rank_that_is_killed_and_a_machine_that_fails_while_it_saves_cost_one_rollout(slime_home, tmp_path):
    words = ["recipe=qwen25_coder_1_5b", "faults=rank.step,machine.save", f"run.dir={tmp_path}", "run.name=a", "--json"]
    outcome = outcome_of("slime_swe.launch.cli", "rehearse", *words)
    found = {f"{drill['part']}.{drill['moment']}": drill for drill in outcome["drills"]}
    assert found.keys() == {"rank.step", "machine.save"}
    for name, drill in found.items():
        assert [check["name"] for check in drill["promises"]] == list(PROMISES)
        assert [check for check in drill["promises"] if not check["ok"]] == [], name
        assert drill["resumed_from"] == "the checkpoint of rollout 0"
    assert found["machine.save"]["lost_steps"] == 1
