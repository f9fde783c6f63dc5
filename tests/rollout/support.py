"""What the plug-in tests share: SLiME's `args`, a sample of a small task, and what a scripted policy says."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from _pytest.mark import ParameterSet

from slime_swe.data_sources.slime_plugin import metadata_of
from slime_swe.errors import UserError
from slime_swe.rollout.client import Generation
from slime_swe.sample import Sample
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.pool import SandboxPool
from tests.data_sources.tasks import make_task

END = "<|im_end|>"


@asynccontextmanager
async def overlay_pool(concurrency: int) -> AsyncIterator[SandboxPool]:
    """Skips the test where overlay sandboxes do not work."""
    async with SandboxPool("overlay", concurrency=concurrency) as made:
        try:
            await made._backend.start()
        except (UserError, SandboxError) as error:
            pytest.skip(f"overlay sandboxes do not work here: {error}")
        yield made


def call(tool: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


VIEW = call("view", path="calc.py") + END
FIX = call("str_replace", path="calc.py", old_str="a - b", new_str="a + b") + END
TEST = call("run_tests") + END
SUBMIT = call("submit") + END

PARAMS = {"max_new_tokens": 200, "temperature": 1.0, "top_p": 1.0, "stop": None, "stop_token_ids": None}


def make_args(checkpoint: str, url: str, tmp_path: Path, **changes) -> Namespace:
    address = urlsplit(url)
    values = {
        "hf_checkpoint": checkpoint,
        "rollout_max_context_len": 4096,
        "rollout_seed": 3,
        "sglang_router_ip": address.hostname,
        "sglang_router_port": address.port,
        "sglang_enable_deterministic_inference": True,
        "reward_key": None,
        "swe_agent": "native",
        "swe_tool_format": "hermes",
        "swe_system_prompt": "Be brief.",
        "swe_max_turns": 6,
        "swe_time_budget": 20,
        "swe_sandbox": "local",
        "swe_sandbox_concurrency": 4,
        "swe_reward_mode": "binary",
        "swe_max_attempts": 2,
        "swe_run_dir": str(tmp_path / "run"),
    }
    return Namespace(**{**values, **changes})


def make_sample(index: int = 5, **changes) -> Sample:
    task = make_task()
    return Sample(index=index, group_index=2, prompt=task.statement, metadata=metadata_of(task), **changes)


async def no_reward(args, sample):
    return 0.0


def of_agents(*names: str) -> list[ParameterSet]:
    """A row for each agent; every run takes mini_swe_agent's, which needs no npm and is the quickest."""
    return [
        pytest.param(name, marks=[] if name == "mini_swe_agent" else [pytest.mark.extended("agents")]) for name in names
    ]


def said(tokens: list[int], log_probs: list[float], version: str | None = None, **more: Any) -> Generation:
    """What an engine sampled, with weights of one version."""
    return Generation(tokens, log_probs, "stop", version_spans=((version, len(tokens)),), **more)
