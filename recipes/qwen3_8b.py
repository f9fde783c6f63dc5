"""Qwen3-8B, which thinks before each reply, on one node.

    slime-swe train recipe=qwen3_8b

What is not stated here is in `gpu_defaults.py`: SWE-Gym, GRPO. The context is as long as the model was made for.
Reasoning is part of what the policy samples and is trained; the chat template is ours, since the model's own drops the
reasoning of earlier turns.

Tool calls: nothing is published of how often the untrained model writes Hermes' form, which its template asks for.
Larger ones of its kind write it (sglang#7769, of Qwen3-30B-A3B), now and then with more than one object between the
tags (vllm#17790, of Qwen3-32B).

Follows: `qwen3_32b`, within one node.

Expect: no score. No training of this model by reinforcement learning alone is published. SWE-Lego's authors report
42.2 % on SWE-bench Verified after fine-tuning on episodes (swe-lego.github.io), which docs/warm_start.md does.

Forecast: 15 % of the episodes solve their task: assumed, between a smaller model of its kind and Qwen3-32B's 23 %. A
model that thinks fills more of so short a context, and samples more of it: 85 % and 60 % are assumed. Batches are of 12
tasks, so that a step takes less than an hour.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Forecast, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import ROLLOUT, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen3_8b",
        description="Qwen3-8B, thinking, 40k context, GRPO",
        checkpoint="Qwen/Qwen3-8B",
        config={
            "model_type": "qwen3",
            "num_hidden_layers": 36,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "rope_theta": 1000000,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 40960,
        },
        chat_template="qwen3",
        parallel=Parallel(tp=2, cp=4, max_tokens_per_gpu=10240, recompute="full"),
        rollout=replace(ROLLOUT, batch_size=12, max_response=16384, max_context=40960, time_budget=1800.0),
        forecast=Forecast(solved=0.15, context=0.85, sampled=0.6),
    )
