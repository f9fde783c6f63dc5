"""Qwen3.5-4B, which thinks before each reply, three layers of four with linear attention, on one node: the medium
preset, and what `launch/run_qwen_swe.sh` trains on eight GPUs.

    slime-swe train recipe=qwen3_5_4b

What is not stated here is in `gpu_defaults.py`: SWE-Gym, GRPO. The chat template is ours, since the model's own drops
the reasoning of earlier turns. SLiME's linear attention has wrong gradients under context parallelism, which a function
of ours mends (`launch/slime/linear_attention.py`).

Tool calls: the untrained model solves 32.6 % of SWE-bench Verified through Claude Code by the calls of its template,
which SGLang's `qwen3_coder` parser read there (Dressage). Their share of replies is not published.

Follows: Dressage's training of this model with SLiME, on 293 tasks of SWE-Gym: tp 2, cp 4, 64k context, 80 turns,
16,000 tokens a turn, truncated importance sampling at 2, advantages that are not divided by the group's deviation,
synchronously. It had 16 episodes of each of 8 tasks, a KL penalty of 0.001 and Claude Code as its agent
(`rollout.agent=claude_code`), on four nodes.

Expect: this recipe has not been run on GPUs. Published on SWE-bench Verified, with 256k context and 160 turns: 32.6 %
before and 37.8 % after (Accio-Lab/Dressage at de8e869, docs/blackbox-swegym-claude-code-experiment-en.md), of one run.
One and the same model differs by 2 to 6 points between runs of the benchmark (arXiv:2602.07150).

Forecast: 32.6 % of the episodes solve their task, as published before training. A model that thinks samples more of its
context: 60 % are assumed.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Forecast, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import ROLLOUT, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen3_5_4b",
        description="Qwen3.5-4B, thinking, 64k context, GRPO",
        checkpoint="Qwen/Qwen3.5-4B",
        config={
            "model_type": "qwen3_5",
            "text_config": {
                "num_hidden_layers": 32,
                "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
                "hidden_size": 2560,
                "intermediate_size": 9216,
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
                "tie_word_embeddings": True,  # here for SLiME, and below for transformers: the file has both
            },
            "tie_word_embeddings": True,
        },
        chat_template="qwen3_5",
        parallel=Parallel(tp=2, cp=4, max_tokens_per_gpu=16384, recompute="full"),
        rollout=replace(ROLLOUT, max_turns=80, max_response=16384, max_context=65536, time_budget=1800.0),
        forecast=Forecast(solved=0.326, sampled=0.6),
    )
