"""FLOPs and seconds of training. Pure arithmetic.

Known values, which tests hold: 23.0 GFLOP a token for Qwen3-30B-A3B at 4,096 tokens (Megatron-Bridge's published 203
TFLOP/s at 8,826 tokens/s on one H100).
"""

from __future__ import annotations

from slime_swe.recipes.layout import ONE_GPU, Layout
from slime_swe.recipes.shape import Shape

FORWARD, BACKWARD = 1, 2  # in units of one forward pass
OPTIMIZER_TRAFFIC = 28  # bytes a parameter: master weight, two moments and gradient read, three of them written


def forward_flops(shape: Shape, length: float, layout: Layout = ONE_GPU) -> float:
    """Of one token of a sequence of `length` tokens, on average, on all GPUs that compute it: two a weight, without the
    look-up of its embedding, and attention.

    Source: Kaplan et al. 2020, appendix B; Megatron-LM `training/training.py`, `num_floating_point_operations`.
    """
    layers = shape.total(lambda part: part.copies(layout) * part.flops(length))
    return layers + 2 * (shape.table + shape.hidden)


def train_flops(
    shape: Shape, length: float, recompute: str = "none", layout: Layout = ONE_GPU, *, frozen: bool = False
) -> float:
    """Forward and backward of one token; with full recomputation, the forward pass twice: x 4/3.

    frozen: only the gradients of inputs are computed, half of a backward pass, for adapters, whose own are left out:
    they are a rank over a width of it.
    """
    backward = BACKWARD / 2 if frozen else BACKWARD
    passes = FORWARD + backward + (FORWARD if recompute == "full" else 0)
    return passes * forward_flops(shape, length, layout)


def bubble(pp: int, micro_batches: float) -> float:
    """How much longer a pipeline of pp stages takes than its work: 1 + (pp - 1) / m (Narayanan et al. 2021)."""
    return 1 + (pp - 1) / max(micro_batches, 1)


def offloaded_step_seconds(updated: float, gpus_per_node: int, pcie: float, host_bandwidth: float) -> float:
    """AdamW in the machine's memory, on `updated` parameters a GPU: gradients (4 bytes) and new weights (4) go over
    PCIe while one machine's memory serves the updates of all its GPUs. The longer of the two counts."""
    transfer = 8 * updated / pcie
    update = OPTIMIZER_TRAFFIC * updated * gpus_per_node / host_bandwidth
    return max(transfer, update)
