"""Qwen2.5-Coder-7B-Instruct on one node.

    slime-swe train recipe=qwen25_coder_7b

Everything but the model is `gpu_defaults.py`'s: 2,438 tasks of SWE-Gym, 32k context, GRPO. `docs/swe_gym_7b.md` has
every command from an empty machine to a run.

Tool calls: the untrained model writes JSON in a fence, bare, or in tags, and never in those that its template asks for
(vllm#32926, vllm#17821). `model.tool_format=qwen25_coder` reads each of these; a reply without a call is answered with
the form. How often it then calls a tool has not been measured.

First: a warm start, since no group teaches in which every episode fails. RUN has episodes of models with this
vocabulary, its own or a larger Coder's; those that solved their task are trained before the first rollout
(docs/warm_start.md).

    slime-swe sft RUN --out solved.jsonl
    slime-swe train recipe=qwen25_coder_7b warm_start.data=solved.jsonl

Follows: SWE-Gym (arXiv:2412.21139) for tasks and model. Its 7B model was fine-tuned on episodes that solve tasks, and
no more; no result of reinforcement learning alone is published for this model.

Expect: no score. Watch `solve_rate` of the trained tasks and the share of informative groups; where that falls below a
tenth, most of the machine's time is spent on groups that are dropped.

Forecast: 3 % of the episodes solve their task: assumed, half of what is published of the model with 32B parameters.
Most of the hours then go to groups that are dropped. After a warm start (docs/warm_start.md) plan with its own solve
rate: `forecast.solved=0.1`. Batches are of 12 tasks, so that a step takes less than an hour.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Forecast, Recipe
from slime_swe.recipes.gpu_defaults import ROLLOUT, gpu_recipe


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
        tool_format="qwen25_coder",
        rollout=replace(ROLLOUT, batch_size=12),
        forecast=Forecast(solved=0.03),
    )
