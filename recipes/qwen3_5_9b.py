"""Qwen3.5-9B, which thinks before each reply, three layers of four with linear attention, on three nodes.

    slime-swe train recipe=qwen3_5_9b

What is not stated here is in `gpu_defaults.py`. One node trains and two serve, all at once (`rollout.schedule`). The
chat template is ours, since the model's own drops the reasoning of earlier turns. SLiME's linear attention has wrong
gradients under context parallelism, which a function of ours mends (`launch/slime/linear_attention.py`).

Tool calls: the untrained model writes those of its template (QwenLM/Qwen3.8#125); how often is not published.

Follows: uni-agent's training of this model on SWE-rebench: GRPO, fully asynchronous, 100 turns, 128k context.

Expect: this recipe has not been run on GPUs. Published on SWE-bench Verified: 53.8 % pass@1 before and 59.2 % after,
with 128k context.

Forecast: 53.8 % of the episodes solve their task, as published before training. That a model which thinks samples 60 %
of its episodes' tokens is assumed.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Forecast, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import ADAMW, H100_NODE, ROLLOUT, SERVING, SWE_REBENCH, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen3_5_9b",
        description="Qwen3.5-9B, thinking, 128k context, asynchronous GRPO",
        checkpoint="Qwen/Qwen3.5-9B",
        config={
            "model_type": "qwen3_5",
            "text_config": {
                "num_hidden_layers": 32,
                "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
                "hidden_size": 4096,
                "intermediate_size": 12288,
                "num_attention_heads": 16,
                "num_key_value_heads": 4,
                "head_dim": 256,
                "attn_output_gate": True,
                "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
                "linear_value_head_dim": 128,
                "rope_parameters": {"rope_theta": 10000000, "partial_rotary_factor": 0.25, "rope_type": "default"},
                "rms_norm_eps": 1e-6,
                "vocab_size": 248320,
                "max_position_embeddings": 262144,
            },
            "tie_word_embeddings": False,
        },
        chat_template="qwen3_5",
        hardware="3 nodes of 8 x H100-80GB, two of them only to serve",
        cluster=replace(H100_NODE, nodes=1, colocate=False, rollout_gpus=16),
        parallel=Parallel(tp=2, cp=4, max_tokens_per_gpu=32768, recompute="full"),
        serving=replace(SERVING, gpus_per_engine=2, mem_fraction=0.85),
        rollout=replace(
            ROLLOUT,
            max_turns=100,
            max_response=32768,
            max_context=131072,
            time_budget=1800.0,
            schedule="continuous",
            sandbox="ray:docker",
        ),
        data=SWE_REBENCH,
        optimizer=replace(ADAMW, cpu_offload=True),
        forecast=Forecast(solved=0.538, sampled=0.6),
    )
