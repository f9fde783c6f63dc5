"""Tests against the own code of miles, SLiME's fork, on a CPU. They run where its checkouts and packages are:

    MILES_HOME=... MEGATRON_HOME=... PYTHON -m pytest tests/contract_miles

`docs/miles.md` says how to get these. Run them by themselves: the shims change `torch` for the whole process.
"""

from __future__ import annotations

import pytest

from slime_swe.launch.slime.checkouts import MILES
from slime_swe.launch.slime.checkouts import MILES_MEGATRON as MEGATRON
from tests.contract.checkouts import first_or_skip, put_on_path

put_on_path(MILES, MEGATRON)


@pytest.fixture(scope="session", autouse=True)
def miles_home():
    """miles' checkout, with the shims in place."""
    home = first_or_skip(MILES, MEGATRON)
    from slime_swe.launch.slime_cpu.shims import without_cuda

    without_cuda()
    return home
