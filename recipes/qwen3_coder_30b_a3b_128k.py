"""Qwen3-Coder-30B-A3B-Instruct with episodes of 128k tokens, on four nodes.

    slime-swe train recipe=qwen3_coder_30b_a3b_128k

`qwen3_coder_30b_a3b` with a longer context: each sequence is spread over eight GPUs' worth of context parallelism, and
four nodes are enough GPUs to keep the optimizer's states on them. One copy of the model is all that they hold.
Sandboxes are on all nodes.

Tool calls: as of `qwen3_coder_30b_a3b`.

Follows: uni-agent's training of this model on R2E-Gym, synchronously.

Expect: this recipe has not been run on GPUs; see `qwen3_coder_30b_a3b` for what is published.
"""

from __future__ import annotations

from dataclasses import replace

from slime_swe.recipes import qwen3_coder_30b_a3b
from slime_swe.recipes.base import Recipe


def recipe() -> Recipe:
    base = qwen3_coder_30b_a3b.recipe()
    return replace(
        base,
        name="qwen3_coder_30b_a3b_128k",
        description="Qwen3-Coder-30B-A3B-Instruct, 128k context, GRPO with routing replay",
        hardware="4 nodes of 8 x H100-80GB",
        cluster=replace(base.cluster, nodes=4),
        parallel=replace(base.parallel, tp=4, cp=8, max_tokens_per_gpu=16384),
        rollout=replace(base.rollout, max_context=131072, max_turns=150, sandbox="ray:docker", sandbox_concurrency=0),
        optimizer=replace(base.optimizer, cpu_offload=False),
    )
