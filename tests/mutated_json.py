"""JSON with faults, made at random from honest JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

ODD_VALUES = [
    None, True, False, 0, 1, -1, 1.5, 10**30, -(10**30), 1e308, float("nan"), float("-inf"), "", "user", "assistant",
    "tool", "text", "\ud800", "\x00", "x" * 10_000, [], {}, [[]], [None], [{}], {"": {}}, {"type": "text"},
    {"type": None}, [{"type": "text", "text": 1}], [{"role": "user"}], 10**400, "x" * 100_000, "\n" * 9_000,
    "a\u2028\x85",
]  # fmt: skip


def deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = {"properties": value} if level % 2 else [value]
    return value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from places(inner)


def put(honest: Any, number: int, value: Any) -> bytes:
    """The body with another value in the place of that number."""
    body = deepcopy(honest)
    container, key = [*places(body)][number]
    container[key] = value
    return json.dumps(body).encode()


def change_value(honest: Any, dice: random.Random) -> bytes:
    """Put one odd value in."""
    return put(honest, dice.randrange(len([*places(honest)])), dice.choice(ODD_VALUES))


def change_values(honest: Any, dice: random.Random) -> bytes:
    """Put odd values in, take fields away, swap them, and repeat items."""
    body = deepcopy(honest)
    for _ in range(dice.randint(1, 3)):
        container, key = dice.choice([*places(body)] or [(body, "model")])
        how = dice.randrange(5)
        if how == 0:
            del container[key]
        elif how == 1:
            other, other_key = dice.choice([*places(honest)])
            container[key] = deepcopy(other[other_key])
        elif how == 2 and isinstance(container, list):
            container *= 2
        elif how == 3:
            container[key] = deep(dice.choice([3, 100, 260]))
        else:
            container[key] = deepcopy(dice.choice(ODD_VALUES))
    return json.dumps(body).encode()


def change_bytes(honest: Any, dice: random.Random) -> bytes:
    """Cut, overwrite, repeat and insert bytes."""
    text = bytearray(json.dumps(honest, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass"))
    for _ in range(dice.randint(1, 3)):
        at, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
        how = dice.randrange(4)
        if how == 0:
            del text[at:end]
        elif how == 1:
            text[at:at] = dice.randbytes(dice.randint(1, 8))
        elif how == 2:
            text[at:at] = dice.choice(
                [b'{"model":', b"[", b"]", b"\\ud83d", b'"', b"\xed\xa0\x80", b"1e999", b"NaN", b"\\", b"[" * 2_000,
                 b'{"a":' * 2_000, b"9" * 5_000, b'"role":"user",', b'"messages":[],"input":[],"model":"m",',
                 b'"type":1,', b'{"type":"text","text":"x"},' * 200]
            )  # fmt: skip
        else:
            text[at:end] = text[at:end] * 2
    return bytes(text)


def mutated(honest: Any, dice: random.Random) -> bytes:
    return dice.choice([change_value, change_values, change_values, change_bytes])(honest, dice)
