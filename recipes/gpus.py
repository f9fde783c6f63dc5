"""The GPUs that the planner knows.

docs/planner.md has the source of each. Links between GPUs are not here, as the planner prices no exchange between them:
what it says of an L40S (no NVLink) and of an H800 (less than half of an H100's) is too short.
"""

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
    # H100's shares: its chip is the same, but for links and double precision.
    "H800-80GB": Gpu(memory=79.1, flops=989, bandwidth=3.35, mfu=0.36, moe_mfu=0.18),
    # A100's shares, as no figure was found. They are low for a chip whose memory outruns its arithmetic this far.
    "H20-96GB": Gpu(memory=95.1, flops=148, bandwidth=4.0, mfu=0.42, moe_mfu=0.25),
    # H100's shares by what Megatron-Bridge 25.11 reaches on each (docs/performance-summary.md): 2.1 times the FLOP/s of
    # an H100 for Llama 3 8B, 1.5 times for gpt-oss-120b, of 2.3 times the peak.
    "B200-180GB": Gpu(memory=178.3, flops=2250, bandwidth=7.7, mfu=0.33, moe_mfu=0.12),
    # Less than H100's, as no figure was found: memory and links are slower still than its arithmetic.
    "L40S-48GB": Gpu(memory=44.4, flops=362, bandwidth=0.864, mfu=0.3, moe_mfu=0.12),
    # H200's shares by a comparison on single GPUs, where an H200 trains an 8B model 1.3 to 1.4 times as fast
    # (alpharomercoma/MI300X-vs-H200 at 6077fdc7, REPORT.md).
    "MI300X-192GB": Gpu(memory=191.7, flops=1307, bandwidth=5.3, mfu=0.2, moe_mfu=0.1),
}
