"""FLOPs and seconds of training. Pure arithmetic.

Known values, which tests hold: 23.0 GFLOP a token for Qwen3-30B-A3B at 4,096 tokens (Megatron-Bridge's published 203
TFLOP/s at 8,826 tokens/s on one H100).
"""

from __future__ import annotations

from slime_swe.recipes.architecture import Architecture

FORWARD, BACKWARD = 1, 2  # in units of one forward pass
OPTIMIZER_TRAFFIC = 28  # bytes a parameter: master weight, two moments and gradient read, three of them written


def matrix_parameters(architecture: Architecture) -> int:
    """Weights that one token is multiplied with: the active ones, without the look-up of its embedding."""
    lookup = 0 if architecture.tied else architecture.vocab * architecture.hidden
    return architecture.active_parameters - lookup


def forward_flops(architecture: Architecture, length: float) -> float:
    """Of one token of a sequence of `length` tokens, on average: two a weight, and causal attention.

    Source: Kaplan et al. 2020, appendix B; Megatron-LM `training/training.py`, `num_floating_point_operations`.
    """
    attention = 2 * architecture.layers * architecture.heads * architecture.head_dim * length
    return 2 * matrix_parameters(architecture) + attention


def train_flops(architecture: Architecture, length: float, recompute: str = "none") -> float:
    """Forward and backward of one token; with full recomputation, the forward pass twice: x 4/3."""
    passes = FORWARD + BACKWARD + (FORWARD if recompute == "full" else 0)
    return passes * forward_flops(architecture, length)


def bubble(pp: int, micro_batches: float) -> float:
    """How much longer a pipeline of pp stages takes than its work: 1 + (pp - 1) / m (Narayanan et al. 2021)."""
    return 1 + (pp - 1) / max(micro_batches, 1)


def offloaded_step_seconds(updated: float, gpus_per_node: int, pcie: float, host_bandwidth: float) -> float:
    """AdamW in the machine's memory, on `updated` parameters a GPU: gradients (4 bytes) and new weights (4) go over
    PCIe while one machine's memory serves the updates of all its GPUs. The longer of the two counts."""
    transfer = 8 * updated / pcie
    update = OPTIMIZER_TRAFFIC * updated * gpus_per_node / host_bandwidth
    return max(transfer, update)
