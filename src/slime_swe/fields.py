"""Read a dataclass out of what comes from outside: a JSON record, or SLiME's `args`. All faults are named at once.

A field's type says what is allowed; `msgspec` checks it, without coercion. `Annotated[int, Meta(ge=1)]` bounds a
number, `Literal["a", "b"]` names the choices, `Annotated[str, Choice(NAMES)]` those of a registry, and
`Annotated[str, Argument("swe_agent")]` the attribute of `args` that holds the field. A class that must check more than
single fields has a method `faults() -> Iterable[str]`; one that stands for several has
`class_of(record)`, which reads the key `kind`.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from slime_swe.errors import UserError, unknown

__all__ = ["Argument", "Choice", "Meta", "read", "read_arguments"]
T = TypeVar("T")
_SHOWN = 80  # characters of a value in a message
_FAULTS, _FAULT = 20, 500  # that a message names, and characters of each


@dataclass(frozen=True)
class Argument:
    """The attribute of `args` that a field is read from, where it has another name."""

    name: str


@dataclass(frozen=True)
class Choice:
    """The names that a field may have; a dotted path too, where `dotted`."""

    names: Iterable[str]
    dotted: bool = False


def read(kind: type[T], record: Any, what: str, *, partial: bool = False) -> T:
    """Read an object of `kind`. Raises `UserError` that names `what`, every field that is wrong and what is allowed.

    With `partial`, other keys of the record are not looked at, and null counts as missing.
    """
    faults: list[str] = []
    if partial and isinstance(record, Mapping):
        record = {name: record[name] for name in _hints(typing.cast(Any, kind)) if record.get(name) is not None}
    found = _read(kind, record, "", faults)
    if faults:
        raise UserError(f"{what}: {_message(faults)}")
    return typing.cast(T, found)


def read_arguments(kind: type[T], args: Any) -> T:
    """Read an object of `kind` from the attributes of `args`; None counts as missing, and others are not looked at."""
    names = {name: _argument(hint) or name for name, hint in _hints(typing.cast(Any, kind)).items()}
    given = {name: value for name, at in names.items() if (value := getattr(args, at, None)) is not None}
    faults: list[str] = []
    found = _built(kind, given, faults, lambda name: f"args.{names[name]}", lambda name: _where_to_set(names[name]))
    if faults:
        raise UserError(_message(faults))
    return typing.cast(T, found)


def _read(kind: Any, record: Any, where: str, faults: list[str]) -> Any:
    if not isinstance(record, Mapping):
        faults.append(f"{where or 'it'} must be a JSON object, got {_shown(record)}")
        return None
    try:
        if hasattr(kind, "class_of"):
            kind = kind.class_of(record)
            record = {key: value for key, value in record.items() if key != "kind"}
    except UserError as error:
        faults.append(f"{where}{error}")
        return None
    before = f"{where}." if where else ""
    known = [field.name for field in fields(kind)]
    others = [key for key in record if key not in known][: _FAULTS + 1]
    faults += [_unknown_key(f"{before}{key}", key, known) for key in others]
    return _built(kind, record, faults, lambda name: f"{before}{name}")


def _built(
    kind: Any,
    given: Mapping[str, Any],
    faults: list[str],
    place: Callable[[str], str],
    remedy: Callable[[str], str] = lambda name: "",
) -> Any:
    """Build a `kind` from the given values. Returns None where a field is wrong, with the faults added to `faults`."""
    values: dict[str, Any] = {}
    earlier = len(faults)
    for field in fields(kind):
        if field.name in given:
            values[field.name] = _value(_hints(kind)[field.name], given[field.name], place(field.name), faults)
        elif _is_required(field):
            faults.append(f"{place(field.name)} is missing{remedy(field.name)}")
    if len(faults) > earlier:
        return None
    found = kind(**values)
    faults += [place(fault) for fault in found.faults()] if hasattr(found, "faults") else []
    return found


def _value(hint: Any, value: Any, where: str, faults: list[str]) -> Any:
    kind, notes = _parts(hint)
    if is_dataclass(kind):
        return None if value is None and _is_optional(hint) else _read(kind, value, where, faults)
    faults += _refused(kind, notes, value, where)
    try:
        return msgspec.convert(value, hint, dec_hook=_convert)
    except msgspec.ValidationError as error:
        if not any(fault.startswith(where) for fault in faults):
            faults.append(f"{where}{_said(error)}, got {_shown(value)}")
        return None


def _refused(kind: Any, notes: Iterable[Any], value: Any, where: str) -> Iterator[str]:
    """Yield the fault of a name that is none of the choices, with the nearest one."""
    choices = [Choice(get_args(kind))] if get_origin(kind) is Literal else [n for n in notes if isinstance(n, Choice)]
    for choice in choices:
        if isinstance(value, str) and value not in choice.names and not (choice.dotted and "." in value):
            yield unknown(where, value, choice.names)


def _convert(kind: type, value: Any) -> Any:
    if kind is Path:
        if not isinstance(value, str):
            raise TypeError("Expected `str`")
        return Path(value)
    raise NotImplementedError(f"a field of type {kind}")


def _said(error: msgspec.ValidationError) -> str:
    """Turn "Expected `str`, got `int` - at `$[0]`" into `[0] must be str`."""
    match = re.fullmatch(r"(.*?)(?:, got .*?)?(?: - at `\$(.*)`)?", str(error))
    assert match is not None, error
    wanted = (
        match[1].removeprefix("Expected ").replace("`", "").replace(" >= ", " of at least ").replace(" > ", " above ")
    )
    return f"{match[2] or ''} must be {wanted}"


def _unknown_key(where: str, key: Any, known: Iterable[str]) -> str:
    near = get_close_matches(str(key), list(known), n=1, cutoff=0.5)
    return f"{where} is not a field" + (f": did you mean {near[0]!r}?" if near else f" ({', '.join(known)})")


def _where_to_set(name: str) -> str:
    if name.startswith("swe_"):
        return ": set it in the recipe, or in the file that SLiME's --custom-config-path names"
    return f": set it in the recipe, or by SLiME's --{name.replace('_', '-')}"


def _message(faults: list[str]) -> str:
    more = ["and more"] if len(faults) > _FAULTS else []
    return "; ".join([*(_cut(fault, _FAULT) for fault in faults[:_FAULTS]), *more])


def _shown(value: Any) -> str:
    return _cut(repr(value), _SHOWN)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split a hint into the type itself, without `| None`, and what is annotated."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if _is_optional(hint):
        kind = next(inner for inner in get_args(kind) if inner is not types.NoneType)
    return kind, tuple(notes)


def _is_optional(hint: Any) -> bool:
    return types.NoneType in get_args(hint)


def _argument(hint: Any) -> str:
    return next((note.name for note in _parts(hint)[1] if isinstance(note, Argument)), "")


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING
