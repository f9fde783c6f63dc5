"""A mend of SLiME's linear attention under context parallelism, whose gradients are wrong at commit 624b824a.

For SLiME's `--custom-megatron-init-path`. There each context-parallel rank gathers all tokens, computes on all, and
keeps the outputs of its own. The gradient that a rank has of the gathered tokens is so that of its own outputs alone:
all ranks' must be summed before each keeps its share. SLiME keeps its share without the sum, as if every rank had the
gradient of all outputs, and so loses what a token does to tokens of other ranks.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime_swe.errors import UserError

WHERE = "slime_plugins/models/hf_attention.py, _AllGatherForDuplicatedComputation.backward"
FAULT = "return grads[ctx.rank], None"


def sum_gradients(args: Any) -> None:
    """Put `summed_backward` in place of SLiME's, once a process. Raises `UserError` where that is another one."""
    from slime_plugins.models import hf_attention

    gather: Any = hf_attention._AllGatherForDuplicatedComputation
    if gather.backward is summed_backward:
        return
    lines = [line.strip() for line in inspect.getsource(gather.backward).splitlines()]
    if lines[2:] != [FAULT]:
        raise UserError(
            f"SLiME's {WHERE} is not the one that slime_swe.launch.slime.linear_attention mends, which ends with "
            f"`{FAULT}`: use the commit that the documentation names, or set parallel.cp to 1"
        )
    gather.backward = staticmethod(summed_backward)


def summed_backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
    """Sum gradients: of each rank's tokens, by this rank's outputs -> of this rank's tokens, by all ranks' outputs."""
    own = torch.empty_like(gradients[ctx.rank], memory_format=torch.contiguous_format)
    dist.reduce_scatter(own, [gradient.contiguous() for gradient in gradients], group=ctx.group)
    return own, None
