"""The plug-ins of a run, loaded by dotted path as SLiME loads them."""

from __future__ import annotations

import importlib
import inspect
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class HookError(ValueError):
    """A dotted path leads nowhere; the message names the argument, the path and what is wrong with it."""


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
            reward=_required(args, "custom_rm_path"),
            post_process=_required(args, "custom_reward_post_process_path"),
            data_source=_required(args, "data_source_path"),
            group_filter=_optional(args, "dynamic_sampling_filter_path"),
            log=_optional(args, "custom_rollout_log_function_path"),
            log_evaluation=_optional(args, "custom_eval_rollout_log_function_path"),
        )

    @property
    def generate_takes_evaluation(self) -> bool:
        return "evaluation" in inspect.signature(self.generate).parameters


def load_function(path: str, argument: str = "path") -> Any:
    """The object at `module.attribute`. Raises `HookError`."""
    module_name, _, attribute = path.rpartition(".")
    if not module_name:
        raise HookError(f"{argument}={path!r} is no dotted path: write module.attribute")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise HookError(f"{argument}={path!r}: there is no module {error.name!r}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise HookError(f"{argument}={path!r}: module {module_name} has no {attribute!r}") from error


def _required(args: Namespace, argument: str) -> Any:
    path = getattr(args, argument, None)
    if not path:
        raise HookError(f"{argument} is not given: this engine has no default for it")
    return load_function(path, argument)


def _optional(args: Namespace, argument: str) -> Any:
    path = getattr(args, argument, None)
    return load_function(path, argument) if path else None
