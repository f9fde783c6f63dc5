"""Penalties for long episodes: DAPO's soft overlong punishment (arXiv:2503.14476), over tokens and over turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from slime_swe.fields import Argument, Meta


@dataclass(frozen=True)
class ShapingSettings:
    """The limits, how long before each its penalty begins (0: none), and what it takes off at the limit."""

    max_context: Annotated[int, Argument("rollout_max_context_len"), Meta(ge=1)]
    max_turns: Annotated[int, Argument("swe_max_turns"), Meta(ge=1)]
    overlong_tokens: Annotated[int, Argument("swe_overlong_tokens"), Meta(ge=0)] = 0
    overlong_turns: Annotated[int, Argument("swe_overlong_turns"), Meta(ge=0)] = 0
    overlong_penalty: Annotated[float, Argument("swe_overlong_penalty"), Meta(ge=0)] = 1.0


def penalties(settings: ShapingSettings, tokens: int, turns: int) -> dict[str, float]:
    """The components that are in use, each between -overlong_penalty and 0. tokens: of the longest sequence."""
    shapes = {
        "overlong_tokens": (tokens, settings.max_context, settings.overlong_tokens),
        "overlong_turns": (turns, settings.max_turns, settings.overlong_turns),
    }
    return {
        name: -settings.overlong_penalty * min(1.0, max(0, size - (limit - last)) / last)
        for name, (size, limit, last) in shapes.items()
        if last
    }
