"""The layers beside linear attention: a convolution over a few tokens, and normalisation whose output a gate weighs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import Conv1d, Module, Parameter, functional


class ShortConvolution(Conv1d):
    """A convolution over the last few tokens of a sequence, each channel on its own.

    The last weight is that of the token itself; what would be before a sequence counts as zero.
    """

    def __init__(
        self,
        hidden_size: int,
        kernel_size: int,
        bias: bool = False,
        activation: str | None = "silu",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if activation not in ("silu", "swish", None):
            raise ValueError(f"activation={activation!r}: it is silu, swish or None")
        super().__init__(
            hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=bias, device=device, dtype=dtype
        )
        self.activation = activation

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> tuple[Tensor, None]:  # type: ignore[override]
        """Convolve x, B x T x D -> the same shape, and no state. cu_seqlens: bounds of the sequences in one row."""
        bounds = [0, x.size(1)] if cu_seqlens is None else cu_seqlens.tolist()
        before = self.kernel_size[0] - 1
        parts = [functional.pad(x[:, a:b].mT, (before, 0)) for a, b in pairwise(bounds) if a < b]
        output = torch.cat([self._conv_forward(part, self.weight, self.bias) for part in parts], -1).mT
        return (output if self.activation is None else functional.silu(output)), None


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
        """Normalise x, ... x D, and gate it by g, of the same shape; computed in float32 at least."""
        kind = torch.promote_types(x.dtype, torch.float32)
        normed = functional.rms_norm(x.to(kind), self.weight.shape, self.weight.to(kind), self.eps)
        return (normed * self.gate(g.to(kind))).to(x.dtype)
