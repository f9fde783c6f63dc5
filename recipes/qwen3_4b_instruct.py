"""Qwen3-4B-Instruct-2507 on one node: a small model that does not think aloud, with a long context.

    slime-swe train recipe=qwen3_4b_instruct data.train=[path/to/tasks.jsonl]

The algorithm, the machine and what it trains on without `data.train` are those of `gpu_defaults.py`.

What to expect: no score is promised, and this recipe has not been run on GPUs.
"""

from __future__ import annotations

from slime_swe.recipes.base import Architecture, Model, Parallel, Recipe, Rollout, Serving
from slime_swe.recipes.gpu_defaults import ADAMW, GRPO, H100_NODE, RUN, SYNTHETIC, SYSTEM_PROMPT


def recipe() -> Recipe:
    return Recipe(
        name="qwen3_4b_instruct",
        description="Qwen3-4B-Instruct-2507, 32k context, GRPO",
        hardware="1 node of 8 x H100-80GB",
        engine="slime",
        model=Model(
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
        ),
        cluster=H100_NODE,
        parallel=Parallel(tp=2, cp=2, max_tokens_per_gpu=16384, recompute="full"),
        serving=Serving(gpus_per_engine=2, concurrency=64, deterministic=False, mem_fraction=0.7),
        rollout=Rollout(
            batch_size=32,
            samples_per_task=8,
            max_turns=50,
            max_response=4096,
            max_context=32768,
            time_budget=900.0,
            sandbox_concurrency=64,
            system_prompt=SYSTEM_PROMPT,
        ),
        data=SYNTHETIC,
        algorithm=GRPO,
        optimizer=ADAMW,
        run=RUN,
    )
