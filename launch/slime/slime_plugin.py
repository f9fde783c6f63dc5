"""Three parts of the loss that SLiME takes as functions. They run in the trainer's processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO = 20.0  # the largest that is exponentiated, as in SLiME's example: 5e8 is out of every sensible bound


def constant_reduction(
    total_lengths: Sequence[int], response_lengths: Sequence[int], loss_masks: Sequence[Tensor], per_token: bool
) -> Callable[[Tensor], Tensor]:
    """Dr.GRPO's reduction (arXiv:2503.20783): token losses summed over one constant, `--rollout-max-context-len`.

    For `--custom-pg-loss-reducer-function-path`. SLiME divides by the episodes of a step afterwards, and reduces
    entropy and KL terms without this. Context parallelism is left to SLiME's own reducer, which is given the constant
    in place of each episode's number of tokens.
    """
    import torch
    from megatron.training.global_vars import get_args
    from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean

    constant = torch.tensor(float(get_args().rollout_max_context_len), device=loss_masks[0].device)
    reducer: Callable[[Tensor], Tensor] = get_sum_of_sample_mean(
        list(total_lengths), list(response_lengths), list(loss_masks), [constant] * len(loss_masks)
    )
    return reducer


def advantages_less_kl(args: Any, rollout_data: dict[str, Any]) -> None:
    """GRPO's, GSPO's and CISPO's advantage of each token, less `--kl-coef` times its KL estimate.

    For `--custom-advantage-function-path`: SLiME has the estimates in `rollout_data["kl"]`, one tensor of R tokens for
    each sample, and leaves them out of these advantages. The penalty is that of REINFORCE++-baseline
    (arXiv:2501.03262): each token's own, not those that follow.
    """
    penalised = [
        reward - args.kl_coef * estimates_R
        for reward, estimates_R in zip(rollout_data["rewards"], rollout_data["kl"], strict=True)
    ]
    rollout_data["advantages"] = penalised
    rollout_data["returns"] = list(penalised)


def masked_importance_sampling(
    args: Any,
    *,
    pg_loss: Tensor,
    train_log_probs: Sequence[Tensor],
    rollout_log_probs: Sequence[Tensor],
    loss_masks: Sequence[Tensor],
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    **_: Any,
) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
    """Each token's loss times its ratio, trainer's probability over server's, and the loss masks without the tokens
    whose ratio is out of [`--tis-clip-low`, `--tis-clip`] and the sequences with a trained one below
    `swe_mismatch_veto`. Denominators stay those of the tokens before.

    For `--custom-tis-function-path`. The token-level mask and the veto of SLiME's
    `examples/train_infer_mismatch_helper/mis.py`, which is not part of its package, without normalising weights over a
    micro-batch: that would make a token's weight depend on what it was packed with. Of a context-parallel group each
    process holds a part of the log-probabilities, and whole masks.
    """
    import torch
    from slime.backends.megatron_utils.cp_utils import all_gather_with_cp

    low, high, veto = args.tis_clip_low, args.tis_clip, args.swe_mismatch_veto
    parts = [
        (trained - sampled).clamp(max=LOG_RATIO).exp()
        for trained, sampled in zip(train_log_probs, rollout_log_probs, strict=True)
    ]
    masks, vetoed = [], []
    for part, mask_R, total, response in zip(parts, loss_masks, total_lengths, response_lengths, strict=True):
        ratio_R = all_gather_with_cp(part, total, response)
        lost = ((ratio_R < veto) & (mask_R > 0)).any()
        masks.append(mask_R * ((ratio_R >= low) & (ratio_R <= high) & ~lost))
        vetoed.append(lost.float().expand_as(part))
    ratio = torch.cat(parts)
    metrics = {
        "tis": ratio,
        "tis_clipfrac": ((ratio < low) | (ratio > high)).float(),
        "tis_abs": (ratio - 1).abs(),
        "mis_vetoed": torch.cat(vetoed),
    }
    return pg_loss * ratio.clamp(max=high), masks, metrics
