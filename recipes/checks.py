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
    """Names of what is kept in a registry, or dotted paths. An empty tool format is how the family writes."""
    names: dict[str, tuple[Callable[[str], Any], Iterable[str]]] = {
        "model.architecture.family": (load_family, FAMILIES),
        "model.tool_format": (lambda name: name and tool_format(name), TOOL_FORMATS),
    }
    for key, (load, registry) in names.items():
        try:
            load(lookup(recipe, key))
        except UserError as error:
            fix = f"it must be one of {', '.join(registry)}, or a dotted path: {error}"
            yield Violation(key, f"{key}={lookup(recipe, key)!r} is not allowed", fix)


def lookup(recipe: Recipe, key: str) -> Any:
    """The value at a dotted key."""
    return reduce(getattr, key.split("."), recipe)


def against(recipe: Recipe) -> Callable[[str, str, str], Violation]:
    """What makes a violation `KEY=VALUE why: fix` of this recipe's value at a key."""
    return lambda key, why, fix: Violation(key, f"{key}={_shown(lookup(recipe, key))} {why}", fix)


def _shown(value: Any) -> str:
    """As on the command line."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def only(value: object, why: str, *keys: str) -> tuple[Fixed, ...]:
    """For an engine that takes one value of these fields."""
    return tuple((key, value, why) for key in keys)


def not_fixed(recipe: Recipe, rules: Iterable[Fixed]) -> Iterator[Violation]:
    """Fields with another value than the one that an engine takes."""
    for key, value, why in rules:
        if lookup(recipe, key) != value:
            shown = "empty" if value in ("", [], {}) else _shown(value)
            yield Violation(key, f"{key}={lookup(recipe, key)!r} is not allowed", f"it must be {shown}: {why}")


def shape(recipe: Recipe) -> Iterator[Violation]:
    """The parts of an architecture that its family decides, and those that decide each other."""
    no, model, before = against(recipe), recipe.model.architecture, "model.architecture."
    family = load_family(model.family)
    for name, value in {"qkv_bias": family.qkv_bias, "qk_norm": family.qk_norm}.items():
        if getattr(model, name) != value:
            yield no(f"{before}{name}", f"is what {model.family} models don't have", f"set it to {_shown(value)}")
    if model.heads % model.kv_heads:
        fix = f"use {listed(divisors(model.heads))}"
        yield no(f"{before}kv_heads", f"does not divide heads={model.heads}", fix)
    sizes = f"with experts_per_token={model.experts_per_token} and expert_ffn={model.expert_ffn}"
    if not family.expert_keys and (model.experts or model.experts_per_token or model.expert_ffn):
        yield no(f"{before}experts", f"{sizes}, but {model.family} models have no experts", "set all three to 0")
    elif family.expert_keys and not (0 < model.experts_per_token <= model.experts and model.expert_ffn):
        fix = "give all three, experts_per_token not more than experts"
        yield no(f"{before}experts", f"{sizes} make no mixture", fix)


def lengths(recipe: Recipe) -> Iterator[Violation]:
    """The trainer packs whole episodes, and the model has positions for so many tokens."""
    no, rollout, parallel = against(recipe), recipe.rollout, recipe.parallel
    context, most = rollout.max_context, recipe.model.architecture.max_context
    if rollout.max_response >= context:
        why = f"leaves no room for a prompt in rollout.max_context={context}"
        yield no("rollout.max_response", why, "make max_context larger")
    if context > parallel.max_tokens_per_gpu * parallel.cp:
        why = f"x parallel.cp={parallel.cp} tokens do not hold an episode of rollout.max_context={context}"
        fix = f"raise max_tokens_per_gpu to {-(-context // parallel.cp)}, or cp"
        yield no("parallel.max_tokens_per_gpu", why, fix)
    if context > most:
        why = f"is more than the model was made for, model.architecture.max_context={most}"
        yield no("rollout.max_context", why, "make it smaller")


def amounts(recipe: Recipe) -> Iterator[Violation]:
    no, rollout, algorithm = against(recipe), recipe.rollout, recipe.algorithm
    episodes = rollout.batch_size * rollout.samples_per_task
    if episodes % algorithm.steps_per_rollout:
        why = f"does not divide the {episodes} episodes of a rollout (rollout.batch_size x rollout.samples_per_task)"
        yield no("algorithm.steps_per_rollout", why, "change one of the three")
    if algorithm.tis and algorithm.rollout_logprobs:
        why = "corrects the ratio's denominator, which algorithm.rollout_logprobs=true takes from the server as it is"
        yield no("algorithm.tis", why, "set one of them to false")
    if algorithm.tis_clip_low > algorithm.tis_clip:
        why = f"is more than algorithm.tis_clip={algorithm.tis_clip:g}"
        yield no("algorithm.tis_clip_low", why, "make it smaller")


RULES: tuple[Rule, ...] = (shape, lengths, amounts)
