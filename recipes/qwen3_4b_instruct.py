"""Qwen3-4B-Instruct-2507 on one node: a small model that does not think aloud, with a long context.

    slime-swe train recipe=qwen3_4b_instruct data.train=[path/to/tasks.jsonl]

What is not stated here (algorithm, machine, sizes, what it trains on without `data.train`) is in `gpu_defaults.py`.

What to expect: no score is promised, and this recipe has not been run on GPUs.
"""

from __future__ import annotations

from slime_swe.recipes.base import Architecture, Recipe
from slime_swe.recipes.gpu_defaults import gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen3_4b_instruct",
        description="Qwen3-4B-Instruct-2507, 32k context, GRPO",
        checkpoint="Qwen/Qwen3-4B-Instruct-2507",
        architecture=Architecture(
            family="qwen3",
            layers=36,
            hidden=2560,
            ffn=9728,
            heads=32,
            kv_heads=8,
            head_dim=128,
            vocab=151936,
            tied=True,
            rope_theta=5e6,
            rms_eps=1e-6,
            qkv_bias=False,
            qk_norm=True,
            max_context=262144,
        ),
    )
