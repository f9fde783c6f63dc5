"""The flags that SLiME knows, as `make_manifest.py` read them, and whether a command line fits them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import pairwise
from typing import Any


class FlagError(ValueError):
    """A command line that SLiME would not take; the message names the flag and what it takes."""


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

    def check(self, words: Sequence[str]) -> None:
        """Raise `FlagError` where these can't follow the flag."""
        self._check_count(len(words))
        for word in words:
            self._check_value(word)

    def _check_count(self, count: int) -> None:
        if self.switch and count:
            raise FlagError(f"{self.name} takes no value")
        wanted = self.nargs if isinstance(self.nargs, int) else None
        if self.nargs is None and not self.switch and self.action != "BooleanOptionalAction":
            wanted = 1
        missing = count == 0 and self.nargs == "+"
        if missing or (wanted is not None and count != wanted):
            raise FlagError(f"{self.name} takes {wanted or 'at least one'} value(s), and {count} follow(s)")

    def _check_value(self, word: str) -> None:
        try:
            value = _READERS.get(self.type or "str", str)(word)
        except ValueError as error:
            raise FlagError(f"{self.name} {word}: it must be {_TYPE_NAMES[self.type or 'str']}") from error
        if self.choices is not None and value not in self.choices:
            raise FlagError(f"{self.name} {word}: it must be one of {', '.join(map(str, self.choices))}")


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

    def check(self, words: Sequence[str]) -> None:
        """Raise `FlagError` for the first flag of a command line that SLiME does not know, or not so."""
        for name, values in split(words):
            self.require(name).check(values)

    def require(self, name: str) -> Flag:
        """The flag. Raises `FlagError` with the nearest names where there is none."""
        if name not in self.flags:
            nearest = difflib.get_close_matches(name, self.flags, n=3, cutoff=0.6)
            hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
            raise FlagError(f"SLiME {self.made_from['slime'][:9]} has no flag {name}{hint}")
        return self.flags[name]

    @cached_property
    def _by_dest(self) -> dict[str, list[Flag]]:
        found: dict[str, list[Flag]] = {}
        for flag in self.flags.values():
            found.setdefault(flag.dest, []).append(flag)
        return found


def split(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words up to the next. Raises `FlagError` for words before the first."""
    if words and not words[0].startswith("--"):
        raise FlagError(f"{words[0]!r} follows no flag")
    starts = [index for index, word in enumerate(words) if word.startswith("--")]
    for start, end in pairwise([*starts, len(words)]):
        name, equals, value = words[start].partition("=")
        yield name, [*([value] if equals else []), *words[start + 1 : end]]


@cache
def load_manifest() -> Manifest:
    """The manifest that comes with this package."""
    content = json.loads((files("launch.slime") / "flags.json").read_text(encoding="utf-8"))
    return Manifest(content["made_from"], {name: _flag(name, told) for name, told in content["flags"].items()})


def _flag(name: str, told: Mapping[str, Any]) -> Flag:
    choices = told.get("choices")
    return Flag(name, **{**told, "choices": None if choices is None else tuple(choices)})
