"""Qwen2.5-Coder-7B-Instruct on one node: the medium preset.

    slime-swe train recipe=qwen25_coder_7b data.train=[path/to/tasks.jsonl]

What is not stated here (algorithm, machine, sizes, what it trains on without `data.train`) is in `gpu_defaults.py`.

What to expect: little is published for agentic training of a 7B model, so no score is promised; this recipe has not
been run on GPUs.
"""

from __future__ import annotations

from slime_swe.recipes.base import Recipe
from slime_swe.recipes.gpu_defaults import gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen25_coder_7b",
        description="Qwen2.5-Coder-7B-Instruct, 32k context, GRPO",
        checkpoint="Qwen/Qwen2.5-Coder-7B-Instruct",
        config={
            "model_type": "qwen2",
            "num_hidden_layers": 28,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "tie_word_embeddings": False,
            "rope_theta": 1000000.0,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
        },
    )
