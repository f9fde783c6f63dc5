"""RMS normalisation, whose output a gate weighs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter, functional

GATES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "swish": functional.silu,
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}


class FusedRMSNormGated(Module):
    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        activation: str = "swish",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.weight = Parameter(torch.ones(hidden_size, device=device, dtype=dtype))
        self.eps, self.gate = eps, GATES[activation]

    def forward(self, x: Tensor, g: Tensor) -> Tensor:
        """x, ... x D, and what is gated by, of the same shape; computed in float32 at least."""
        kind = torch.promote_types(x.dtype, torch.float32)
        normed = functional.rms_norm(x.to(kind), self.weight.shape, self.weight.to(kind), self.eps)
        return (normed * self.gate(g.to(kind))).to(x.dtype)
