"""Qwen2.5-Coder-1.5B-Instruct on one node: the smallest, to see a cluster work.

    slime-swe train recipe=qwen25_coder_1_5b

It trains on the tasks of SWE-smith with the smallest patches and the fewest tests: a model of this size solves hardly
any issue of a real repository, and a group of which none is solved teaches nothing.

Tool calls: unknown of this size. Larger ones of the family hardly write the form that their template asks for, but
those that `model.tool_format=qwen25_coder` reads; a reply without a call is answered with one of them.

First: a warm start, since no group teaches in which every episode fails. RUN has episodes of models with this
vocabulary, its own or a larger Coder's; those that solved their task are trained before the first rollout
(docs/warm_start.md).

    slime-swe sft RUN --out solved.jsonl
    slime-swe train recipe=qwen25_coder_1_5b warm_start.data=solved.jsonl

Follows: nothing. No agentic training of this model is published.

Expect: no score. `solve_rate` above 0 in the first rollouts; if it is 0, the filter drops every group and the run says
so: then train on `synthetic:train` first. On SWE-bench Verified about 0 before and after.

Forecast: 3 % of the episodes solve their task: assumed, since nothing is published of such tasks. Batches are of 16
tasks, so that a step takes less than an hour.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes.base import Data, Forecast, Parallel, Recipe
from slime_swe.recipes.gpu_defaults import ROLLOUT, SERVING, VERIFIED, gpu_recipe


def recipe() -> Recipe:
    return gpu_recipe(
        name="qwen25_coder_1_5b",
        description="Qwen2.5-Coder-1.5B-Instruct, 16k context, GRPO",
        checkpoint="Qwen/Qwen2.5-Coder-1.5B-Instruct",
        config={
            "model_type": "qwen2",
            "num_hidden_layers": 28,
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
            "rope_theta": 1000000.0,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32768,
        },
        tool_format="qwen25_coder",
        parallel=Parallel(tp=1, cp=2, max_tokens_per_gpu=8192, recompute="none"),
        serving=replace(SERVING, gpus_per_engine=1),
        rollout=replace(ROLLOUT, batch_size=16, max_turns=30, max_context=16384, time_budget=600.0),
        data=Data(train=["swesmith:train"], eval=VERIFIED, filters={"patch_lines": "1-10", "tests": "1-20"}),
        forecast=Forecast(solved=0.03),
    )
