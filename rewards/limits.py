"""What a project's own tests may use in its image: far more than an agent's command."""

from __future__ import annotations

from math import ceil

from rollout.sandbox.base import Limits

_CORES = 16  # that the tests may keep busy all the time


def image_limits(seconds: float) -> Limits:
    """For tests that may take so long."""
    return Limits(
        cpu_seconds=ceil(seconds) * _CORES,
        memory_bytes=16 << 30,
        file_bytes=2 << 30,
        disk_bytes=8 << 30,
        processes=2048,
        output_bytes=32 << 20,
    )
