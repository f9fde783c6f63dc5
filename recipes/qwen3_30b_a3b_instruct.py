"""Qwen3-30B-A3B-Instruct-2507, a mixture of 128 experts that does not think aloud, with training and sampling at once:
one node trains, 24 more GPUs serve. The large preset.

    slime-swe train recipe=qwen3_30b_a3b_instruct

All but the model is `qwen3_coder_30b_a3b_async`'s. The Coder has been trained on such tasks by its makers
(qwenlm.github.io/blog/qwen3-coder); this model solves fewer before, and gains more.

Tool calls: the untrained model writes Hermes' form, which its template asks for: it is what users of vLLM's parser of
that form report on (vllm#22885, a fault of the parser). Shares are not published.

Follows: uni-agent's training of this model: R2E-Gym, 128k tokens, 100 turns, fully asynchronous. That was GSPO, which
is GRPO where a rollout has one optimizer step (docs/algorithms.md).

Expect: this recipe has not been run on GPUs. Published: 22.2 % on SWE-bench Verified before and 36.8 % after, the
largest gain of uni-agent's three (README.md at 6f4a7c9, which checks in no script for it).

Forecast: 22.2 % of the episodes solve their task, as published before training.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes import qwen3_coder_30b_a3b_async
from slime_swe.recipes.base import Forecast, Model, Recipe


def recipe() -> Recipe:
    base = qwen3_coder_30b_a3b_async.recipe()
    return replace(
        base,
        name="qwen3_30b_a3b_instruct",
        description="Qwen3-30B-A3B-Instruct-2507, 128k context, asynchronous GRPO with routing replay",
        model=Model(
            checkpoint="Qwen/Qwen3-30B-A3B-Instruct-2507",
            config={
                "model_type": "qwen3_moe",
                "num_hidden_layers": 48,
                "hidden_size": 2048,
                "intermediate_size": 6144,
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
        ),
        forecast=Forecast(solved=0.222),
    )
