"""A node of GPUs that are not here, as `nvidia-smi` would list them."""

from __future__ import annotations

from slime_swe.launch.doctor.gpus import parse
from slime_swe.launch.rehearse.platforms.gpu import GpuPlatform
from tests.launch.doctor import machines


def node(count: int) -> GpuPlatform:
    return GpuPlatform(parse(machines.rows(count, "NVIDIA H100 80GB HBM3", 81559))[0])
