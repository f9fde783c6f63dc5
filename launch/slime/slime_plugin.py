"""Two parts of the loss that SLiME takes as functions. Both run in the trainer's processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


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
    """GRPO's and GSPO's advantage of each token, less `--kl-coef` times its KL estimate.

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
