"""Qwen3-Coder-30B-A3B-Instruct, a mixture of 128 experts, on one node.

    slime-swe train recipe=qwen3_coder_30b_a3b

What it changes from the algorithm in `gpu_defaults.py`, and why: rollout routing replay (arXiv:2510.11370), by which
the trainer sends each token to the experts that SGLang sent it to.

The optimizer's states stay in the node's memory (about 500 GiB), which lets the model fit 8 GPUs. With 128 sandboxes
and the routes of a batch, which SLiME sends whole to each GPU, a node needs more than 1 TiB.

Tool calls: the untrained model writes those of its template, now and then without the outer tags
(antoinezambelli/forge#56), which `qwen3_coder` reads too. Shares are not published.

Follows: uni-agent's training of this model on R2E-Gym, within one node: 64k tokens in place of 128k.

Expect: this recipe has not been run on GPUs. Published for this model on SWE-bench Verified: 46.2 % pass@1 before and
52.0 % after, with 128k context, where the same page measures 49.2 % of the untrained model; see
`qwen3_coder_30b_a3b_async`.

Forecast: 46.2 % of the episodes solve their task, as published before training.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Forecast, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import ADAMW, GRPO, H100_NODE, R2E_GYM, ROLLOUT, SERVING, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen3_coder_30b_a3b",
        description="Qwen3-Coder-30B-A3B-Instruct, 64k context, GRPO with routing replay",
        checkpoint="Qwen/Qwen3-Coder-30B-A3B-Instruct",
        config={
            "model_type": "qwen3_moe",
            "num_hidden_layers": 48,
            "hidden_size": 2048,
            "intermediate_size": 5472,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "vocab_size": 151936,
            "tie_word_embeddings": False,
            "rope_theta": 10000000,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 262144,
            "norm_topk_prob": True,
        },
        tool_format="qwen3_coder",
        cluster=replace(H100_NODE, memory_per_node=1536),
        parallel=Parallel(tp=4, cp=2, ep=8, etp=1, max_tokens_per_gpu=32768, recompute="full"),
        serving=replace(SERVING, gpus_per_engine=4, ep=4),
        rollout=replace(
            ROLLOUT, max_turns=100, max_response=8192, max_context=65536, time_budget=1800.0, sandbox_concurrency=128
        ),
        algorithm=replace(GRPO, routing_replay="rollout"),
        data=R2E_GYM,
        forecast=Forecast(solved=0.462),
        optimizer=replace(ADAMW, cpu_offload=True),
    )
