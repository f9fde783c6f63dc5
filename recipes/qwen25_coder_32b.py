"""Qwen2.5-Coder-32B-Instruct on four nodes: the large dense preset.

    slime-swe train recipe=qwen25_coder_32b data.train=[path/to/tasks.jsonl]

What is not stated here (algorithm, machine, sizes, what it trains on without `data.train`) is in `gpu_defaults.py`.

On one node: cluster.nodes=1 parallel.cp=1 parallel.max_tokens_per_gpu=32768 optimizer.cpu_offload=true
rollout.sandbox_concurrency=96

What to expect: this recipe has not been run on GPUs. Published for this model on SWE-bench Verified: 61.4 % pass@1
after fine-tuning on expert episodes, which this recipe does not do, and then GRPO.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Architecture, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import H100_NODE, ROLLOUT, SERVING, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen25_coder_32b",
        description="Qwen2.5-Coder-32B-Instruct, 32k context, GRPO",
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
        hardware="4 nodes of 8 x H100-80GB",
        cluster=replace(H100_NODE, nodes=4),
        parallel=Parallel(tp=8, cp=2, max_tokens_per_gpu=16384, recompute="full"),
        serving=replace(SERVING, gpus_per_engine=4),
        rollout=replace(ROLLOUT, time_budget=1200.0),
    )
