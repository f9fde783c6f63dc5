"""Qwen2.5-Coder-32B-Instruct on four nodes: the large dense preset.

    slime-swe train recipe=qwen25_coder_32b data.train=[path/to/tasks.jsonl]

What is not stated here (algorithm, machine, sizes, what it trains on without `data.train`) is in `gpu_defaults.py`.

On one node: cluster.nodes=1 parallel.cp=1 parallel.max_tokens_per_gpu=32768 optimizer.cpu_offload=true

What to expect: this recipe has not been run on GPUs. Published for this model on SWE-bench Verified: 61.4 % pass@1
after fine-tuning on expert episodes, which this recipe does not do, and then GRPO.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Parallel, Recipe
from slime_swe.recipes.gpu_defaults import H100_NODE, ROLLOUT, SERVING, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen25_coder_32b",
        description="Qwen2.5-Coder-32B-Instruct, 32k context, GRPO",
        checkpoint="Qwen/Qwen2.5-Coder-32B-Instruct",
        config={
            "model_type": "qwen2",
            "num_hidden_layers": 64,
            "hidden_size": 5120,
            "intermediate_size": 27648,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
            "rope_theta": 1000000.0,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
        },
        hardware="4 nodes of 8 x H100-80GB",
        cluster=replace(H100_NODE, nodes=4),
        parallel=Parallel(tp=8, cp=2, max_tokens_per_gpu=16384, recompute="full"),
        serving=replace(SERVING, gpus_per_engine=4),
        rollout=replace(ROLLOUT, time_budget=1200.0),
    )
