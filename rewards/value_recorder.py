"""Records values in the sandbox, in a plain form that is compared outside of it (`rewards.withheld`).

`canonical` gives one text for all values that are equal to one literal: `3`, `3.0`, `True` is `1`, a subclass of `dict`
is its items in any order. Only a digest of the text is recorded, so a record has a fixed size, and no value that code
under test wrote is parsed.

This file is put into test files as text (for Python 3.6 or newer), and imported where the literals are.
"""

import collections.abc
import hashlib
import numbers
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 65536  # characters of a value's text; a longer value has no plain form
DIGITS = 16  # of a digest
OF_A_SITE = 2  # different values that one process records of one place: two are enough to show that one is wrong


class NotPlain(Exception):
    """The value is of another type, or too large."""


def canonical(value: "Any") -> str:
    """Raises `NotPlain`, and whatever the methods of the value raise."""
    parts: list[str] = []
    _write(value, parts, [LONGEST])
    return "".join(parts)


def digest(value: "Any") -> str:
    """Of its canonical text; `?` where it has none."""
    try:
        return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()[:DIGITS]
    except Exception:
        return "?"


def _write(value: "Any", parts: "list[str]", left: "list[int]") -> None:
    """Append the value's text. left: how many characters it may still have."""
    sized = isinstance(value, (str, bytes, bytearray, list, tuple, collections.abc.Set, collections.abc.Mapping))
    if sized and len(value) > left[0]:
        raise NotPlain
    if value is None or value is Ellipsis:
        text = str(value)
    elif isinstance(value, (str, bytes, bytearray)):
        text = ascii(str.__str__(value) if isinstance(value, str) else bytes(value))
    elif isinstance(value, (list, tuple)):
        text = "list" if isinstance(value, list) else "tuple"
        _write_all(value, parts, left)
    elif isinstance(value, collections.abc.Set):
        text = "set"
        _write_sorted([[item] for item in value], parts, left)
    elif isinstance(value, collections.abc.Mapping):
        text = "dict"
        _write_sorted([list(item) for item in value.items()], parts, left)
    else:
        text = _number(value)
    parts.append(text)
    left[0] -= len(text) + 1
    if left[0] < 0:
        raise NotPlain


def _write_all(items: "Any", parts: "list[str]", left: "list[int]") -> None:
    parts.append("(")
    for item in items:
        _write(item, parts, left)
        parts.append(",")
    parts.append(")")


def _write_sorted(rows: "list[list[Any]]", parts: "list[str]", left: "list[int]") -> None:
    texts = []
    for row in rows:
        found: list[str] = []
        _write_all(row, found, left)
        texts.append("".join(found))
    parts.extend(["(", *sorted(texts), ")"])


def _number(value: "Any") -> str:
    """One text for equal numbers of whatever type. Raises `NotPlain` for what is none."""
    if not isinstance(value, numbers.Number):
        if getattr(value, "shape", None) != ():
            raise NotPlain
        value = value.item()  # of numpy: `bool_`, or an array without dimensions
    if isinstance(value, complex) and value.imag:
        return f"{_number(value.real)}+{_number(value.imag)}j"
    real = value.real if isinstance(value, complex) else value
    if real in (float("inf"), float("-inf")):
        return str(float(real))
    if real == int(real):
        return hex(int(real))
    if real == float(real):
        return float(real).hex()
    raise NotPlain


def failure() -> BaseException:
    """What a test is ended with: in a run of pytest without a traceback, which would take as long as the test."""
    if "PYTEST_CURRENT_TEST" in os.environ and "pytest" in sys.modules:
        return sys.modules["pytest"].fail.Exception("withheld", pytrace=False)  # type: ignore[no-any-return]
    return AssertionError("withheld")


def recorder(path: str) -> "collections.abc.Callable[[int, Any], bool]":
    """A function that appends the number of a place in the tests, and the digest of a value there, to this file."""
    known: dict[int, set[str]] = {}
    opened = open  # a test may put something else in its place

    def record(site: int, value: "Any") -> bool:
        """True, so that the test goes on."""
        found, seen = digest(value), known.setdefault(site, set())
        if found not in seen and len(seen) < OF_A_SITE:
            seen.add(found)
            try:
                with opened(path, "a") as file:
                    file.write(f"{site} {found}\n")
            except OSError:
                pass
        return True

    return record
