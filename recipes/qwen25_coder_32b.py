"""Qwen2.5-Coder-32B-Instruct on four nodes.

    slime-swe train recipe=qwen25_coder_32b

What is not stated here is in `gpu_defaults.py`. Sandboxes are on all four nodes, whose cores they need.

On one node: cluster.nodes=1 parallel.cp=1 parallel.max_tokens_per_gpu=32768 parallel.recompute=full
optimizer.cpu_offload=true rollout.sandbox=docker rollout.sandbox_concurrency=96

Tool calls: the untrained model was seen to write JSON in `<tools>` where its template asks for `<tool_call>`
(vllm#10952). `model.tool_format=qwen25_coder` reads both, and JSON in a fence or bare. Shares have not been measured.

First: a warm start, since no group teaches in which every episode fails. RUN has episodes of models with this
vocabulary, its own among them; those that solved their task are trained before the first rollout
(docs/warm_start.md).

    slime-swe sft RUN --out solved.jsonl
    slime-swe train recipe=qwen25_coder_32b warm_start.data=solved.jsonl

Follows: DeepSWE in tasks (R2E-Gym), turns and what it leaves out of GRPO, for a model that does not think.

Expect: no score. 61.4 % pass@1 on SWE-bench Verified is published for this model after fine-tuning on expert episodes
and then GRPO (SWE-World, arXiv:2602.03419).

Forecast: 6.2 % of the episodes solve their task, as is published there of the untrained model on SWE-bench Verified.
After the warm start fewer groups would be dropped.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Forecast, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import H100_NODE, R2E_GYM, ROLLOUT, SERVING, gpu_recipe


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
        tool_format="qwen25_coder",
        hardware="4 nodes of 8 x H100-80GB",
        cluster=replace(H100_NODE, nodes=4),
        parallel=Parallel(tp=8, cp=4, max_tokens_per_gpu=8192, recompute="none"),
        serving=replace(SERVING, gpus_per_engine=4),
        rollout=replace(ROLLOUT, time_budget=1200.0, sandbox="ray:docker"),
        data=R2E_GYM,
        forecast=Forecast(solved=0.062),
    )
