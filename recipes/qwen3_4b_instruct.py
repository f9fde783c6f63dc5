"""Qwen3-4B-Instruct-2507 on one node: a small model that does not think aloud, with a long context.

    slime-swe train recipe=qwen3_4b_instruct

Everything but the model is `gpu_defaults.py`'s: SWE-Gym, 32k context, GRPO.

Tool calls: nothing is known of how often the untrained model writes Hermes' form, which its template asks for.

Follows: nothing. No agentic training of this model is published.

Expect: no score.

Forecast: 10 % of the episodes solve their task: assumed, since nothing is published.
"""

from __future__ import annotations

from slime_swe.recipes.base import Recipe
from slime_swe.recipes.forecast import Forecast
from slime_swe.recipes.gpu_defaults import gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen3_4b_instruct",
        description="Qwen3-4B-Instruct-2507, 32k context, GRPO",
        checkpoint="Qwen/Qwen3-4B-Instruct-2507",
        config={
            "model_type": "qwen3",
            "num_hidden_layers": 36,
            "hidden_size": 2560,
            "intermediate_size": 9728,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
            "rope_theta": 5000000,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 262144,
        },
        forecast=Forecast(solved=0.1),
    )
