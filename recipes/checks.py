"""What makes a recipe legal: each field by itself, names that must exist, and fields that belong together.

An engine adds rules of its own: see `slime_swe.launch.engines.Engine.violations`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import cache, reduce
from itertools import chain
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from slime_swe.errors import UserError
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.families import FAMILIES, load_family
from slime_swe.recipes.violation import Violation, divisors, listed
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS, tool_format

Rule = Callable[[Recipe], Iterable[Violation]]
Fixed = tuple[str, Any, str]  # dotted key, the one value that it may have, why


def violations(recipe: Recipe, *of_engine: Rule) -> list[Violation]:
    """Every rule that the recipe breaks; where single fields are wrong already, only these."""
    return wrong_fields(recipe) or broken_rules(recipe, *of_engine)


def broken_rules(recipe: Recipe, *of_engine: Rule) -> list[Violation]:
    """Fields that don't go together, each of them allowed by itself."""
    return [*chain.from_iterable(rule(recipe) for rule in (*RULES, *of_engine))]


def wrong_fields(recipe: Recipe) -> list[Violation]:
    """Fields whose value is not allowed, whatever the others say."""
    found = ((key, lookup(recipe, key), hint) for key, hint in field_types().items())
    return [
        *(
            Violation(key, f"{key}={value!r} is not allowed", why)
            for key, value, hint in found
            if (why := _why_not(value, hint))
        ),
        *_unknown_names(recipe),
    ]


@cache
def field_types(kind: Any = Recipe, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> type with its constraint, of every leaf field of a dataclass."""
    types: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        section = isinstance(hint, type) and dataclasses.is_dataclass(hint)
        types |= field_types(hint, f"{prefix}{name}.") if section else {f"{prefix}{name}": hint}
    return types


def allowed(hint: Any) -> str:
    """What the constraint of a field's type allows, in words; empty where it has none."""
    if get_origin(hint) is not Annotated:
        return ""
    meta = get_args(hint)[1]
    bounds = (("at least", meta.ge), ("more than", meta.gt), ("at most", meta.le), ("less than", meta.lt))
    return meta.description or " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)


def _why_not(value: Any, hint: Any) -> str:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        of_type = ", got " not in str(error)
        return f"it must be {allowed(hint)}" if of_type and allowed(hint) else str(error)
    return ""


def _unknown_names(recipe: Recipe) -> Iterator[Violation]:
    """Names of what is kept in a registry, or dotted paths."""
    model = recipe.model
    names: list[tuple[str, str, Callable[[str], Any], Iterable[str]]] = [
        ("model.architecture.family", model.architecture.family, load_family, FAMILIES)
    ]
    if model.tool_format:  # empty is how the family writes
        names.append(("model.tool_format", model.tool_format, tool_format, TOOL_FORMATS))
    for key, name, load, registry in names:
        try:
            load(name)
        except UserError as error:
            fix = f"it must be one of {', '.join(registry)}, or a dotted path: {error}"
            yield Violation(key, f"{key}={name!r} is not allowed", fix)


def lookup(recipe: Recipe, key: str) -> Any:
    """The value at a dotted key."""
    return reduce(getattr, key.split("."), recipe)


def only(value: object, why: str, *keys: str) -> tuple[Fixed, ...]:
    """For an engine that takes one value of these fields."""
    return tuple((key, value, why) for key in keys)


def not_fixed(recipe: Recipe, rules: Iterable[Fixed]) -> Iterator[Violation]:
    """Fields with another value than the one that an engine takes."""
    for key, value, why in rules:
        if lookup(recipe, key) != value:
            shown = str(value).lower() if isinstance(value, bool) else "empty" if value in ("", []) else str(value)
            yield Violation(key, f"{key}={lookup(recipe, key)!r} is not allowed", f"it must be {shown}: {why}")


def family(recipe: Recipe) -> Iterator[Violation]:
    """The parts of an architecture that its family decides."""
    architecture = recipe.model.architecture
    kind = load_family(architecture.family)
    for name, value in {"qkv_bias": kind.qkv_bias, "qk_norm": kind.qk_norm}.items():
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
    expected = bool(load_family(architecture.family).expert_keys)
    if expected and not (0 < sizes[1] <= sizes[0] and sizes[2]):
        yield Violation(
            "model.architecture.experts",
            "model.architecture.experts={}, experts_per_token={} and expert_ffn={} make no mixture".format(*sizes),
            "give all three, experts_per_token not more than experts",
        )
    elif not expected and any(sizes):
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


RULES: tuple[Rule, ...] = (
    family,
    grouped_heads,
    mixture,
    response_fits,
    context_fits,
    sampling,
    steps,
    importance_sampling,
)
