"""What every layer here has: a tensor-parallel group, the empty state of a layer without FP8, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from .collectives import Group, size_of

Init = Callable[[Tensor], object] | None


class Layer(Module):
    """`_extra_state` is in every checkpoint of Transformer Engine's layers: without FP8 a tensor of no bytes."""

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
    """As Megatron's own layers mark a parameter of which each process has a part; Transformer Engine's linear layers
    mark their weights so even where each process has all of it."""
    parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
    parameter.partition_dim = dimension  # type: ignore[attr-defined]
    parameter.partition_stride = 1  # type: ignore[attr-defined]
