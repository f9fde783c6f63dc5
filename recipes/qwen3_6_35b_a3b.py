"""Qwen3.6-35B-A3B, which thinks before each reply: 256 experts, and linear attention in three layers of four. Eight
nodes.

    slime-swe train recipe=qwen3_6_35b_a3b

What is not stated here is in `gpu_defaults.py`. The chat template is ours, since the model's own drops the reasoning of
earlier turns. SLiME's linear attention has wrong gradients under context parallelism, which a function of ours mends
(`launch/slime/linear_attention.py`).

Tool calls: the untrained model writes those of its template; long edits were seen malformed (maclocal-api#141). Shares
are not published.

Follows: SLiME's own example of training a coding agent, for this model: eight nodes, tp 2, ep 8, whole layers
recomputed, the optimizer's states in the machines' memory, engines of eight GPUs with data-parallel attention, 96k
context, 32k tokens a turn. Its agent is Claude Code (`rollout.agent=claude_code`).

Each request names the GPU of an engine that has its episode's prefix (docs/slime_flags.md).

Expect: no score: none is published of that example. This recipe has not been run on GPUs.

Forecast: 73.4 % of the episodes solve their task, as its makers measured on SWE-bench Verified. That a model which
thinks samples 60 % of its episodes' tokens is assumed.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Forecast, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import ADAMW, GRPO, H100_NODE, ROLLOUT, SERVING, SWE_REBENCH, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen3_6_35b_a3b",
        description="Qwen3.6-35B-A3B, thinking, 96k context, GRPO with routing replay",
        checkpoint="Qwen/Qwen3.6-35B-A3B",
        config={
            "model_type": "qwen3_5_moe",
            "text_config": {
                "num_hidden_layers": 40,
                "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
                "hidden_size": 2048,
                "num_attention_heads": 16,
                "num_key_value_heads": 2,
                "head_dim": 256,
                "attn_output_gate": True,
                "linear_conv_kernel_dim": 4,
                "linear_key_head_dim": 128,
                "linear_num_key_heads": 16,
                "linear_num_value_heads": 32,
                "linear_value_head_dim": 128,
                "num_experts": 256,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 512,
                "shared_expert_intermediate_size": 512,
                "rope_parameters": {"rope_theta": 10000000, "partial_rotary_factor": 0.25, "rope_type": "default"},
                "rms_norm_eps": 1e-6,
                "vocab_size": 248320,
                "max_position_embeddings": 262144,
            },
            "tie_word_embeddings": False,
        },
        chat_template="qwen3_5",
        hardware="8 nodes of 8 x H100-80GB",
        cluster=replace(H100_NODE, nodes=8),
        parallel=Parallel(tp=2, cp=8, ep=8, max_tokens_per_gpu=12288, recompute="full"),
        serving=replace(SERVING, gpus_per_engine=8, ep=8, dp_attention=True, mem_fraction=0.7),
        rollout=replace(
            ROLLOUT, max_turns=100, max_response=32768, max_context=98304, time_budget=1800.0, sandbox="ray:docker"
        ),
        data=SWE_REBENCH,
        forecast=Forecast(solved=0.734, sampled=0.6),
        algorithm=replace(GRPO, routing_replay="rollout"),
        optimizer=replace(ADAMW, cpu_offload=True),
    )
