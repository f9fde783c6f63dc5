"""Our plug-ins as SLiME's contract tests call them: these pass no arguments of a run and samples without a task.

Each function fills in just that and calls ours. SLiME's tests find them by dotted path, in the top-level module
`plugins`, since `tests` is SLiME's own package there.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.slime_plugin import TaskDataSource
from slime_swe.rewards import slime_plugin as rewards

ARGS = {
    "hf_checkpoint": "unused",
    "rollout_max_context_len": 100,
    "rollout_seed": 3,
    "rollout_shuffle": False,
    "n_samples_per_prompt": 2,
    "load": None,
    "save": None,
    "sglang_router_ip": "127.0.0.1",
    "sglang_router_port": 1,
    "reward_key": None,
    "swe_tasks": ["synthetic:heldout"],
    "swe_agent": "native",
    "swe_tool_format": "hermes",
    "swe_system_prompt": "",
    "swe_max_turns": 6,
    "swe_time_budget": 20,
    "swe_sandbox": "local",
    "swe_sandbox_concurrency": 2,
    "swe_reward_mode": "plus_minus",
    "swe_max_attempts": 1,
    "swe_run_dir": tempfile.gettempdir(),
}


def of_a_run(args, **changes):
    given = {name: getattr(args, name) for name in dir(args) if not name.startswith("_")}
    return Namespace(**ARGS | given | changes)


class Source(TaskDataSource):
    def __init__(self, args):
        super().__init__(of_a_run(args))


async def reward(args, sample, **kwargs):
    samples = sample if isinstance(sample, list) else [sample]
    task = load_tasks(ARGS["swe_tasks"][0])[0]
    for each in samples:
        each.metadata |= {"task": task.to_dict(), "episode": {"patch": task.oracle.gold_patch, "counters": {}}}
    return await rewards.reward(of_a_run(args), sample, **kwargs)


def keep_group(args, samples, **kwargs):
    return rewards.keep_group(of_a_run(args), samples, **kwargs)


def post_process(args, samples):
    return rewards.post_process(of_a_run(args), samples)
