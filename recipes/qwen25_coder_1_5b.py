"""Qwen2.5-Coder-1.5B-Instruct on one node: the small preset, to see a cluster work before a large model is paid for.

    slime-swe train recipe=qwen25_coder_1_5b data.train=[path/to/tasks.jsonl]

What is not stated here (algorithm, machine, sizes, what it trains on without `data.train`) is in `gpu_defaults.py`.

What to expect: nothing is published for agentic training of this model, and this recipe has not been run on GPUs.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Architecture, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import ROLLOUT, SERVING, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen25_coder_1_5b",
        description="Qwen2.5-Coder-1.5B-Instruct, 16k context, GRPO",
        checkpoint="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        architecture=Architecture(
            family="qwen2",
            layers=28,
            hidden=1536,
            ffn=8960,
            heads=12,
            kv_heads=2,
            head_dim=128,
            vocab=151936,
            tied=True,
            rope_theta=1e6,
            rms_eps=1e-6,
            qkv_bias=True,
            qk_norm=False,
            max_context=32768,
        ),
        parallel=Parallel(tp=1, max_tokens_per_gpu=16384, recompute="full"),
        serving=replace(SERVING, gpus_per_engine=1),
        rollout=replace(ROLLOUT, max_turns=30, max_context=16384, time_budget=600.0),
    )
