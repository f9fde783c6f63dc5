"""Read one argument out of SLiME's `args` namespace, so that each error says what is missing or wrong."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Any

_REQUIRED = object()


class ArgumentError(ValueError):
    """An argument of the run is missing or wrong; the message names it and says what is allowed."""


def read(args: Any, name: str, kind: type | tuple[type, ...], *, default: Any = _REQUIRED) -> Any:
    """The attribute `name` of `args`, checked to be of `kind`; `default` where it is absent or None.

    A bool is not taken for an int. Raises `ArgumentError`.
    """
    value = getattr(args, name, None)
    if value is None:
        if default is _REQUIRED:
            raise ArgumentError(f"args.{name} is missing: {_where_to_set(name)}")
        return default
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        allowed = " or ".join(k.__name__ for k in kinds)
        raise ArgumentError(f"args.{name} must be {allowed}, got {value!r} ({type(value).__name__})")
    return value


def read_number(args: Any, name: str, kind: type, *, minimum: float, default: Any = _REQUIRED) -> Any:
    """A number of at least `minimum`, converted to `kind` (an int is taken where a float is wanted)."""
    value = kind(read(args, name, (int, float) if kind is float else (int,), default=default))
    if value < minimum:
        raise ArgumentError(f"args.{name} must be at least {minimum}, got {value}")
    return value


def read_choice(args: Any, name: str, choices: Collection[str], *, default: Any = _REQUIRED) -> str:
    """One of `choices`."""
    value: str = read(args, name, str, default=default)
    if value not in choices:
        raise ArgumentError(unknown(f"args.{name}", value, choices))
    return value


def unknown(what: str, given: str, choices: Collection[str]) -> str:
    """The message for a name that is not among `choices`: the nearest one first, then all of them."""
    near = get_close_matches(given, list(choices), n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{what}: unknown name {given!r}.{hint} Available: {', '.join(sorted(choices))}"


def _where_to_set(name: str) -> str:
    if name.startswith("swe_"):
        return "set it in the recipe, or in the file that SLiME's --custom-config-path names"
    return f"set it in the recipe, or by SLiME's --{name.replace('_', '-')}"
