"""The GPUs that the planner knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU.

    memory: GiB that PyTorch sees.
    flops: bf16 TFLOP/s, dense, of the data sheet.
    bandwidth: TB/s of its memory.
    mfu, moe_mfu: share of `flops` that the trainer is assumed to reach on dense models and mixtures of experts.
        Published pre-training figures are higher (41-48 % on H100 for dense models, 20 % for Qwen3-30B-A3B); packed
        sequences of uneven length cost some.
    """

    memory: float
    flops: float
    bandwidth: float
    mfu: float
    moe_mfu: float


GPUS = {
    "A100-40GB": Gpu(memory=39.4, flops=312, bandwidth=1.56, mfu=0.42, moe_mfu=0.25),
    "A100-80GB": Gpu(memory=79.1, flops=312, bandwidth=2.04, mfu=0.42, moe_mfu=0.25),
    "H100-80GB": Gpu(memory=79.1, flops=989, bandwidth=3.35, mfu=0.36, moe_mfu=0.18),
    "H200-141GB": Gpu(memory=139.7, flops=989, bandwidth=4.8, mfu=0.36, moe_mfu=0.18),
}
