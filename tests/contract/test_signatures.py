"""Our hooks against the calls that SLiME's code makes."""

from __future__ import annotations

import inspect
import re

import pytest

from slime_swe.data_sources import slime_plugin as data
from slime_swe.rewards import slime_plugin as rewards
from slime_swe.rollout import slime_plugin as rollout

CALLS = [  # file of SLiME's, the call as it is written there, our function
    (
        "slime/observability/rollout_metrics.py",
        "custom_log_func(rollout_id, args, samples, rollout_extra_metrics, rollout_time)",
        rollout.log_rollout,
    ),
    (
        "slime/observability/rollout_metrics.py",
        "custom_log_func(rollout_id, args, data, extra_metrics)",
        rollout.log_evaluation,
    ),
    (
        "slime/ray/rollout.py",
        "self.custom_reward_post_process_func(self.args, samples)",
        rewards.post_process,
    ),
    (
        "slime/rollout/sglang_rollout.py",
        "custom_generate_func(args, sample, sampling_params, evaluation=evaluation)",
        rollout.generate,
    ),
    ("slime/ray/rollout.py", "data_source_cls(args)", data.TaskDataSource),
]


@pytest.mark.parametrize(("file", "call", "function"), CALLS, ids=[function.__name__ for *_, function in CALLS])
def test_slime_calls_our_function_as_it_is_declared(slime_home, file, call, function):
    assert call in re.sub(r"\s+", " ", (slime_home / file).read_text())
    names = [name.strip().removeprefix("self.") for name in call[call.index("(") + 1 : -1].split(",")]
    positional = [name for name in names if "=" not in name]
    keywords = {name.partition("=")[0]: None for name in names if "=" in name}
    inspect.signature(function).bind(*positional, **keywords)
