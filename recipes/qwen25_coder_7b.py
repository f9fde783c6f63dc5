"""Qwen2.5-Coder-7B-Instruct on one node: the medium preset.

    slime-swe train recipe=qwen25_coder_7b data.train=[path/to/tasks.jsonl]

The algorithm, the machine and what it trains on without `data.train` are those of `gpu_defaults.py`.

What to expect: little is published for agentic training of a 7B model, so no score is promised; this recipe has not
been run on GPUs.
"""

from __future__ import annotations

from slime_swe.recipes.base import Architecture, Model, Parallel, Recipe, Rollout, Serving
from slime_swe.recipes.gpu_defaults import ADAMW, GRPO, H100_NODE, RUN, SYNTHETIC, SYSTEM_PROMPT


def recipe() -> Recipe:
    return Recipe(
        name="qwen25_coder_7b",
        description="Qwen2.5-Coder-7B-Instruct, 32k context, GRPO",
        hardware="1 node of 8 x H100-80GB",
        engine="slime",
        model=Model(
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
