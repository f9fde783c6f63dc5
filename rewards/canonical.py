"""The text that values are compared by, outside of the sandbox that gave them.

`canonical` gives one text for all values that are equal to one literal, for simple ones that literal: `3.0`, `3 + 0j`
and an `IntEnum` of 3 are `3`, `True` is `1`, any mapping is its items in one order. Two literals have one text if and
only if they are equal. So nothing that code under test wrote is parsed or evaluated, and no `__eq__` of its decides.

This file is put into sandboxes as text (for Python 3.6 or newer), and imported where the literals are.
"""

import collections.abc
import hashlib
import numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LONGEST = 65536  # characters of a value's text; a longer value has no plain form
DECIMAL = 10**18  # numbers below are written in decimal; larger ones in hexadecimal, which takes linear time
DIGITS = 16  # of a digest


class NotPlain(Exception):
    """The value is of another type, too large, or equal to nothing."""


def canonical(value: "Any") -> str:
    """Return the canonical text of a value. Raises `NotPlain`, and whatever the methods of the value raise."""
    return _text(value, [LONGEST])


def digest(value: "Any") -> str:
    """Return the digest of a value's canonical text; `?` where it has none."""
    try:
        return hashlib.sha256(canonical(value).encode("ascii")).hexdigest()[:DIGITS]
    except Exception:
        return "?"


def _text(value: "Any", left: "list[int]") -> str:
    """Return the text of a value. left: how many characters the values that are still to come may have."""
    sized = isinstance(value, (str, bytes, bytearray, list, tuple, collections.abc.Set, collections.abc.Mapping))
    if sized and len(value) > left[0]:
        raise NotPlain
    if value is None:
        text = "None"
    elif isinstance(value, str):
        text = ascii(str.__str__(value))
    elif isinstance(value, (bytes, bytearray)):
        text = ascii(bytes(value))
    elif isinstance(value, list):
        return "[" + _texts(value, left) + "]"
    elif isinstance(value, tuple):
        return "(" + _texts(value, left) + ")"
    elif isinstance(value, collections.abc.Set):
        return "set(" + ", ".join(sorted(_text(item, left) for item in value)) + ")"
    elif isinstance(value, collections.abc.Mapping):
        return "dict(" + ", ".join(sorted(_text(key, left) + ": " + _text(value[key], left) for key in value)) + ")"
    else:
        text = _number(value)
    left[0] -= len(text) + 2
    if left[0] < 0:
        raise NotPlain
    return text


def _texts(items: "Any", left: "list[int]") -> str:
    return ", ".join([_text(item, left) for item in items])


def _number(value: "Any") -> str:
    """Return one text for equal numbers of whatever type. Raises `NotPlain` for what is none."""
    if not isinstance(value, numbers.Number):
        if getattr(value, "shape", None) != ():
            raise NotPlain
        value = value.item()  # of numpy: `bool_`, or an array without dimensions
    if isinstance(value, complex) and value.imag:
        return _number(value.real) + "+" + _number(value.imag) + "j"
    real = value.real if isinstance(value, complex) else value
    if real != real:
        raise NotPlain
    if real in (float("inf"), float("-inf")):
        return repr(float(real))
    if real == int(real):
        return str(int(real)) if -DECIMAL < real < DECIMAL else hex(int(real))
    if real == float(real):
        return repr(float(real))
    raise NotPlain
