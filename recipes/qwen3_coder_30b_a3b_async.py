"""Qwen3-Coder-30B-A3B-Instruct with training and sampling at once: one node trains, 24 more GPUs serve.

    slime-swe train recipe=qwen3_coder_30b_a3b_async

`qwen3_coder_30b_a3b` on separate GPUs: sampling never stops, so slow episodes don't keep the trainer's GPUs waiting. By
its plan one node trains about as fast as three sample; two and two would take a third more GPU hours.
None is trained that began more than two optimizer steps earlier (`rollout.max_staleness`), and none is thrown away for
its age or its length. Truncated importance sampling bounds what the difference in weights may do; the clip range does
not, since the ratio's denominator comes from the weights that are trained.

Tool calls: as of `qwen3_coder_30b_a3b`.

Follows: uni-agent's training of this model: R2E-Gym, 128k tokens, 100 turns, fully asynchronous. That was GSPO, which
is GRPO where a rollout has one optimizer step (docs/algorithms.md).

Expect: this recipe has not been run on GPUs. Published on SWE-bench Verified: 46.2 % pass@1 before and 52.0 % after.
The same page measures 49.2 % of the untrained model, the mean of four runs with 100 turns and 128k (uni-agent's
README.md at 6f4a7c9), so that the gain is 3 to 6 points, where one and the same model differs by 2 to 6 between runs of
the benchmark (arXiv:2602.07150). `qwen3_30b_a3b_instruct` has the larger gain.
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
        description="Qwen3-Coder-30B-A3B-Instruct, 128k context, asynchronous GRPO with routing replay",
        hardware="4 nodes of 8 x H100-80GB, three of them only to serve",
        cluster=replace(base.cluster, nodes=1, colocate=False, rollout_gpus=24),
        parallel=replace(base.parallel, tp=2, cp=4),
        serving=replace(base.serving, mem_fraction=0.85),
        rollout=replace(
            base.rollout, max_context=131072, schedule="continuous", sandbox="ray:docker", sandbox_concurrency=0
        ),
    )
