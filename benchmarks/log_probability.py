"""The trainer's loss on logits, with the memory that SLiME's takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class LogProbability(torch.autograd.Function):
    """Of each target, from fp32 logits. As in SLiME, a second fp32 copy of these becomes the softmax, and then the
    gradient, in place; Megatron's own cross-entropy would overwrite the logits, and so take half as much."""

    @staticmethod
    def forward(ctx: Any, logits_TxV: Tensor, target_T: Tensor) -> Tensor:
        shifted = logits_TxV - logits_TxV.max(dim=-1, keepdim=True).values
        found = shifted.gather(1, target_T[:, None])[:, 0]
        total = shifted.exp_().sum(dim=-1, keepdim=True)
        ctx.save_for_backward(shifted.div_(total), target_T)
        return found - total[:, 0].log()

    @staticmethod
    def backward(ctx: Any, gradient_T: Tensor) -> tuple[Tensor, None]:
        softmax_TxV, target_T = ctx.saved_tensors
        gradient = softmax_TxV.neg_()
        gradient.scatter_add_(1, target_T[:, None], torch.ones_like(target_T[:, None], dtype=gradient.dtype))
        return gradient.mul_(gradient_T[:, None]), None
