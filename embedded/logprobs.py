"""Log-probability and entropy of sampled tokens, without ever holding more than one chunk of [N, vocabulary]."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 20  # logits held at once: 4 MB of fp32, about what a core's cache and a GPU's launch cost favour


def action_log_probs(hidden_NxH: Tensor, head_VxH: Tensor, target_N: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """(log-probability [N], entropy [N]) of `target_N` under softmax(hidden @ head.T / temperature), in fp32.

    The same distribution that the server samples from and reports. Both results carry gradients to `hidden_NxH` and
    `head_VxH`; logits are recomputed in the backward pass.
    """
    result = _ActionLogProbs.apply(hidden_NxH, head_VxH, target_N, temperature)  # type: ignore[no-untyped-call]
    return tuple(result)


class _ActionLogProbs(torch.autograd.Function):
    """d log p_t = onehot_t - p;  d entropy = -p (log p + entropy); both divided by the temperature."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        log_probs = hidden.new_empty(len(target), dtype=torch.promote_types(hidden.dtype, torch.float32))
        entropy = torch.empty_like(log_probs)
        for rows in _chunks(len(target), len(head)):
            full = _log_softmax(hidden[rows], head, temperature)
            log_probs[rows] = full.gather(1, target[rows, None]).squeeze(1)
            entropy[rows] = -(full.exp() * full).sum(1)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, head, target, entropy)
        ctx.temperature = temperature
        return log_probs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head, target, entropy = ctx.saved_tensors
        of_log_prob, of_entropy = grads
        if of_log_prob is None:
            of_log_prob = torch.zeros_like(entropy)
        grad_hidden, grad_head = torch.empty_like(hidden), torch.zeros_like(head)
        for rows in _chunks(len(target), len(head)):
            full = _log_softmax(hidden[rows], head, ctx.temperature)
            scale = of_log_prob[rows, None]
            if of_entropy is not None:
                scale = scale + of_entropy[rows, None] * (full + entropy[rows, None])
            grad_logits = (full.exp_() if of_entropy is None else full.exp()).mul_(-scale)
            grad_logits.scatter_add_(1, target[rows, None], of_log_prob[rows, None])
            grad_logits = grad_logits.div_(ctx.temperature).to(hidden.dtype)
            grad_hidden[rows] = grad_logits @ head
            grad_head.addmm_(grad_logits.T, hidden[rows])
        return grad_hidden, grad_head, None, None


def _log_softmax(hidden: Tensor, head: Tensor, temperature: float) -> Tensor:
    logits = hidden @ head.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.log_softmax(logits.div_(temperature), 1)


def _chunks(rows: int, vocabulary: int) -> list[slice]:
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
