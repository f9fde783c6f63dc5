"""Qwen3-Coder-30B-A3B-Instruct with training and sampling at once: two nodes train, 16 more GPUs serve.

    slime-swe train recipe=qwen3_coder_30b_a3b_async data.train=[path/to/tasks.jsonl]

`qwen3_coder_30b_a3b` on separate GPUs: sampling never stops, so slow episodes don't keep the trainer's GPUs waiting.
None is trained that began more than two optimizer steps earlier (`rollout.max_staleness`), and none is thrown away for
its age or its length. Truncated importance sampling bounds what the difference in weights may do; the clip range does
not, since the ratio's denominator comes from the weights that are trained.

What to expect: this recipe has not been run on GPUs; see `qwen3_coder_30b_a3b` for what is published.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes import qwen3_coder_30b_a3b
from slime_swe.recipes.base import Recipe


def recipe() -> Recipe:
    base = qwen3_coder_30b_a3b.recipe()
    return replace(
        base,
        name="qwen3_coder_30b_a3b_async",
        description="Qwen3-Coder-30B-A3B-Instruct, 64k context, asynchronous GRPO with routing replay",
        hardware="4 nodes of 8 x H100-80GB, two of them only to serve",
        cluster=replace(base.cluster, nodes=2, colocate=False, rollout_gpus=16),
        serving=replace(base.serving, mem_fraction=0.85),
        rollout=replace(base.rollout, schedule="continuous"),
        optimizer=replace(base.optimizer, cpu_offload=False),
    )
