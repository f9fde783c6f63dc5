"""Linear layers whose rows (`column`) or columns (`row`) are dealt to the processes of a tensor-parallel group.

With sequence parallelism each process has its own tokens before a `column` layer and after a `row` layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from .collectives import Group, copied, gathered, sum_scattered, summed
from .module import Init, Layer, bias_of, mark, refuse, share, weight_of
from .norm import layer_norm, rms_norm, scale


class Linear(Layer):
    save_original_input = False  # of what is quantised

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Group = None,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        rng_tracker_name: str | None = None,
        init_method: Init = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = None,
        ub_name: str | None = None,
        **options: object,
    ) -> None:
        super().__init__(tp_group, tp_size)
        refuse({"fuse_wgrad_accumulation": fuse_wgrad_accumulation, **options}, type(self).__name__)
        if parallel_mode not in ("column", "row", None):
            raise ValueError(f"parallel_mode={parallel_mode!r}: it is column, row or None")
        self.parallel_mode = parallel_mode
        self.in_features = share(in_features, self.tp_size) if parallel_mode == "row" else in_features
        self.out_features = share(out_features, self.tp_size) if parallel_mode == "column" else out_features
        self.sequence_parallel = self.tp_size > 1 and sequence_parallel
        self.use_bias, self.return_bias, self.ub_name = bias, return_bias, ub_name
        self.weight = weight_of((self.out_features, self.in_features), init_method, dtype=params_dtype, device=device)
        mark(self.weight, 1 if parallel_mode == "row" else 0)
        self.bias: Tensor
        if not bias:
            self.bias = torch.empty(0, dtype=params_dtype)  # Transformer Engine has no None there
        else:
            self.bias = bias_of(self.out_features, dtype=params_dtype, device=device)
            if parallel_mode == "row":
                self.bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
            elif parallel_mode == "column":
                mark(self.bias, 0)

    def forward(self, tokens: Tensor, is_first_microbatch: bool | None = None) -> Any:
        """T x in -> T x out; with `return_bias` the bias besides, which is not added then."""
        if self.parallel_mode == "column":
            tokens = (gathered if self.sequence_parallel else copied)(tokens, self.tp_group)
        output = functional.linear(tokens, self.weight.to(tokens.dtype))
        if self.parallel_mode == "row":
            output = (sum_scattered if self.sequence_parallel else summed)(output, self.tp_group)
        if self.return_bias:
            return output, self.bias
        return output + self.bias.to(output.dtype) if self.use_bias else output


class LayerNormLinear(Linear):
    """Normalisation and linear layer in one."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        params_dtype: torch.dtype | None = None,
        device: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(in_features, out_features, params_dtype=params_dtype, device=device, **options)
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        start = torch.zeros if zero_centered_gamma else torch.ones
        self.layer_norm_weight = Parameter(start(in_features, dtype=params_dtype, device=device))
        self.layer_norm_weight.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        self.layer_norm_bias: Parameter | None = None
        if normalization == "LayerNorm":
            self.layer_norm_bias = bias_of(in_features, dtype=params_dtype, device=device)
            self.layer_norm_bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]
        elif normalization != "RMSNorm":
            raise ValueError(f"normalization={normalization!r}: it is LayerNorm or RMSNorm")

    def forward(self, tokens: Tensor, is_first_microbatch: bool | None = None) -> Any:
        gain = scale(self.layer_norm_weight, zero_centered=self.zero_centered_gamma)
        if self.layer_norm_bias is None:
            normed = rms_norm(tokens, gain, self.eps)
        else:
            normed = layer_norm(tokens, gain, self.layer_norm_bias, self.eps)
        return super().forward(normed)
