"""The cases by their names, and a gate that is played where this machine can."""

from __future__ import annotations

import pytest

from slime_swe.errors import UserError
from slime_swe.rewards.grade import GradingSettings
from slime_swe.rewards.redteam.cases import Case, attacks, benign_cases
from slime_swe.rewards.redteam.gate import Result, run_gate
from slime_swe.sandbox.bubblewrap import ForkServerError
from tests.rewards.swebench_here import find_harness_python

EVERYTHING = {case.name: case for case in (*attacks(), *benign_cases())}


async def played(sandbox: str, grader: str, chosen: list[Case] | None = None) -> Result:
    """Skipped where this machine lacks what it needs."""
    settings = GradingSettings(harness_python=find_harness_python() or "")
    try:
        return await run_gate(sandbox, grader, settings=settings, cases=chosen)
    except (UserError, ForkServerError) as error:
        pytest.skip(str(error))
