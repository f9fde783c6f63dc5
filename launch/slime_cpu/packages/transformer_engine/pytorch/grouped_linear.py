"""One linear layer for each expert on this process; tokens come sorted by expert, and Megatron moves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .collectives import Group
from .module import Init, Layer, bias_of, mark, refuse, share, weight_of


class GroupedLinear(Layer):
    save_original_input = False  # of what is quantised

    def __init__(
        self,
        num_gemms: int,
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
        self.num_gemms, self.use_bias, self.return_bias = num_gemms, bias, return_bias
        self.parallel_mode, self.ub_name = parallel_mode, ub_name
        self.in_features = share(in_features, self.tp_size) if parallel_mode == "row" else in_features
        self.out_features = share(out_features, self.tp_size) if parallel_mode == "column" else out_features
        for expert in range(num_gemms):
            shape = (self.out_features, self.in_features)
            weight = weight_of(shape, init_method, dtype=params_dtype, device=device)
            mark(weight, 1 if parallel_mode == "row" else 0)
            setattr(self, f"weight{expert}", weight)
            if bias:
                setattr(self, f"bias{expert}", bias_of(self.out_features, dtype=params_dtype, device=device))

    def _get_weight_tensors(self) -> list[Tensor]:
        return [getattr(self, f"weight{expert}") for expert in range(self.num_gemms)]

    def _biases(self) -> list[Tensor]:
        return [getattr(self, f"bias{expert}") for expert in range(self.num_gemms)] if self.use_bias else []

    def forward(self, tokens: Tensor, m_splits: Sequence[int], is_first_microbatch: bool | None = None) -> Any:
        """T x in -> T x out, where the first `m_splits[0]` tokens are those of the first expert, and so on."""
        biases = [] if self.return_bias else self._biases()
        outputs = [
            functional.linear(part, weight.to(part.dtype), biases[expert].to(part.dtype) if biases else None)
            for expert, (part, weight) in enumerate(
                zip(torch.split(tokens, list(m_splits)), self._get_weight_tensors(), strict=True)
            )
        ]
        output = torch.cat(outputs)
        return (output, self._biases()) if self.return_bias else output
