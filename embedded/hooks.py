"""The plug-ins of a run, loaded by dotted path as SLiME loads them."""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slime_swe.dotted import load_object
from slime_swe.errors import UserError
from slime_swe.rewards.slime_plugin import checked_reward


@dataclass(frozen=True)
class Hooks:
    """SLiME's hooks; signatures are SLiME's. `None` where the run leaves one out."""

    generate: Callable[..., Any]
    reward: Callable[..., Any]
    post_process: Callable[..., Any]
    data_source: Callable[..., Any]
    group_filter: Callable[..., Any] | None
    log: Callable[..., Any] | None
    log_evaluation: Callable[..., Any] | None

    @classmethod
    def load(cls, args: Namespace) -> Hooks:
        return cls(
            generate=_required(args, "custom_generate_function_path"),
            reward=_reward(args),
            post_process=_required(args, "custom_reward_post_process_path"),
            data_source=_required(args, "data_source_path"),
            group_filter=_optional(args, "dynamic_sampling_filter_path"),
            log=_optional(args, "custom_rollout_log_function_path"),
            log_evaluation=_optional(args, "custom_eval_rollout_log_function_path"),
        )

    @property
    def generate_takes_evaluation(self) -> bool:
        return "evaluation" in inspect.signature(self.generate).parameters


def _required(args: Namespace, argument: str) -> Any:
    path = getattr(args, argument, None)
    if not path:
        raise UserError(f"{argument} is not given: this engine has no default for it")
    return load_object(path, argument)


def _optional(args: Namespace, argument: str) -> Any:
    path = getattr(args, argument, None)
    return load_object(path, argument) if path else None


def _reward(args: Namespace) -> Any:
    """Ours as it is, since what fails there is a bug; a user's with errors that name it."""
    function = _required(args, "custom_rm_path")
    return function if args.custom_rm_path.startswith("slime_swe.") else checked_reward(function, args.custom_rm_path)
