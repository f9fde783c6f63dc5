"""`Config`: a `config.json`, or a section of it, as a family reads it. It remembers what was read, and as what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime_swe.errors import UserError


class Config:
    """Values by Hugging Face's own keys. Null counts as missing.

    values: dotted key -> the value that was read there, what stands for a missing one included.
    places: dotted keys that hold what was read.

    Every method raises `UserError` that names the key, its value and what is allowed.
    """

    def __init__(self, content: Any, parent: Config | None = None, section: str = "") -> None:
        if not isinstance(content, Mapping):
            raise UserError(f"{section or 'it'} must be a mapping of keys and values, not {content!r:.60}")
        self._content, self._before = content, f"{section}." if section else ""
        self.values: dict[str, Any] = parent.values if parent else {}
        self.places: set[str] = parent.places if parent else set()

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._checked(key, self._found(key, default), (str,), "text"))

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number."""
        value = self._checked(key, self._found(key, default), (int,), f"a whole number of at least {least}")
        return int(value) if value >= least else self._refuse(key, value, f"a whole number of at least {least}")

    def size_or_null(self, key: str) -> int | None:
        """A whole number, or None where the content states null: a key that is left out is missing."""
        if self._content.get(key, 0) is not None:
            return self.size(key)
        self.places.add(f"{self._before}{key}")
        self.values[f"{self._before}{key}"] = None
        return None

    def number(self, key: str, default: float | None = None, within: str = "") -> float:
        """More than 0. within: a section that newer writers put it in."""
        value = self._checked(key, self._found(key, default, within), (int, float), "a number above 0")
        return float(value) if value > 0 else self._refuse(key, value, "a number above 0")

    def flag(self, key: str, default: bool | None = None) -> bool:
        return bool(self._checked(key, self._found(key, default), (bool,), "true or false"))

    def texts(self, key: str, default: list[str]) -> list[str]:
        value = self._found(key, default)
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            self._refuse(key, value, "a list of texts")
        return list(value)

    def only(self, key: str, allowed: Any, within: str = "", *, stated: bool = False) -> None:
        """Nothing else can be trained. stated: leaving it out means something else. False, 0 and [] are one value."""
        value = self._found(key, None if stated else allowed, within)
        if value != allowed and (value or allowed):
            raise UserError(f"{self._before}{key} is {value!r}, and only {allowed!r} can be trained")

    def section(self, key: str) -> Config:
        return Config(self._content.get(key), self, f"{self._before}{key}")

    def has(self, key: str) -> bool:
        return self._content.get(key) is not None

    def part(self) -> dict[str, Any]:
        """What was read of the content: the same keys and values, and no others."""
        return _part(self._content, self.places, self._before)

    def unread(self) -> list[str]:
        """Dotted keys of the content that nothing has read."""
        return [key for key in _leaves(self._content, self._before) if key not in self.places]

    def _found(self, key: str, default: Any, within: str = "") -> Any:
        inner = self._content.get(within) if within else None
        nested = isinstance(inner, Mapping) and inner.get(key) is not None
        value = inner[key] if isinstance(inner, Mapping) and nested else self._content.get(key)
        self.places.add(f"{self._before}{within}.{key}" if nested else f"{self._before}{key}")
        value = default if value is None else value
        if value is None:
            raise UserError(f"{self._before}{key} is missing")
        self.values[f"{self._before}{key}"] = value
        return value

    def _checked(self, key: str, value: Any, kinds: tuple[type, ...], wanted: str) -> Any:
        right = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        return value if right else self._refuse(key, value, wanted)

    def _refuse(self, key: str, value: Any, wanted: str) -> Any:
        raise UserError(f"{self._before}{key}={value!r} is not allowed: it must be {wanted}")


def _leaves(content: Mapping[str, Any], before: str) -> Iterator[str]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def _part(content: Mapping[str, Any], places: set[str], before: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in content.items():
        if f"{before}{key}" in places:
            found[key] = value
        elif isinstance(value, Mapping) and (inner := _part(value, places, f"{before}{key}.")):
            found[key] = inner
    return found
