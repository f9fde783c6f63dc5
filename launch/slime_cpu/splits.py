"""How many tokens go to which rank of a mixture of experts: an array on a GPU's host, a tensor on a CPU.

Megatron copies these counts from the GPU to the host, where they become numpy's, as all-to-all takes them. Of a tensor
that is on the host already it makes no copy, and leaves a tensor, which all-to-all does not take.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def give_splits_to_host() -> None:
    from megatron.core.transformer.moe import token_dispatcher

    token_dispatcher.maybe_move_tensor_to_cpu = on_host


def on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """What Megatron's function of a tensor on a GPU returns."""
    return tensor.numpy() if as_numpy and isinstance(tensor, Tensor) else tensor
