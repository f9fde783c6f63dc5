"""Qwen2.5-Coder-7B-Instruct on one node: the medium preset.

    slime-swe train recipe=qwen25_coder_7b data.train=[path/to/tasks.jsonl]

What is not stated here (algorithm, machine, sizes, what it trains on without `data.train`) is in `gpu_defaults.py`.

What to expect: little is published for agentic training of a 7B model, so no score is promised; this recipe has not
been run on GPUs.
"""

from __future__ import annotations

from slime_swe.recipes.base import Architecture, Recipe
from slime_swe.recipes.gpu_defaults import gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen25_coder_7b",
        description="Qwen2.5-Coder-7B-Instruct, 32k context, GRPO",
        checkpoint="Qwen/Qwen2.5-Coder-7B-Instruct",
        architecture=Architecture(
            family="qwen2",
            layers=28,
            hidden=3584,
            ffn=18944,
            heads=28,
            kv_heads=4,
            head_dim=128,
            vocab=152064,
            tied=False,
            rope_theta=1e6,
            rms_eps=1e-6,
            qkv_bias=True,
            qk_norm=False,
            max_context=32768,
        ),
    )
