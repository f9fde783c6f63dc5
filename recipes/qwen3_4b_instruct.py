"""Qwen3-4B-Instruct-2507 on one node: the small preset, a model that does not think aloud, to see a cluster work before
a large one is paid for.

    slime-swe train recipe=qwen3_4b_instruct

What is not stated here is in `gpu_defaults.py`: SWE-Gym, GRPO. The context is 64k of the 262k that the model was made
for: a step takes 40 minutes by the planner, and 26 with 32k (`rollout.max_context=32768
parallel.max_tokens_per_gpu=8192 parallel.recompute=none`), where more episodes end for want of room.

Tool calls: the untrained model was seen to write Hermes' form, which its template asks for
(openvinotoolkit/model_server#3838). Shares are not published.

Follows: nothing. No agentic training of this model is published.

Expect: no score.

Forecast: 10 % of the episodes solve their task: assumed, since nothing is published. Batches are of 16 tasks, so that a
step takes less than an hour.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Forecast, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import ROLLOUT, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen3_4b_instruct",
        description="Qwen3-4B-Instruct-2507, 64k context, GRPO",
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
        parallel=Parallel(tp=2, cp=4, max_tokens_per_gpu=16384, recompute="full"),
        rollout=replace(ROLLOUT, batch_size=16, max_context=65536),
        forecast=Forecast(solved=0.1),
    )
