"""`recipe=NAME model=ORG/NAME key=value ...`: the words of the command line, and the keys that a recipe has."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_type_hints

from slime_swe.errors import UserError
from slime_swe.recipes.base import Recipe

DEFAULT_RECIPE = "tiny_cpu"
SHORT = {"agent": "rollout.agent", "sandbox": "rollout.sandbox"}  # what is changed most often
OPEN_SECTIONS = ("data.eval",)  # mappings whose keys are the user's own

TYPE_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list[str]: "a list of texts, such as [a,b]",
    dict[str, str]: "a mapping of texts, such as {a:b}",
}


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help=f"recipe=NAME (or a module, or a recipe.yaml; else {DEFAULT_RECIPE}), and changes to it; model=ORG/NAME "
        "or a folder is another model of its family",
    )


def taken(key: str, overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """What is given as `recipe=` or `model=`, the last one if several, and the other overrides."""
    values = [text.removeprefix(f"{key}=") for text in overrides if text.startswith(f"{key}=")]
    return (values[-1] if values else None), [text for text in overrides if not text.startswith(f"{key}=")]


def value_of(key: str, overrides: Sequence[str], default: str) -> str:
    """The value that an override gives to one key."""
    given = [text.partition("=")[2] for text in overrides if text.lstrip("+").startswith(f"{key}=")]
    return given[-1] if given else default


def spelled_out(override: str) -> str:
    """`key=value` with the whole key, where it is one of `SHORT`."""
    key, equals, value = override.partition("=")
    return f"{SHORT.get(key, key)}{equals}{value}"


def with_value(recipe: Recipe, key: str, value: object) -> Recipe:
    """The recipe with another value at a dotted key of two parts."""
    section, _, name = key.partition(".")
    return dataclasses.replace(recipe, **{section: dataclasses.replace(getattr(recipe, section), **{name: value})})


@cache
def key_types(kind: Any = Recipe, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> type, of every leaf field of a dataclass."""
    types: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        section, key = dataclasses.is_dataclass(hint), f"{prefix}{name}"
        types |= key_types(hint, f"{key}.") if section else {key: hint}
    return types


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every leaf; an open section is one leaf."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in OPEN_SECTIONS:
            yield from flatten(value, f"{key}.")
        else:
            yield key, value


def require_known(key: str) -> None:
    """Raise `UserError` with the nearest names where a recipe has no such key."""
    names = list(key_types())
    if key in names or key.startswith(tuple(f"{section}." for section in OPEN_SECTIONS)):
        return
    inside = [name for name in names if name.startswith(f"{key}.")]
    if inside:
        raise UserError(f"{key} is a section: set one of its keys, such as {', '.join(inside[:3])}")
    nearest = _nearest(key, names)
    sections = dict.fromkeys(name.split(".")[0] for name in names if "." in name)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"the sections are {', '.join(sections)}"
    raise UserError(f"there is no key {key!r}: {hint}")


def _nearest(key: str, names: list[str]) -> list[str]:
    """Names like the whole key, or else names whose last part is like the key's."""
    last = key.rsplit(".", 1)[-1]
    whole = difflib.get_close_matches(key, names, n=3, cutoff=0.75)
    return (
        whole or [name for name in names if difflib.get_close_matches(last, [name.rsplit(".", 1)[-1]], cutoff=0.7)][:3]
    )
