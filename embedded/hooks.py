"""The plug-ins that the training loop calls beside those of a rollout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slime_swe.rollout.hooks import RolloutHooks, optional_hook, required_hook


@dataclass(frozen=True)
class Hooks(RolloutHooks):
    """SLiME's hooks; signatures are SLiME's. `None` where the run leaves one out."""

    post_process: Callable[..., Any]
    data_source: Callable[..., Any]
    log: Callable[..., Any] | None
    log_evaluation: Callable[..., Any] | None

    @classmethod
    def found(cls, args: Any) -> dict[str, Any]:
        return {
            **super().found(args),
            "post_process": required_hook(args, "custom_reward_post_process_path"),
            "data_source": required_hook(args, "data_source_path"),
            "log": optional_hook(args, "custom_rollout_log_function_path"),
            "log_evaluation": optional_hook(args, "custom_eval_rollout_log_function_path"),
        }
