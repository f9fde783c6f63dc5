"""Rules that tie several fields together, whatever the engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from recipes.architecture import FAMILIES
from recipes.violation import Violation, divisors, listed

if TYPE_CHECKING:
    from recipes.base import Recipe


def family(recipe: Recipe) -> Iterator[Violation]:
    """The parts of an architecture that its family decides."""
    architecture = recipe.model.architecture
    for name, value in FAMILIES[architecture.family].items():
        if getattr(architecture, name) != value:
            yield Violation(
                f"model.architecture.{name}",
                f"model.architecture.{name}={not value}".lower() + f", which {architecture.family} models don't have",
                f"set it to {value}".lower(),
            )


def grouped_heads(recipe: Recipe) -> Iterator[Violation]:
    architecture = recipe.model.architecture
    if architecture.heads % architecture.kv_heads:
        yield Violation(
            "model.architecture.kv_heads",
            f"model.architecture.kv_heads={architecture.kv_heads} does not divide heads={architecture.heads}",
            f"use {listed(divisors(architecture.heads))}",
        )


def mixture(recipe: Recipe) -> Iterator[Violation]:
    architecture = recipe.model.architecture
    sizes = (architecture.experts, architecture.experts_per_token, architecture.expert_ffn)
    if architecture.family == "qwen3_moe" and not (0 < sizes[1] <= sizes[0] and sizes[2]):
        yield Violation(
            "model.architecture.experts",
            "model.architecture.experts={}, experts_per_token={} and expert_ffn={} make no mixture".format(*sizes),
            "give all three, experts_per_token not more than experts",
        )
    elif architecture.family != "qwen3_moe" and any(sizes):
        yield Violation(
            "model.architecture.experts",
            "model.architecture.experts={}, experts_per_token={} and expert_ffn={}, but ".format(*sizes)
            + f"{architecture.family} models have no experts",
            "set all three to 0",
        )


def response_fits(recipe: Recipe) -> Iterator[Violation]:
    rollout = recipe.rollout
    if rollout.max_response >= rollout.max_context:
        yield Violation(
            "rollout.max_response",
            f"rollout.max_response={rollout.max_response} leaves no room for a prompt in "
            f"rollout.max_context={rollout.max_context}",
            "make max_context larger",
        )


def context_fits(recipe: Recipe) -> Iterator[Violation]:
    """The trainer packs whole episodes, and the model has positions for so many tokens."""
    context, parallel = recipe.rollout.max_context, recipe.parallel
    if context > parallel.max_tokens_per_gpu * parallel.cp:
        yield Violation(
            "parallel.max_tokens_per_gpu",
            f"an episode of rollout.max_context={context} tokens does not fit a micro-batch of "
            f"parallel.max_tokens_per_gpu={parallel.max_tokens_per_gpu} x parallel.cp={parallel.cp}",
            f"raise max_tokens_per_gpu to {-(-context // parallel.cp)}, or cp",
        )
    if context > recipe.model.architecture.max_context:
        yield Violation(
            "rollout.max_context",
            f"rollout.max_context={context} is more than the model was made for, "
            f"model.architecture.max_context={recipe.model.architecture.max_context}",
            "make it smaller",
        )


def sampling(recipe: Recipe) -> Iterator[Violation]:
    rollout = recipe.rollout
    if rollout.over_sampling and rollout.over_sampling < rollout.batch_size:
        yield Violation(
            "rollout.over_sampling",
            f"rollout.over_sampling={rollout.over_sampling} is less than rollout.batch_size={rollout.batch_size}",
            "set it to 0 (the same) or to more",
        )


def steps(recipe: Recipe) -> Iterator[Violation]:
    episodes = recipe.rollout.batch_size * recipe.rollout.samples_per_task
    if episodes % recipe.algorithm.steps_per_rollout:
        yield Violation(
            "algorithm.steps_per_rollout",
            f"algorithm.steps_per_rollout={recipe.algorithm.steps_per_rollout} does not divide the {episodes} episodes "
            "of a rollout (rollout.batch_size x rollout.samples_per_task)",
            "change one of the three",
        )


def importance_sampling(recipe: Recipe) -> Iterator[Violation]:
    algorithm = recipe.algorithm
    if algorithm.tis and algorithm.rollout_logprobs:
        yield Violation(
            "algorithm.tis",
            "algorithm.tis=true corrects the ratio's denominator, which algorithm.rollout_logprobs=true takes from the "
            "server as it is",
            "set one of them to false",
        )
    if algorithm.tis_clip_low > algorithm.tis_clip:
        yield Violation(
            "algorithm.tis_clip_low",
            f"algorithm.tis_clip_low={algorithm.tis_clip_low:g} is more than algorithm.tis_clip={algorithm.tis_clip:g}",
            "make it smaller",
        )


RULES = (
    family,
    grouped_heads,
    mixture,
    response_fits,
    context_fits,
    sampling,
    steps,
    importance_sampling,
)
