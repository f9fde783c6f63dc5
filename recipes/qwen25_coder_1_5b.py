"""Qwen2.5-Coder-1.5B-Instruct on one node: the small preset, to see a cluster work before a large model is paid for.

    slime-swe train recipe=qwen25_coder_1_5b data.train=[path/to/tasks.jsonl]

The algorithm, the machine and what it trains on without `data.train` are those of `gpu_defaults.py`.

What to expect: nothing is published for agentic training of this model, and this recipe has not been run on GPUs.
"""

from __future__ import annotations

from slime_swe.recipes.base import Architecture, Model, Parallel, Recipe, Rollout, Serving
from slime_swe.recipes.gpu_defaults import ADAMW, GRPO, H100_NODE, RUN, SYNTHETIC, SYSTEM_PROMPT


def recipe() -> Recipe:
    return Recipe(
        name="qwen25_coder_1_5b",
        description="Qwen2.5-Coder-1.5B-Instruct, 16k context, GRPO",
        hardware="1 node of 8 x H100-80GB",
        engine="slime",
        model=Model(
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
        ),
        cluster=H100_NODE,
        parallel=Parallel(tp=1, max_tokens_per_gpu=16384, recompute="full"),
        serving=Serving(gpus_per_engine=1, concurrency=64, deterministic=False, mem_fraction=0.7),
        rollout=Rollout(
            batch_size=32,
            samples_per_task=8,
            max_turns=30,
            max_response=4096,
            max_context=16384,
            time_budget=600.0,
            sandbox_concurrency=64,
            system_prompt=SYSTEM_PROMPT,
        ),
        data=SYNTHETIC,
        algorithm=GRPO,
        optimizer=ADAMW,
        run=RUN,
    )
