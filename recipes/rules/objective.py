"""Losses, advantages and optimizers that SLiME can't combine. Sources: see `recipes.parallelism`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from recipes.violation import Violation

if TYPE_CHECKING:
    from recipes.base import Recipe


def kl_place(recipe: Recipe) -> Iterator[Violation]:
    """SLiME computes the penalty for `--kl-coef`, but its GRPO and GSPO advantages leave it out (`ppo_utils.py`)."""
    algorithm = recipe.algorithm
    if algorithm.kl_in == "reward" and algorithm.kl_coef:
        yield Violation(
            "algorithm.kl_in",
            f"algorithm.kl_in=reward would be without effect: SLiME's {algorithm.estimator} advantage leaves the "
            "penalty out",
            "use loss",
        )


def kl_weight(recipe: Recipe) -> Iterator[Violation]:
    if recipe.algorithm.kl_unbiased and not recipe.algorithm.kl_coef:
        yield Violation(
            "algorithm.kl_unbiased",
            "algorithm.kl_unbiased=true weighs a penalty that algorithm.kl_coef=0 leaves out",
            "give a kl_coef, or set kl_unbiased to false",
        )


def routing_replay(recipe: Recipe) -> Iterator[Violation]:
    algorithm = recipe.algorithm
    said = f"algorithm.routing_replay={algorithm.routing_replay}"
    if algorithm.routing_replay == "none":
        return
    if not recipe.model.architecture.experts:
        yield Violation("algorithm.routing_replay", f"{said}, but the model has no experts to route to", "use none")
    elif algorithm.routing_replay == "train" and algorithm.rollout_logprobs:
        yield Violation(
            "algorithm.routing_replay",
            f"{said} records routes in the log-probability pass, which algorithm.rollout_logprobs=true leaves out",
            "use rollout, or set rollout_logprobs to false",
        )


def optimizer(recipe: Recipe) -> Iterator[Violation]:
    """SLiME always distributes the optimizer's states, and Megatron's Muon can't."""
    if recipe.optimizer.name != "adamw":
        yield Violation(
            "optimizer.name",
            f"optimizer.name={recipe.optimizer.name}: Megatron has no distributed one, and SLiME uses no other",
            "use adamw",
        )


RULES = (kl_place, kl_weight, routing_replay, optimizer)
