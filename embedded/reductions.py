"""What a trained token weighs in its step's loss: `algorithm.reduction`. Pure functions of the training data."""

from __future__ import annotations

from collections.abc import Sequence

from slime_swe.embedded.train_data import TrainData


def token_weights(
    data: TrainData, samples: Sequence[int], reduction: str = "trajectory", *, max_context: int = 0
) -> dict[int, float]:
    """Sample -> what each of its trained tokens weighs, of the samples of one optimizer step that have any.

    `trajectory` is GRPO's mean over rollouts of each one's mean over its tokens; `token` is DAPO's (arXiv:2503.14476,
    eq. 8), where SLiME counts a sample without a trained token as one token; `constant` is Dr. GRPO's
    (arXiv:2503.20783), over `max_context`.
    """
    rollouts = len({data.rollout_ids[sample] for sample in samples})
    trained = {sample: sum(data.loss_masks[sample]) for sample in samples}
    if reduction == "token":
        total = sum(max(1, tokens) for tokens in trained.values())
        return {sample: 1 / total for sample, tokens in trained.items() if tokens}
    if reduction == "constant":
        return {sample: 1 / (max_context * rollouts) for sample, tokens in trained.items() if tokens}
    return {sample: 1 / (data.mask_sums[sample] * rollouts) for sample, tokens in trained.items() if tokens}
