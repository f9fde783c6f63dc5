"""The elementwise parts of a Qwen2 layer with few passes over memory, for training on a CPU.

Composed of plain operations these take as long as the layer's matrix products. Rotary embeddings as one complex product
need the two halves of a head interleaved: `interleaved` reorders a projection's rows so, which scores don't notice.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x_TxH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight (Zhang and Sennrich 2019, arXiv:1910.07467)."""
    return cast(Tensor, _RMSNorm.apply(x_TxH, weight_H, eps))  # type: ignore[no-untyped-call]


def swiglu(gate_up_Tx2F: Tensor) -> Tensor:
    """silu(gate) * up of the two halves [gate, up] (Shazeer 2020, arXiv:2002.05202); [T, F]."""
    return cast(Tensor, _SwiGLU.apply(gate_up_Tx2F))  # type: ignore[no-untyped-call]


def rotate(x_TxQxD: Tensor, turn_Tx1xC: Tensor) -> Tensor:
    """Rotate the pairs (2 i, 2 i + 1) of every head by the complex numbers `turn`, C = D / 2."""
    pairs: Tensor = torch.view_as_complex(x_TxQxD.view(*x_TxQxD.shape[:-1], -1, 2))
    turned: Tensor = torch.view_as_real(pairs * turn_Tx1xC)
    return turned.flatten(-2)


def interleaved(parameter: Tensor, head_dim: int) -> Tensor:
    """Rows (or entries) of a projection, reordered within each head from halves to pairs."""
    heads: Tensor = parameter.view(-1, 2, head_dim // 2, *parameter.shape[1:])
    return heads.transpose(1, 2).flatten(0, 2)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale: Tensor = torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_()[:, None]
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        scaled: Tensor = normed * weight
        return scaled

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normed, scale, weight = ctx.saved_tensors
        grad_normed = grads[0] * weight
        along = torch.linalg.vecdot(grad_normed, normed)[:, None].div_(normed.shape[-1])
        grad_weight = (grads[0] * normed).sum(0)
        return grad_normed.addcmul_(normed, along, value=-1).mul_(scale), grad_weight, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        active = F.silu(gate)
        ctx.save_for_backward(gate_up, active)
        return active * up

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        gate_up, active = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        result = torch.empty_like(gate_up)
        grad_gate, grad_up = result.chunk(2, dim=-1)
        torch.mul(grads[0], active, out=grad_up)
        torch.ops.aten.silu_backward(grads[0] * up, gate, grad_input=grad_gate)
        return result
