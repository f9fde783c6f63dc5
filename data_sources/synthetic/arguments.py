"""Argument values for the function templates, by kind. Small ranges on purpose: boundaries are hit often."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any


def _word(rng: random.Random, shortest: int = 1) -> str:
    return "".join(rng.choice("abc") for _ in range(rng.randint(shortest, 5)))


def _ints(rng: random.Random) -> list[int]:
    return [rng.randint(0, 6) for _ in range(rng.randint(0, 5))]


KINDS: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda rng: rng.randint(0, 6),
    "pos": lambda rng: rng.randint(1, 5),
    "small": lambda rng: rng.randint(0, 3),
    "optint": lambda rng: rng.choice([None, None, rng.randint(2, 9)]),
    "big": lambda rng: rng.randint(3, 12),
    "hundred": lambda rng: rng.choice([50, 100, 120, 200, 250, rng.randint(40, 300)]),
    "year": lambda rng: rng.choice([1900, 2000, 2024, 2023, 2100, 1996]),
    "ints": _ints,
    "lists": lambda rng: [_ints(rng)[:3] for _ in range(rng.randint(0, 3))],
    "word": _word,
    "letter": lambda rng: rng.choice("abc"),
    "words": lambda rng: [_word(rng) for _ in range(rng.randint(0, 4))],
    "dict": lambda rng: {rng.choice("abcd"): rng.randint(0, 6) for _ in range(rng.randint(0, 3))},
    "pairs": lambda rng: [(rng.randint(0, 4), rng.randint(1, 9)) for _ in range(rng.randint(0, 3))],
}


def draw(kinds: tuple[str, ...], rng: random.Random, defaults: int) -> tuple[Any, ...]:
    """One call's arguments; now and then the last `defaults` of them are left to their default values.

    An `optint` that comes out as None is left to its default, like everything after it.
    """
    values = tuple(KINDS[kind](rng) for kind in kinds)
    if defaults and rng.random() < 0.4:
        values = values[: len(values) - defaults]
    return values[: values.index(None)] if None in values else values
