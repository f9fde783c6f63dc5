"""Megatron's distributed optimizer loads a checkpoint of float32 weights.

On a GPU weights are in half precision, and a checkpoint is copied into their float32 copies, which need no gradients.
In float32 there are no copies: it is copied into the model's own parameters, which PyTorch refuses while it records.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

COPY = "_set_main_param_and_optimizer_states"


def load_without_gradients() -> None:
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    optimizer: Any = DistributedOptimizer
    original = getattr(optimizer, COPY)

    @functools.wraps(original)
    def copy(*args: Any, **options: Any) -> None:
        with torch.no_grad():
            original(*args, **options)

    setattr(optimizer, COPY, copy)
