"""What keeps Megatron's distributed optimizer from loading a checkpoint of float32 weights into PyTorch's Adam."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from torch import Tensor

_COPY = "_set_main_param_and_optimizer_states"


def let_adam_load() -> None:
    """Copy a parameter and its moments without gradients, and let the step number be, which is loaded before them.

    Half-precision weights have copies that need no gradients; these are the model's own parameters. Transformer
    Engine's Adam keeps no step number with each parameter, and a checkpoint holds none.
    """
    optimizer: Any = DistributedOptimizer
    original = getattr(optimizer, _COPY)

    @functools.wraps(original)
    def copy(self: Any, parameter: Tensor, tensors: Mapping[str, Tensor]) -> None:
        group, place = self.model_param_group_index_map[parameter]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][place]]
        with torch.no_grad():
            original(self, parameter, {"step": state["step"], **tensors})

    setattr(optimizer, _COPY, copy)
