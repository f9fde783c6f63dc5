"""A recipe's name and `key=value` overrides, in Hydra's grammar -> one resolved `Recipe`; and its YAML."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from slime_swe.errors import UserError
from slime_swe.files import read_given
from slime_swe.launch.engines import violations
from slime_swe.launch.model import mismatches, with_model
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.checks import field_types, refuse
from slime_swe.recipes.registry import RECIPES, load_recipe
from slime_swe.recipes.tasks import with_task

DEFAULT_RECIPE = "tiny_cpu"
MOST = 2**63 - 1  # of a whole number, which JSON and PyTorch take
SHORT = {"agent": "rollout.agent", "sandbox": "rollout.sandbox"}  # what is changed most often
# Mappings whose keys are the user's, the checkpoint's or SLiME's own.
OPEN_SECTIONS = ("data.eval", "data.filters", "model.config", "reward.weights", "slime.flags")

TYPE_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list[str]: "a list of texts, such as [a,b]",
    list[float]: "a list of numbers, such as [3,1]",
    dict[str, str]: "a mapping of texts, such as {a:b}",
    dict[str, float]: "a mapping of numbers, such as {a:0.1}",
    dict[str, Any]: "a mapping, such as {a:1}",
}


def resolve(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return the validated recipe of a short name, a dotted module path or a recipe.yaml, with the overrides applied,
    of which `recipe=` names another one.

    Raises `UserError` for an unknown recipe or key, a value of the wrong type, a recipe that can't run, and one whose
    checkpoint is there and is of another shape.
    """
    recipe = assemble(name, overrides)
    refuse(violations(recipe) or mismatches(recipe))
    return recipe


def assemble(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe of `resolve` with its rules unchecked: for what lists everything that is wrong with it."""
    given, overrides = taken("recipe", overrides)
    name = given or name
    recipe = read_recipe(Path(name)) if _is_file_name(name) else load_recipe(name)
    pairs = [override.partition("=") for override in overrides]
    model, overrides = taken("model", [f"{SHORT.get(key, key)}{equals}{value}" for key, equals, value in pairs])
    task, overrides = taken("task", overrides)
    if model:
        keys = {text.lstrip("+").partition("=")[0] for text in overrides}
        recipe = with_model(recipe, model, value_of("model.folder", overrides, recipe.model.folder), keys)
    if task:
        recipe = with_task(recipe, task)
    return _overridden(recipe, overrides) if overrides else recipe


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Write the recipe as YAML that `read_recipe` takes back."""
    path.write_text(dump_recipe(recipe), encoding="utf-8")


def dump_recipe(recipe: Recipe) -> str:
    text: str = yaml.safe_dump(dataclasses.asdict(recipe), sort_keys=False, allow_unicode=True, width=120)
    return text


def read_recipe(path: Path) -> Recipe:
    """Read what `save_recipe` wrote. Raises `UserError` where the file is missing, garbled or holds unknown keys."""
    try:
        content = yaml.safe_load(read_given(path, "recipe").decode())
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"recipe {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"recipe {path} must hold a mapping of sections, such as `rollout:`, not {content!r:.60}")
    try:
        return _recipe_of(dict(flatten(content)))
    except UserError as error:
        raise UserError(f"recipe {path}: {error}") from error


def _is_file_name(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or "/" in name


def _overridden(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Apply the overrides one after the other. A list or a mapping that is given replaces the recipe's."""
    values = dict(flatten(dataclasses.asdict(recipe)))
    parser = OverridesParser.create()
    for text in overrides:
        try:
            override = parser.parse_override(text)
            if override.is_sweep_override():
                raise HydraException("one value a key")
        except HydraException as error:
            raise UserError(f"can't read the override {text!r}: {_how_to_write(text)}") from error
        key, value = override.key_or_group, override.value()
        if field_types(constrained=False).get(key) is str and not isinstance(value, str | None):
            value = text.partition("=")[2]  # run.name=123
        _set(values, key, value, remove=override.is_delete())
    return _recipe_of(values)


def _set(values: dict[str, Any], key: str, value: Any, *, remove: bool) -> None:
    """Change the leaves of a recipe at one key. Raises `UserError` where there is none such."""
    require_known(key)
    section = next((name for name in OPEN_SECTIONS if key.startswith(f"{name}.")), None)
    if section is None:
        if remove:
            wanted = TYPE_NAMES[field_types(constrained=False)[key]]
            raise UserError(f"{key} can't be removed or left empty: it must be {wanted}")
        values[key] = value
        return
    values[section] = _changed(values[section], key, key.removeprefix(f"{section}."), value, remove=remove)


def _changed(kept: dict[str, Any], key: str, name: str, value: Any, *, remove: bool) -> dict[str, Any]:
    """Return an open section with one entry set or removed, or one within a section that it holds."""
    inner, _, rest = name.partition(".")
    if isinstance(kept.get(inner), dict) and rest:
        return kept | {inner: _changed(kept[inner], key, rest, value, remove=remove)}
    if remove and name not in kept:
        section = key.removesuffix(f".{name}")
        raise UserError(f"there is no {key} to remove: {section} has {', '.join(kept) or 'nothing'}")
    return {other: old for other, old in kept.items() if other != name} if remove else kept | {name: value}


def _how_to_write(text: str) -> str:
    near = [text] if _is_file_name(text) else get_close_matches(text, RECIPES, n=1)
    if "=" not in text and near:
        return f"did you mean recipe={near[0]}?"
    return "write key=value, and quote a value that holds a comma, a bracket or a colon: \"key='a, b'\""


def _recipe_of(values: Mapping[str, Any]) -> Recipe:
    """Make a recipe of leaves; what they leave out has its default. Raises `UserError` for a key or a type."""
    for key in values:
        require_known(key)
    recipe: Recipe = _build(Recipe, {key: _typed(key, value) for key, value in values.items()}, "")
    return recipe


def _build(kind: Any, values: Mapping[str, Any], prefix: str) -> Any:
    given: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        key, hint = f"{prefix}{field.name}", hints[field.name]
        mandatory = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if dataclasses.is_dataclass(hint):
            if mandatory or any(name.startswith(f"{key}.") for name in values):
                given[field.name] = _build(hint, values, f"{key}.")
        elif key in values:
            given[field.name] = values[key]
        elif mandatory:
            raise UserError(f"{key} is missing")
    return kind(**given)


def _typed(key: str, value: Any) -> Any:
    """Convert a value to the key's type: a number may be given as text, and text as a number. Rules come later."""
    hint = field_types(constrained=False)[key]
    try:
        if hint is str and value is not None and not isinstance(value, dict | list):
            return str(value)
        if hint == list[str] and isinstance(value, list):
            return [str(entry) for entry in value]
        if hint == dict[str, str] and isinstance(value, dict):
            return {str(name): str(entry) for name, entry in value.items()}
        found = msgspec.convert(value, hint, strict=False)
        if isinstance(found, int) and abs(found) > MOST:
            raise msgspec.ValidationError("too large")
        return found
    except msgspec.ValidationError as error:
        shown = "null" if value is None else value
        raise UserError(f"{key}={shown} is not allowed: it must be {TYPE_NAMES[hint]}") from error


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help=f"recipe=NAME (or a module, or a recipe.yaml; else {DEFAULT_RECIPE}), and changes to it; model=ORG/NAME "
        "or a folder is another model of its family, task=NAME another kind of tasks",
    )


def taken(key: str, overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split off what is given as `recipe=`, `model=` or `task=`, the last one if several, from the other overrides.

    Raises `UserError` where it is empty, as by a variable of the shell that is not set.
    """
    values = [text.removeprefix(f"{key}=") for text in overrides if text.startswith(f"{key}=")]
    if "" in values:
        raise UserError(f"{key}= is given without a name: leave it out, or name one")
    return (values[-1] if values else None), [text for text in overrides if not text.startswith(f"{key}=")]


def value_of(key: str, overrides: Sequence[str], default: str) -> str:
    """Return the value that an override gives to one key."""
    given = [text.partition("=")[2] for text in overrides if text.lstrip("+").startswith(f"{key}=")]
    return given[-1] if given else default


def with_value(recipe: Recipe, key: str, value: object) -> Recipe:
    """Return the recipe with another value at a dotted key."""
    changed: Recipe = _with_value(recipe, key, value)
    return changed


def _with_value(part: Any, key: str, value: object) -> Any:
    name, _, rest = key.partition(".")
    return dataclasses.replace(part, **{name: _with_value(getattr(part, name), rest, value) if rest else value})


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every leaf; an open section is one leaf."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in OPEN_SECTIONS:
            yield from flatten(value, f"{key}.")
        else:
            yield key, value


def require_known(key: str) -> None:
    """Raise `UserError` with the nearest names where a recipe has no such key."""
    names = list(field_types())
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
    """Return the names like the whole key, or else those whose last part is like the key's."""
    last = key.rsplit(".", 1)[-1]
    whole = get_close_matches(key, names, n=3, cutoff=0.75)
    return whole or [name for name in names if get_close_matches(last, [name.rsplit(".", 1)[-1]], cutoff=0.7)][:3]
