"""The table of all recipe keys, from the dataclasses and their docstrings: `python -m tests.launch.key_table`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

from slime_swe.launch.config import TYPE_NAMES
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.checks import allowed, field_types

_FIELD = re.compile(r"^(\w+(?:, \w+)*): (.*)$")


def render() -> str:
    """Markdown, one table for the recipe itself and one for each section of it."""
    return "\n".join(_sections("the recipe itself", "", Recipe))


def _sections(title: str, prefix: str, kind: Any) -> Iterator[str]:
    """The table of a section's own fields, then those of the sections within it."""
    rows = "\n".join(_rows(prefix, kind))
    yield f"### {title}\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n{rows}\n"
    for name, hint in get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from _sections(f"`{prefix}{name}`", f"{prefix}{name}.", hint)


def meanings(kind: Any) -> dict[str, str]:
    """Field -> its line in the docstring, where a field's line may go on, indented, on the next."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in (inspect.getdoc(kind) or "").splitlines():
        start = _FIELD.match(line)
        if start:
            names = start.group(1).split(", ")
            found |= dict.fromkeys(names, start.group(2))
        elif line.startswith("    "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _rows(prefix: str, kind: Any) -> Iterator[str]:
    said, types = meanings(kind), field_types(constrained=False)
    for field in dataclasses.fields(kind):
        key = f"{prefix}{field.name}"
        if key not in types:
            continue  # a section of its own
        type_name = TYPE_NAMES[types[key]].split(",")[0].removeprefix("a ")
        if types[key] in (int, float) and (bounds := allowed(field_types()[key])):
            type_name += f", {bounds.partition(':')[0]}"
        yield f"| `{key}` | {type_name} | {_default(field)} | {said[field.name]} |"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "" if field.default_factory is dataclasses.MISSING else f"`{field.default_factory()}`"
    shown = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    return f"`{shown}`" if shown else "empty"


if __name__ == "__main__":
    print(render(), end="")
