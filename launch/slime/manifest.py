"""SLiME's flags, as `make_manifest.py` read them, and attributes of its `args` as a command line of them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import pairwise
from typing import Any

from slime_swe.errors import UserError


@dataclass(frozen=True)
class Flag:
    """One flag of SLiME's.

    name: as it is written, `--lr`.
    owner: whose parser has it, `slime`, `megatron` or `sglang`.
    dest: the attribute of `args` that it sets.
    action: argparse's, `store`, `store_true` ..., or the name of a class of theirs.
    type: `int`, `float`, `str`, `json`, or the name of a function of theirs, which is not checked here.
    nargs: argparse's: how many values; None is one, or none for an action that takes none.
    """

    name: str
    owner: str
    dest: str
    action: str = "store"
    type: str | None = None
    nargs: int | str | None = None
    choices: tuple[Any, ...] | None = None
    const: Any = None
    default: Any = None
    required: bool = False

    @property
    def switch(self) -> bool:
        """It stands alone, and its value is `const`."""
        return self.action in ("store_true", "store_false", "store_const", "append_const", "count", "help", "version")

    def check(self, values: Sequence[str]) -> None:
        """Raise `UserError` where these can't follow the flag."""
        self._check_count(len(values))
        for value in values:
            self._check_value(value)

    def _check_count(self, count: int) -> None:
        if self.switch and count:
            raise UserError(f"{self.name} takes no value")
        wanted = self.nargs if isinstance(self.nargs, int) else None
        if self.nargs is None and not self.switch and self.action != "BooleanOptionalAction":
            wanted = 1
        missing = count == 0 and self.nargs == "+"
        if missing or (wanted is not None and count != wanted):
            raise UserError(f"{self.name} takes {wanted or 'at least one'} value(s), and {count} follow(s)")

    def _check_value(self, text: str) -> None:
        try:
            value = _READERS.get(self.type or "str", str)(text)
        except ValueError as error:
            raise UserError(f"{self.name} {text}: it must be {_TYPE_NAMES[self.type or 'str']}") from error
        if self.choices is not None and value not in self.choices:
            raise UserError(f"{self.name} {text}: it must be one of {', '.join(map(str, self.choices))}")


_READERS: dict[str, Any] = {"int": int, "float": float, "json": json.loads}
_TYPE_NAMES = {"int": "a whole number", "float": "a number", "json": "JSON", "str": "text"}


@dataclass(frozen=True)
class Manifest:
    """made_from: SLiME's and Megatron's commits, SGLang's and its router's versions. flags: by name."""

    made_from: Mapping[str, str]
    flags: Mapping[str, Flag]

    def of_dest(self, dest: str) -> list[Flag]:
        """The flags that set an attribute, the first that was declared first."""
        return self._by_dest.get(dest, [])

    def check(self, argv: Sequence[str]) -> None:
        """Raise `UserError` for the first flag of a command line that SLiME does not know, or not so."""
        for name, values in split(argv):
            self.require(name).check(values)

    def require(self, name: str) -> Flag:
        """The flag. Raises `UserError` with the nearest names where there is none."""
        if name not in self.flags:
            nearest = difflib.get_close_matches(name, self.flags, n=3, cutoff=0.6)
            hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
            raise UserError(f"SLiME {self.made_from['slime'][:9]} has no flag {name}{hint}")
        return self.flags[name]

    @cached_property
    def _by_dest(self) -> dict[str, list[Flag]]:
        found: dict[str, list[Flag]] = {}
        for flag in self.flags.values():
            found.setdefault(flag.dest, []).append(flag)
        return found


def split(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the argv up to the next. Raises `UserError` for values before the first."""
    if argv and not argv[0].startswith("--"):
        raise UserError(f"{argv[0]!r} follows no flag")
    starts = [index for index, argument in enumerate(argv) if argument.startswith("--")]
    for start, end in pairwise([*starts, len(argv)]):
        name, equals, value = argv[start].partition("=")
        yield name, [*([value] if equals else []), *argv[start + 1 : end]]


@cache
def load_manifest() -> Manifest:
    """The manifest that comes with this package."""
    content = json.loads((files("slime_swe.launch.slime") / "flags.json").read_text(encoding="utf-8"))
    return Manifest(content["made_from"], {name: _flag(name, stated) for name, stated in content["flags"].items()})


def _flag(name: str, stated: Mapping[str, Any]) -> Flag:
    choices = stated.get("choices")
    return Flag(name, **{**stated, "choices": None if choices is None else tuple(choices)})


def to_argv(attributes: Mapping[str, Any], manifest: Manifest | None = None) -> tuple[str, ...]:
    """A command line that sets every attribute as given. None leaves out a flag that has no default.

    Raises `UserError` where SLiME has no flag for an attribute, or none that gives it this value.
    """
    known = manifest or load_manifest()
    argv = [argument for dest, value in attributes.items() for argument in _argv_of(dest, value, known)]
    known.check(argv)
    return tuple(argv)


def _argv_of(dest: str, value: Any, manifest: Manifest) -> list[str]:
    flags = manifest.of_dest(dest)
    if not flags:
        manifest.require("--" + dest.replace("_", "-"))
        raise UserError(f"SLiME has no flag that sets args.{dest}")
    for flag in flags:
        if flag.switch and flag.const == value:
            return [flag.name]
    if _is_default(flags, value):
        return []
    takers = [flag for flag in flags if not flag.switch]
    if not takers or value is None:
        raise UserError(f"no flag of SLiME sets args.{dest} to {value!r}: {', '.join(flag.name for flag in flags)}")
    if takers[0].action == "BooleanOptionalAction":
        return [_either(flags, value)]
    return [takers[0].name, *_values(value)]


def _is_default(flags: list[Flag], value: Any) -> bool:
    """Whether leaving the flags out sets the value. Of a switch no default is as good as False."""
    default = flags[0].default
    if all(flag.switch for flag in flags):
        return bool(value) == bool(default)
    return value is None and default is None


def _either(flags: list[Flag], value: bool) -> str:
    names = [flag.name for flag in flags]
    return next(name for name in names if name.startswith("--no-") != value)


def _values(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [text for inner in value for text in _values(inner)]
    return [json.dumps(value) if isinstance(value, dict) else str(value)]
