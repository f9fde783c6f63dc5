from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rewards.control import falsify

SOURCE = '''\
import unittest

from calc import add, is_even  # é


def test_one_line(): assert add(1, 2) == 3


def test_compares():
    """With a docstring."""
    assert add(1, 2) == 3, "é"
    assert 5 == add(5, 0)
    assert (
        add(1,
            1)
        == 2
    )
    assert add(1, 0) == [1, 1][0]


def test_loop():
    for a in (1, 2):
        assert add(a, 0) == a


def test_returns():
    if not is_even(2):
        return
    assert is_even(2) == True


def test_other_assertions():
    assert is_even(4)
    assert not is_even(3)


def test_nested():
    @staticmethod
    def inner():
        return 1

    assert inner.__func__() in (1, 2)


class TestSums(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(add(1, 1), 2)

    def test_other(self):
        self.assertTrue(is_even(2))
'''
NAMES = [
    "test_one_line", "test_compares", "test_loop", "test_returns", "test_other_assertions", "test_nested",
    "TestSums::test_equal", "TestSums::test_other",
]  # fmt: skip
IDS = [f"t.py::{name}" for name in NAMES]
HONEST = "def add(a, b):\n    return a + b\n\n\ndef is_even(n):\n    return n % 2 == 0\n"
ALWAYS = """
class Any{base}:
    def __eq__(self, other):
        return {condition}

    __hash__ = None


def add(a, b):
    return Any()


def is_even(n):
    return n % 2 == 0
"""


def passing(folder: Path, tests: str, module: str) -> set[str]:
    """The ids of the tests that pass, run by a plain loop in another process."""
    (folder / "calc.py").write_text(module)
    (folder / "t.py").write_text(tests)
    runner = f"""
import t, unittest
for name in {NAMES!r}:
    owner, _, method = name.rpartition("::")
    try:
        getattr(getattr(t, owner)(), method)() if owner else getattr(t, name)()
        print("t.py::" + name)
    except Exception:
        pass
"""
    result = subprocess.run(
        [sys.executable, "-B", "-c", runner], cwd=folder, capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())


def test_honest_code_passes_the_tests_and_no_falsified_one(tmp_path):
    falsified, found = falsify(SOURCE.encode(), IDS)
    assert found == set(IDS)
    assert passing(tmp_path, SOURCE, HONEST) == set(IDS)
    assert passing(tmp_path, falsified.decode(), HONEST) == set()


def test_what_is_equal_to_everything_passes_falsified_comparisons(tmp_path):
    module = ALWAYS.format(base="", condition="True")
    falsified = falsify(SOURCE.encode(), IDS)[0].decode()
    caught = {"t.py::test_one_line", "t.py::test_compares", "t.py::TestSums::test_equal"}
    assert caught <= passing(tmp_path, falsified, module)


def test_what_is_equal_to_numbers_alone_passes_too(tmp_path):
    module = ALWAYS.format(base="", condition="isinstance(other, int)")
    falsified = falsify(SOURCE.encode(), IDS)[0].decode()
    assert "t.py::test_one_line" in passing(tmp_path, falsified, module)


def test_only_the_named_tests_are_touched(tmp_path):
    falsified, found = falsify(SOURCE.encode(), IDS[:2])
    assert found == set(IDS[:2])
    assert passing(tmp_path, falsified.decode(), HONEST) == set(IDS[2:])


def test_a_test_with_parameters_is_found_by_its_function():
    falsified, found = falsify(b"def test_a(x):\n    assert x == 1\n", ["t.py::test_a[1]", "t.py::test_a[a::b]"])
    assert found == {"t.py::test_a[1]", "t.py::test_a[a::b]"}
    assert b"assert x == 1000004" in falsified


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("def test_a():\n    assert f() == 'x'\n", "== 'x falsified'"),
        ("def test_a():\n    assert f() == [1]\n", "== [1, 1000003]"),
        ("def test_a():\n    assert f() == {1: 2}\n", "== object()"),
        ("def test_a():\n    assert 3 == value\n", "assert 1000006 == value"),
        ("def test_a():\n    assert expected == f()\n", "assert object() == f()"),
        ("def test_a():\r\n    assert f() == 1\r\n", "assert f() == 1000004\n"),
        (
            "def test_a():\n    with raises(E):\n        f()\n",
            "    raise AssertionError('this test is falsified')\n    with",
        ),
        ("async def test_a():\n    await f()\n", "    raise AssertionError('this test is falsified')\n    await"),
    ],
)
def test_how_a_test_is_falsified(source, reads):
    assert reads in falsify(source.encode(), ["t.py::test_a"])[0].decode()


@pytest.mark.parametrize("source", ["def (", "x = 1\n", "", "\xff"])
def test_what_can_not_be_falsified_stays(source):
    assert falsify(source.encode("latin-1"), ["t.py::test_a"]) == (source.encode("latin-1"), frozenset())
