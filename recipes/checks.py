"""What makes a recipe runnable: one rule a line, then the rules that tie several fields together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recipes.base import Recipe

Rule = tuple[str, Callable[[Any], bool], str]  # dotted key, predicate, what is allowed


class RecipeError(ValueError):
    """A recipe can't run as it is; the message says what was given, what is allowed and what to do."""


def at_least(low: float, *keys: str) -> Iterator[Rule]:
    return ((key, lambda value: value >= low, f"at least {low:g}") for key in keys)


def between(low: float, high: float, *keys: str) -> Iterator[Rule]:
    return ((key, lambda value: low <= value <= high, f"between {low:g} and {high:g}") for key in keys)


def fraction(*keys: str) -> Iterator[Rule]:
    return ((key, lambda value: 0 <= value < 1, "at least 0 and less than 1") for key in keys)


def only(allowed: float, why: str, *keys: str) -> Iterator[Rule]:
    return ((key, lambda value: value == allowed, f"{allowed:g}: {why}") for key in keys)


def positive(*keys: str) -> Iterator[Rule]:
    return ((key, lambda value: value > 0, "more than 0") for key in keys)


def one_of(key: str, *names: str) -> Iterator[Rule]:
    yield key, lambda value: value in names, f"one of {', '.join(names)}"


def dotted(*keys: str) -> Iterator[Rule]:
    path = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
    return (
        (key, lambda value: bool(path.fullmatch(value)), "a dotted path such as my_module.my_function") for key in keys
    )


_WHOLE = "a trained token's log-probability is that of the whole distribution"
_ONE_PROCESS = "the embedded engine, the only one so far, trains in one process on one machine"
_NO_CLUSTER = "the embedded engine, the only one so far, asks for no GPUs"

RULES: tuple[Rule, ...] = (
    ("model.checkpoint", bool, "a folder in Hugging Face format, or embedded:seed"),
    *one_of("model.tool_format", "hermes", "qwen3_coder"),
    *at_least(1, "cluster.threads"),
    *between(0, 65535, "serving.router_port"),
    *at_least(1, "serving.concurrency"),
    *at_least(1, "rollout.batch_size", "rollout.samples_per_task", "rollout.max_turns", "rollout.max_response"),
    *at_least(1, "rollout.max_attempts", "rollout.sandbox_concurrency"),
    *positive("rollout.time_budget", "rollout.temperature"),
    *only(1, _WHOLE, "rollout.top_p"),
    *only(-1, _WHOLE, "rollout.top_k"),
    *dotted(
        "rollout.generate",
        "rollout.log",
        "rollout.log_evaluation",
        "reward.function",
        "data.source",
        "algorithm.post_process",
    ),
    *one_of("reward.mode", "plus_minus", "binary", "fraction"),
    ("data.train", bool, "at least one task set, such as embedded:train"),
    *at_least(1, "data.eval_samples_per_task"),
    *one_of("algorithm.estimator", "grpo"),
    *fraction("algorithm.clip_low", "optimizer.beta1", "optimizer.beta2"),
    *at_least(0, "algorithm.clip_high", "algorithm.kl_coef", "algorithm.entropy_coef"),
    *one_of("algorithm.kl_type", "k1", "k2", "k3", "low_var_kl"),
    *positive("algorithm.tis_clip", "optimizer.lr", "optimizer.eps"),
    *at_least(1, "algorithm.steps_per_rollout"),
    *one_of("optimizer.name", "adamw", "muon"),
    *one_of("optimizer.schedule", "constant", "linear"),
    *at_least(0, "optimizer.warmup_steps", "optimizer.weight_decay", "optimizer.clip_grad"),
    ("run.name", lambda value: bool(re.fullmatch(r"[\w.+=-]*", value)) and value not in (".", ".."), "a folder name"),
    ("run.dir", bool, "a folder"),
    *only(1, _ONE_PROCESS, "cluster.nodes", *(f"parallel.{way}" for way in ("tp", "pp", "cp", "ep", "etp"))),
    *only(0, _NO_CLUSTER, "cluster.gpus_per_node"),
    *at_least(0, "run.num_rollouts", "run.eval_interval", "run.seed"),
)


def check(recipe: Recipe) -> None:
    """Raise `RecipeError` for the first rule that the recipe breaks."""
    for key, allowed, text in RULES:
        value = lookup(recipe, key)
        if not allowed(value):
            raise RecipeError(f"{key}={value!r} is not allowed: it must be {text}")
    _check_together(recipe)


def lookup(recipe: Recipe, key: str) -> Any:
    """The value at a dotted key."""
    return reduce(getattr, key.split("."), recipe)


def _check_together(recipe: Recipe) -> None:
    rollout, algorithm, parallel = recipe.rollout, recipe.algorithm, recipe.parallel
    if rollout.max_response >= rollout.max_context:
        raise RecipeError(
            f"rollout.max_response={rollout.max_response} leaves no room for a prompt in "
            f"rollout.max_context={rollout.max_context}: make max_context larger"
        )
    if rollout.max_context > parallel.max_tokens_per_gpu:
        raise RecipeError(
            f"an episode of rollout.max_context={rollout.max_context} tokens does not fit a micro-batch of "
            f"parallel.max_tokens_per_gpu={parallel.max_tokens_per_gpu}: raise the latter"
        )
    if rollout.over_sampling and rollout.over_sampling < rollout.batch_size:
        raise RecipeError(
            f"rollout.over_sampling={rollout.over_sampling} is less than rollout.batch_size={rollout.batch_size}: "
            "set it to 0 (the same) or to more"
        )
    episodes = rollout.batch_size * rollout.samples_per_task
    if episodes % algorithm.steps_per_rollout:
        raise RecipeError(
            f"algorithm.steps_per_rollout={algorithm.steps_per_rollout} does not divide the {episodes} episodes of a "
            "rollout (rollout.batch_size x rollout.samples_per_task): change one of the three"
        )
