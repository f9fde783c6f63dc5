"""Normalisation and linear layers, one alone or one for each expert, under tensor parallelism.

Rows (`column`) or columns (`row`) of a linear layer are dealt to the processes of a group. With sequence parallelism
each process has its own tokens before a `column` layer and after a `row` layer. Normalisation is computed in float32
whatever the weights are. Parameters are marked as Megatron's finalisation of gradients wants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter, functional

from .collectives import Group, copied, gathered, size_of, sum_scattered, summed

Init = Callable[[Tensor], object] | None


class Layer(Module):
    """A layer with the `_extra_state` of all Transformer Engine checkpoints: without FP8 a tensor of no bytes."""

    fp8 = fp8_calibration = False

    def __init__(self, tp_group: Group = None, tp_size: int = 1) -> None:
        super().__init__()
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False}
        self.set_tensor_parallel_group(tp_group)
        self.tp_size = tp_size if tp_group is None else size_of(tp_group)

    def set_tensor_parallel_group(self, tp_group: Group) -> None:
        self.tp_group = tp_group

    def init_fp8_metadata(self, num_gemms: int = 1) -> None: ...

    def get_extra_state(self) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state: Tensor | None) -> None:
        if state is not None and state.numel():
            raise NotImplementedError("this checkpoint has FP8 states, and FP8 needs a GPU")

    def backward_dw(self) -> None:
        raise NotImplementedError("delay_wgrad_compute has no stand-in on a CPU")


def refuse(options: Mapping[str, object], where: str) -> None:
    """Raise `NotImplementedError` where an option asks for something."""
    asked = [name for name, value in options.items() if value not in (None, False)]
    if asked:
        raise NotImplementedError(f"{where} has no stand-in for {', '.join(asked)} on a CPU")


def weight_of(shape: tuple[int, ...], init: Init, *, dtype: torch.dtype | None, device: Any) -> Parameter:
    weight = Parameter(torch.empty(shape, dtype=dtype, device=device))
    with torch.no_grad():
        (init or torch.nn.init.xavier_normal_)(weight)
    return weight


def bias_of(rows: int, *, dtype: torch.dtype | None, device: Any) -> Parameter:
    return Parameter(torch.zeros(rows, dtype=dtype, device=device))


def share(total: int, parts: int) -> int:
    if total % parts:
        raise ValueError(f"{total} rows or columns can't be dealt to {parts} tensor-parallel processes")
    return total // parts


def mark(parameter: Parameter, dimension: int) -> None:
    """Mark a parameter of which each process has a part, as Megatron's own layers do; Transformer Engine's linear
    layers mark their weights so even where each process has all of it."""
    parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
    parameter.partition_dim = dimension  # type: ignore[attr-defined]
    parameter.partition_stride = 1  # type: ignore[attr-defined]


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
        """Map T x in -> T x out; with `return_bias` the bias besides, which is not added then."""
        if self.parallel_mode == "column":
            tokens = (gathered if self.sequence_parallel else copied)(tokens, self.tp_group)
        output = functional.linear(tokens, self.weight.to(tokens.dtype))
        if self.parallel_mode == "row":
            output = (sum_scattered if self.sequence_parallel else summed)(output, self.tp_group)
        if self.return_bias:
            return output, self.bias
        return output + self.bias.to(output.dtype) if self.use_bias else output


class LayerNormLinear(Linear):
    """A normalisation and a linear layer in one."""

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


class GroupedLinear(Layer):
    """One linear layer for each expert on this process; tokens come sorted by expert, and Megatron moves them."""

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
        """Map T x in -> T x out, where the first `m_splits[0]` tokens are those of the first expert, and so on."""
        biases = [] if self.return_bias else self._biases()
        outputs = [
            functional.linear(part, weight.to(part.dtype), biases[expert].to(part.dtype) if biases else None)
            for expert, (part, weight) in enumerate(
                zip(torch.split(tokens, list(m_splits)), self._get_weight_tensors(), strict=True)
            )
        ]
        output = torch.cat(outputs)
        return (output, self._biases()) if self.return_bias else output
