"""What a program's text says of it, and that no text makes the reader raise anything but what a compiler does."""

from __future__ import annotations

import contextlib
import random

import pytest

from slime_swe.data_sources.arc.tool.program import examine
from tests.effort import FACTOR, assert_linear

NO_PROGRAM = (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError)
LONGEST = 20_000  # characters; longer ones are not examined


@pytest.mark.parametrize(
    ("source", "unused"),
    [
        ("def f():\n    x = 1\n", ["x"]),
        ("def f():\n    x = 1\n    return x\n", []),
        ("def f():\n    x = 1\n    return lambda: x\n", []),
        ("def f():\n    x = 1\n    def g():\n        y = x\n    return g\n", ["y"]),
        ("def f():\n    _x = _ = 1\n", []),
        ("def f():\n    a, b = 1, 2\n    for i in a:\n        pass\n", []),
        ("def f():\n    global x\n    x = 1\n", []),
        ("def f():\n    x: int = 1\n    return (y := 2)\n", ["x", "y"]),
        ("x = 1\n", []),
        ("def f():\n    class A:\n        x = 1\n    return A\n", []),
    ],
)
def test_variables_that_are_never_read(source, unused):
    assert examine(source)["unused"] == unused


@pytest.mark.parametrize(
    ("source", "outside"),
    [
        ("import math, collections.abc\nfrom itertools import product\n", []),
        (
            "import os.path\nfrom subprocess import run\nfrom . import x\n",
            ["import .", "import os.path", "import subprocess"],
        ),
        ("eval('1')\nopen\n__import__('os')\n", ["__import__", "eval", "open"]),
        ("().__class__.__bases__\n", [".__bases__", ".__class__"]),
    ],
)
def test_what_a_program_may_not_use(source, outside):
    assert examine(source)["outside"] == outside


def test_a_language_of_functions():
    source = "def f(g):\n    h = len\n    return g(h(flip(crop(f))))\n"
    assert examine(source)["outside"] == []
    assert examine(source, functions=("flip",))["outside"] == ["crop()"]


def test_attempts_are_functions_at_the_top():
    assert examine("def transform(g): pass\n")["attempts"] == ["transform"]
    assert examine("transform2 = transform = len\n")["attempts"] == ["transform", "transform2"]
    assert examine("class A:\n    def transform(self): pass\n")["attempts"] == []


HONEST = '''
from collections import Counter
def transform(grid):
    """Fill."""
    rows = [row[:] for row in grid]
    most = Counter(c for row in rows for c in row).most_common(1)[0][0]
    for r, row in enumerate(rows):
        if all(c == most for c in row) and r > 0:
            rows[r] = [(x := c) + 1 if c < 9 else x for c in row]
    return {**{"rows": rows}}["rows"]
def transform2(grid): return list(map(lambda row: row[::-1], grid))
'''
PIECES = [
    "(", ")", "[", "]", "{", "}", "(" * 300, "-" * 3000, "not " * 500, "lambda:" * 500, "\n", "\t", " ", "\0", "\\",
    "'''", '"', "f'{", "}'", "1" * 5000, "1e999", ":=", "**", "*a,=", "async ", "await ", "yield ", "match x:\n case ",
    "\ufeff", "\u202e", "é" * 50, "if 1:\n " * 50, "x." * 2000, "x[0]" * 1000, "1+" * 3000, "1**" * 1500, "\r",
    "def transform(grid):", "import os\n", "global x\n", "\\N{DIGIT ONE}", "b'\\xff'", "@" * 99, "#" * 999,
]  # fmt: skip


def mutated(dice: random.Random) -> str:
    text = HONEST
    for _ in range(dice.randint(1, 2)):
        at, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
        how = dice.randrange(4)
        if how == 0:
            text = text[:at] + text[end:]
        elif how == 1:
            text = text[:end] + text[at:]
        else:
            text = text[:at] + dice.choice(PIECES) + text[at:]
    return text[:LONGEST]


@pytest.mark.parametrize(
    "count", [500, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.extended("mutated programs")])]
)
@pytest.mark.timeout(7200)
def test_a_mutated_program_is_read_or_is_no_program(count):
    dice, read = random.Random(count), 0
    for _ in range(count):
        with contextlib.suppress(*NO_PROGRAM):
            examine(mutated(dice))
            read += 1
    assert 0 < read < count


@pytest.mark.parametrize("piece", PIECES)
def test_a_program_is_read_in_time_that_grows_with_it(piece):
    """Of pieces on end, and on lines of their own."""
    for part in (piece, f"{piece}\n"):
        short = LONGEST // FACTOR
        sources = {size: (HONEST + part * (size // len(part) + 1))[:size] for size in (short, FACTOR * short)}

        def read(size, sources=sources):
            with contextlib.suppress(*NO_PROGRAM):
                examine(sources[size])

        assert_linear(read, short, part[:99])
