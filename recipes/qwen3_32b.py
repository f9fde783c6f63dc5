"""Qwen3-32B, which thinks before each reply, on four nodes.

    slime-swe train recipe=qwen3_32b

What is not stated here is in `gpu_defaults.py`. Reasoning is part of what the policy samples and is trained; the chat
template is ours, since the model's own drops the reasoning of earlier turns.

Tool calls: nothing is known of how often the untrained model writes Hermes' form, which its template asks for; the
published scores are with those projects' own forms.

Follows: DeepSWE (rLLM) and SA-SWE-32B (SkyRL), which both train this model on R2E-Gym for 50 turns without a KL
penalty: context of as many tokens as the model was made for, 8 episodes of a task, lr 1e-6. docs/recipes.md compares
the rest.

Expect: this recipe has not been run on GPUs. Published on SWE-bench Verified: 23 % pass@1 before and 42.2 % after
(DeepSWE, 64 H100 for six days), 24.4 % before and 39.4 % after (SA-SWE-32B).

Forecast: 23 % of the episodes solve their task, as published before training. A model that thinks fills more of so
short a context, and samples more of it: 85 % and 60 % are assumed, since no lengths are published. Batches are of 24
tasks, so that a step takes less than an hour.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Forecast, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import H100_NODE, R2E_GYM, ROLLOUT, SERVING, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen3_32b",
        description="Qwen3-32B, thinking, 40k context, GRPO",
        checkpoint="Qwen/Qwen3-32B",
        config={
            "model_type": "qwen3",
            "num_hidden_layers": 64,
            "hidden_size": 5120,
            "intermediate_size": 25600,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "rope_theta": 1000000,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 40960,
        },
        chat_template="qwen3",
        hardware="4 nodes of 8 x H100-80GB",
        cluster=replace(H100_NODE, nodes=4),
        parallel=Parallel(tp=8, cp=4, max_tokens_per_gpu=10240, recompute="none"),
        serving=replace(SERVING, gpus_per_engine=4),
        rollout=replace(
            ROLLOUT,
            batch_size=24,
            max_response=16384,
            max_context=40960,
            time_budget=1800.0,
            sandbox="ray:docker",
        ),
        data=R2E_GYM,
        forecast=Forecast(solved=0.23, context=0.85, sampled=0.6),
    )
