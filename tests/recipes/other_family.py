"""A family that differs from a shipped one in how it writes tool calls, and in a flag."""

from __future__ import annotations

import dataclasses

from slime_swe.recipes.families.qwen2 import Qwen2
from slime_swe.recipes.families.qwen3_moe import Qwen3Moe


class Renamed(Qwen2):
    model_types = (*Qwen2.model_types, *Qwen3Moe.model_types)
    tool_format = "qwen3_coder"

    def read(self, config):
        shape = super().read(config)
        return dataclasses.replace(shape, megatron={**shape.megatron, "spec": ["elsewhere", "layer_spec"]})
