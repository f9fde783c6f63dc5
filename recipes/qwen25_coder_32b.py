"""Qwen2.5-Coder-32B-Instruct on four nodes: the large dense preset.

    slime-swe train recipe=qwen25_coder_32b data.train=[path/to/tasks.jsonl]

The algorithm, the machine and what it trains on without `data.train` are those of `gpu_defaults.py`.

On one node: cluster.nodes=1 parallel.cp=1 parallel.max_tokens_per_gpu=32768 optimizer.cpu_offload=true

What to expect: this recipe has not been run on GPUs. Published for this model on SWE-bench Verified: 61.4 % pass@1
after fine-tuning on expert episodes, which this recipe does not do, and then GRPO.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Architecture, Model, Parallel, Recipe, Rollout, Serving
from slime_swe.recipes.gpu_defaults import ADAMW, GRPO, H100_NODE, RUN, SYNTHETIC, SYSTEM_PROMPT


def recipe() -> Recipe:
    return Recipe(
        name="qwen25_coder_32b",
        description="Qwen2.5-Coder-32B-Instruct, 32k context, GRPO",
        hardware="4 nodes of 8 x H100-80GB",
        engine="slime",
        model=Model(
            checkpoint="Qwen/Qwen2.5-Coder-32B-Instruct",
            architecture=Architecture(
                family="qwen2",
                layers=64,
                hidden=5120,
                ffn=27648,
                heads=40,
                kv_heads=8,
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
        cluster=replace(H100_NODE, nodes=4),
        parallel=Parallel(tp=8, cp=2, max_tokens_per_gpu=16384, recompute="full"),
        serving=Serving(gpus_per_engine=4, concurrency=64, deterministic=False, mem_fraction=0.7),
        rollout=Rollout(
            batch_size=32,
            samples_per_task=8,
            max_turns=50,
            max_response=4096,
            max_context=32768,
            time_budget=1200.0,
            sandbox_concurrency=64,
            system_prompt=SYSTEM_PROMPT,
        ),
        data=SYNTHETIC,
        algorithm=GRPO,
        optimizer=ADAMW,
        run=RUN,
    )
