"""The plug-ins that a rollout calls, loaded by dotted path as SLiME loads them."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from slime_swe.dotted import load_object
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.rollout.records import number
from slime_swe.sample import Sample

A_REWARD = "a reward is a finite number; its parts are the components of metadata['score']"


@dataclass(frozen=True)
class RolloutHooks:
    """A run's hooks, with SLiME's signatures. group_filter: None keeps every group."""

    generate: Callable[..., Any]
    reward: Callable[..., Any]
    group_filter: Callable[..., Any] | None

    @classmethod
    def load(cls, args: Any) -> Self:
        """Load the hooks that `args` name. Raises `UserError` for a path that is missing or leads nowhere."""
        return cls(**cls.found(args))

    @classmethod
    def found(cls, args: Any) -> dict[str, Any]:
        return {
            "generate": required_hook(args, "custom_generate_function_path"),
            "reward": _reward(args),
            "group_filter": optional_hook(args, "dynamic_sampling_filter_path"),
        }

    @cached_property  # it is asked for each episode, and a plan plays tens of thousands
    def generate_takes_evaluation(self) -> bool:
        return "evaluation" in inspect.signature(self.generate).parameters


def is_supervised(args: Any) -> bool:
    """Say whether a run's loss is that of recorded tokens, not of the policy's own."""
    return bool(getattr(args, "loss_type", "policy_loss") == "sft_loss")


def required_hook(args: Any, argument: str) -> Any:
    path = getattr(args, argument, None)
    if not path:
        raise UserError(f"{argument} is not given: there is no default for it")
    return load_object(path, argument)


def optional_hook(args: Any, argument: str) -> Any:
    path = getattr(args, argument, None)
    return load_object(path, argument) if path else None


def _reward(args: Any) -> Any:
    """Return our reward function as it is, since what fails there is a bug; a user's with errors that name it."""
    function = required_hook(args, "custom_rm_path")
    return function if args.custom_rm_path.startswith("slime_swe.") else checked_reward(function, args.custom_rm_path)


def checked_reward(function: Any, path: str) -> Any:
    """Wrap a user's reward function so that its failures and wrong results are `UserError`s that name it."""

    async def call(args: Any, sample: Sample | list[Sample], **kwargs: Any) -> Any:
        try:
            found = function(args, sample, **kwargs)
            found = await found if inspect.isawaitable(found) else found
        except (UserError, InfrastructureError):
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
            raise UserError(f"reward.function={path} failed: {what}") from error
        if isinstance(sample, list) and not (isinstance(found, list | tuple) and len(found) == len(sample)):
            raise UserError(
                f"reward.function={path} gave {shown(found)} for {len(sample)} samples: give a list of as many"
            )
        for value in found if isinstance(sample, list) else [found]:
            if number(value) is None and not (args.reward_key and isinstance(value, Mapping)):
                raise UserError(f"reward.function={path} gave {shown(value)}: {A_REWARD}")
        return found

    return call


def shown(value: Any) -> str:
    return f"{value!r:.80} ({type(value).__name__})"
