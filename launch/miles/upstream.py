"""miles as an `Upstream`: what differs from SLiME."""

from __future__ import annotations

from slime_swe.launch.miles import checkouts
from slime_swe.launch.miles.sections import sections
from slime_swe.launch.slime.upstream import Upstream

MILES = Upstream(
    "miles",
    "miles",
    checkouts.MILES,
    checkouts.MEGATRON,
    "miles' own image (its docker/Dockerfile)",
    checkouts.COMMANDS,
    sections,
    # Both set the router's policy. Only this one takes every name that the router has, and is asked for routing keys
    # (miles/ray/rollout/router_manager.py, miles/rollout/generate_utils/generate_endpoint_utils.py).
    renamed={"router-policy": "sglang-router-policy"},
)
