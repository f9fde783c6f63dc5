"""Normalisation, computed in float32 whatever the weights are. Weights are marked as Megatron's finalisation wants."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from .module import Layer


class _Norm(Layer):
    def __init__(
        self,
        normalized_shape: int | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        hidden_size: int | None = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        size = hidden_size if normalized_shape is None else normalized_shape
        assert size is not None
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        start = torch.zeros if zero_centered_gamma else torch.ones
        self.weight = Parameter(start(size, dtype=params_dtype, device=device))
        self.weight.sequence_parallel = bool(sequence_parallel)  # type: ignore[attr-defined]

    @property
    def scale(self) -> Tensor:
        return scale(self.weight, zero_centered=self.zero_centered_gamma)


class RMSNorm(_Norm):
    def forward(self, tokens: Tensor) -> Tensor:
        return rms_norm(tokens, self.scale, self.eps)


class LayerNorm(_Norm):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.bias = Parameter(torch.zeros_like(self.weight))
        self.bias.sequence_parallel = self.weight.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, tokens: Tensor) -> Tensor:
        return layer_norm(tokens, self.scale, self.bias, self.eps)


def scale(weight: Tensor, *, zero_centered: bool) -> Tensor:
    return weight.float() + 1 if zero_centered else weight.float()


def rms_norm(tokens: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    return functional.rms_norm(tokens.float(), scale.shape, scale, epsilon).to(tokens.dtype)


def layer_norm(tokens: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    return functional.layer_norm(tokens.float(), scale.shape, scale, bias.float(), epsilon).to(tokens.dtype)
