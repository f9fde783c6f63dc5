"""What tensor and context parallelism exchange in a forward pass, and in its backward pass.

The first dimension is that of tokens. `group` None, or of one process, exchanges nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = Any  # a `ProcessGroup`, or SLiME's wrapper of one


def size_of(group: Group) -> int:
    return 1 if group is None else dist.get_world_size(group)


def copied(whole: Tensor, group: Group) -> Tensor:
    """Return the same tensor, which each process uses for its own part: gradients are summed."""
    return whole if size_of(group) == 1 else _exchange(_Copy, whole, group)


def summed(part: Tensor, group: Group) -> Tensor:
    """Return the sum of all processes' tensors."""
    return part if size_of(group) == 1 else _exchange(_Sum, part, group)


def gathered(share: Tensor, group: Group) -> Tensor:
    """Gather all processes' tokens, in the order of ranks; each uses them for its own part: gradients are summed."""
    return share if size_of(group) == 1 else _exchange(_Gather, share, group)


def sum_scattered(part: Tensor, group: Group) -> Tensor:
    """Return this process's tokens of the sum of all processes' tensors."""
    return part if size_of(group) == 1 else _exchange(_SumScatter, part, group)


def _exchange(kind: Any, tensor: Tensor, group: Group) -> Tensor:
    output: Tensor = kind.apply(tensor, group)
    return output


def _all_reduce(tensor: Tensor, group: Group) -> Tensor:
    total = tensor.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total


def _all_gather(tensor: Tensor, group: Group) -> Tensor:
    shares = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(size_of(group))]
    dist.all_gather(shares, tensor.contiguous(), group=group)
    return torch.cat(shares)


def _reduce_scatter(tensor: Tensor, group: Group) -> Tensor:
    if tensor.size(0) % size_of(group):
        raise ValueError(f"{tensor.size(0)} tokens can't be dealt to {size_of(group)} processes")
    return _all_reduce(tensor, group).chunk(size_of(group))[dist.get_rank(group)].clone()


class _Exchange(torch.autograd.Function):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Group], output: Tensor) -> None:
        ctx.group = inputs[1]


class _Copy(_Exchange):
    @staticmethod
    def forward(tensor: Tensor, group: Group) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(gradient, ctx.group), None


class _Sum(_Exchange):
    @staticmethod
    def forward(tensor: Tensor, group: Group) -> Tensor:
        return _all_reduce(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Gather(_Exchange):
    @staticmethod
    def forward(tensor: Tensor, group: Group) -> Tensor:
        return _all_gather(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter(gradient, ctx.group), None


class _SumScatter(_Exchange):
    @staticmethod
    def forward(tensor: Tensor, group: Group) -> Tensor:
        return _reduce_scatter(tensor, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_gather(gradient, ctx.group), None
