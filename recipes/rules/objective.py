"""Losses, advantages and optimizers that SLiME can't combine. Sources: see `slime_swe.recipes.rules.trainer`."""

from __future__ import annotations

from collections.abc import Iterator

from slime_swe.recipes.base import Recipe
from slime_swe.recipes.violation import Violation


def kl(recipe: Recipe) -> Iterator[Violation]:
    """`--use-unbiased-kl` is read where the loss adds its own penalty."""
    algorithm = recipe.algorithm
    if algorithm.kl_unbiased and (not algorithm.kl_coef or algorithm.kl_in != "loss"):
        yield Violation(
            "algorithm.kl_unbiased",
            f"algorithm.kl_unbiased=true weighs a penalty in the loss, which algorithm.kl_coef={algorithm.kl_coef:g} "
            f"and algorithm.kl_in={algorithm.kl_in} leave out",
            "give a kl_coef with kl_in=loss, or set kl_unbiased to false",
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


def constant_reduction(recipe: Recipe) -> Iterator[Violation]:
    """`--custom-pg-loss-reducer-function-path` is called for the policy-gradient term alone (`loss.py`)."""
    algorithm = recipe.algorithm
    if algorithm.reduction != "constant":
        return
    others = {"kl_coef": algorithm.kl_coef * (algorithm.kl_in == "loss"), "entropy_coef": algorithm.entropy_coef}
    for key, value in others.items():
        if value:
            yield Violation(
                f"algorithm.{key}",
                f"algorithm.{key}={value:g} beside algorithm.reduction=constant: SLiME reduces that term by "
                "trajectory, so that the two would not be weighed against each other",
                f"set {key} to 0, or use reduction=trajectory",
            )


def optimizer(recipe: Recipe) -> Iterator[Violation]:
    """SLiME always distributes the optimizer's states, and Megatron's Muon can't."""
    if recipe.optimizer.name != "adamw":
        yield Violation(
            "optimizer.name",
            f"optimizer.name={recipe.optimizer.name}: Megatron has no distributed one, and SLiME uses no other",
            "use adamw",
        )


RULES = (kl, constant_reduction, routing_replay, optimizer)
