"""Python's text as a syntax tree, by many threads at once."""

from __future__ import annotations

import ast
import gc
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from slime_swe.syntax import literal_eval, parse


@pytest.fixture
def switches() -> Iterator[None]:
    """Have another thread run whenever the collector does, which here is within each tree."""

    def switch(phase: str, info: Any) -> None:
        time.sleep(0)

    threshold = gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(200)
    yield
    gc.set_threshold(*threshold)
    gc.callbacks.remove(switch)


def test_a_traceback_that_the_collector_has_formatted_disturbs_nobody() -> None:
    """By Python 3.11, which parses the line of each call to underline a part of it."""
    formatted = []

    def format_one(phase: str, info: Any) -> None:
        if len(formatted) < 3:
            try:
                int("x" + str(len(formatted)))
            except ValueError:
                formatted.append(traceback.format_exc())

    text = "\n".join(f"def f{number}(a, b):\n    return [a, (b, {number})]" for number in range(100))
    threshold = gc.get_threshold()
    gc.callbacks.append(format_one)
    gc.set_threshold(200)
    try:
        tree = parse(text)
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(format_one)
    assert len(formatted) == 3 and ast.dump(tree) == ast.dump(ast.parse(text))


def test_many_threads_parse_at_once(switches: None) -> None:
    text = "\n".join(f"def f{number}(a, b):\n    return [a, (b, {number})]" for number in range(100))
    value = str([[number, (number, {number: "x"})] for number in range(100)])
    with ThreadPoolExecutor(4) as pool:
        trees = list(pool.map(parse, [text] * 40))
        values = list(pool.map(literal_eval, [value] * 40))
    assert {ast.dump(tree) for tree in trees} == {ast.dump(ast.parse(text))}
    assert all(found == ast.literal_eval(value) for found in values)
