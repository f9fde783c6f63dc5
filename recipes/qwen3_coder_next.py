"""Qwen3-Coder-Next, 80 B parameters of which 3 B are active, three layers of four with linear attention, on eight
nodes.

    slime-swe train recipe=qwen3_coder_next

What is not stated here is in `gpu_defaults.py`. SLiME computes linear attention on every rank of a tensor- and
context-parallel group, so both sizes are small, and the layers are spread by pipeline. Its gradients under
context parallelism are wrong, which a function of ours mends (`launch/slime/linear_attention.py`).

Tool calls: the untrained model writes those of its template, and was seen to leave arguments out (vmlx#192). Shares are
not published.

Follows: uni-agent's settings for Qwen3-Coder-30B-A3B (R2E-Gym, 128k tokens, 100 turns). No training of this model is
published.

Expect: no score. uni-agent measures 67.6 % pass@1 on SWE-bench Verified of the untrained model, with 300 turns; most
tasks of R2E-Gym may be solved by every episode of a group, and dropped.

Forecast: 67.6 % of the episodes solve their task, as measured of the untrained model.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Forecast, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import GRPO, H100_NODE, R2E_GYM, ROLLOUT, SERVING, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen3_coder_next",
        description="Qwen3-Coder-Next, 128k context, GRPO with routing replay",
        checkpoint="Qwen/Qwen3-Coder-Next",
        config={
            "model_type": "qwen3_next",
            "num_hidden_layers": 48,
            "full_attention_interval": 4,
            "hidden_size": 2048,
            "intermediate_size": 5120,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "partial_rotary_factor": 0.25,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_value_head_dim": 128,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "norm_topk_prob": True,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "rope_theta": 5000000,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 262144,
        },
        tool_format="qwen3_coder",
        hardware="8 nodes of 8 x H100-80GB, 4 TiB for checkpoints",
        cluster=replace(H100_NODE, nodes=8, disk_per_node=16384),
        parallel=Parallel(tp=2, pp=2, cp=4, ep=16, max_tokens_per_gpu=32768, recompute="full"),
        serving=replace(SERVING, gpus_per_engine=4, ep=4, mem_fraction=0.75),
        rollout=replace(
            ROLLOUT, max_turns=100, max_response=8192, max_context=131072, time_budget=1800.0, sandbox="ray:docker"
        ),
        data=R2E_GYM,
        forecast=Forecast(solved=0.676),
        algorithm=replace(GRPO, routing_replay="rollout"),
    )
