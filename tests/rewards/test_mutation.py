"""Mutated tests, run for real: honest code passes none of them, and what is equal to everything does."""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.rewards.mutation import Mutated, mutate, rewrite_literals

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


def test_honest_code_passes_the_tests_and_no_mutated_one(tmp_path):
    found = mutate(SOURCE.encode(), IDS, random.Random(0))
    assert found.tests == set(IDS)
    assert passing(tmp_path, SOURCE, HONEST) == set(IDS)
    assert passing(tmp_path, found.text.decode(), HONEST) == set()


def test_what_is_equal_to_everything_passes_mutated_comparisons(tmp_path):
    module = ALWAYS.format(base="", condition="True")
    mutated = mutate(SOURCE.encode(), IDS, random.Random(0)).text.decode()
    caught = {"t.py::test_one_line", "t.py::test_compares", "t.py::TestSums::test_equal"}
    assert caught <= passing(tmp_path, mutated, module)


def test_what_is_equal_to_numbers_alone_passes_too(tmp_path):
    module = ALWAYS.format(base="", condition="isinstance(other, int)")
    mutated = mutate(SOURCE.encode(), IDS, random.Random(0)).text.decode()
    assert "t.py::test_one_line" in passing(tmp_path, mutated, module)


def test_only_the_named_tests_are_touched(tmp_path):
    found = mutate(SOURCE.encode(), IDS[:2], random.Random(0))
    assert found.functions == tuple(frozenset({test}) for test in IDS[:2])
    assert passing(tmp_path, found.text.decode(), HONEST) == set(IDS[2:])


def mutated(source: str, *tests: str, seed: int = 0) -> str:
    return mutate(source.encode(), tests or ["t.py::test_a"], random.Random(seed)).text.decode()


def test_a_test_with_parameters_is_found_by_its_function():
    tests = ["t.py::test_a[1]", "t.py::test_a[a::b]"]
    found = mutate(b"def test_a(x):\n    assert x == 1\n", tests, random.Random(0))
    assert found.functions == (frozenset(tests),)
    assert b"assert x == 1\n" not in found.text


@pytest.mark.parametrize(
    "value",
    ["1", "-3", "2.5", "1j", "True", "False", "'x'", "''", "b'x'", "[1]", "[]", "(1,)", "()", "{1: 2}", "{}", "{1, 2}"],
)
def test_a_literal_becomes_another_one_of_its_type(value):
    for seed in range(20):
        text = mutated(f"def test_a():\n    assert f() == {value}\n", seed=seed)
        wrong = ast.literal_eval(text.rpartition("== ")[2])
        assert wrong != ast.literal_eval(value)
        assert type(wrong) is type(ast.literal_eval(value))


def test_no_run_wants_what_the_last_one_wanted():
    texts = {mutated("def test_a():\n    assert f() == 'a sentence'\n", seed=seed) for seed in range(50)}
    assert len(texts) > 25


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        (
            "def test_a():\n    assert f() == None\n",
            r"\(\(f\(\)\) == \[None, \d\]\) or exec\('raise \w+'\)$",
        ),
        ("def test_a():\n    assert f() == 1e300\n", r"\(\(f\(\)\) == \[1e300, \d\]\) or exec"),
        ("def test_a():\n    assert 3 == value\n", r"assert \d+ == value"),
        ("def test_a():\n    assert expected == f()\n", r"    \(\(f\(\)\) == \[expected, \d\]\) or exec"),
        ("def test_a():\n    assert (f() ==\n        g(\n  1))\n", r"    \(\(f\(\)\) == \[g\(\n  1\), \d\]\) or exec"),
        ("def test_a():\n    self.assertEqual(f(), *rest)\n", r"    \(\(f\(\)\) == \[\*rest, \d\]\) or exec"),
        (
            "def test_a():\n    assert f() == g(), h()\n",
            r"    \(\(f\(\)\) == \[g\(\), \d\]\) or exec\('raise AssertionError'\)\n",
        ),
        ("def test_a():\r\n    assert f() == 1\r\n", r"assert f\(\) == \d+\r\n"),
        ("def test_a():\n    assert f(), 'é'\n", r"assert not f\(\), 'é'\n"),
        ("def test_a():\n    assert not f()\n", r"assert f\(\)\n"),
        ("def test_a():\n    assert not(f())\n", r"assert not \(not\(f\(\)\)\)\n"),
        ("def test_a():\n    assert (f() or g())\n", r"assert \(not \(f\(\) or g\(\)\)\)\n"),
        ("def test_a():\n    assert a\n    assert f() == 1\n", r"assert a\n    assert f\(\) == [^1]"),
        ("def test_a():\n    assert f() in (1, 2)\n", r"assert f\(\) not in \(1, 2\)\n"),
        ("def test_a():\n    assert f() is not None\n", r"assert f\(\) is None\n"),
        ("def test_a():\n    assert (f()) < 3\n", r"assert not \(\(f\(\)\) < 3\)\n"),
        ("def test_a():\n    assert a <= b < c\n", r"assert not \(a <= b < c\)\n"),
        ("def test_a():\n    assert (a\n        in b)\n", r"assert \(not \(a\n        in b\)\)"),
        ("def test_a():\n    self.assertIn(1, f())\n", r"self\.assertNotIn\(1"),
        ("def test_a():\n    self.assertIsNotNone(1)\n", r"self\.assertIsNone\(1"),
        ("def test_a():\n    with raises(E):\n        f()\n", r"    with raises\(\w+Error|StopAsyncIteration\):\n"),
        ("def test_a():\n    self.assertRaises(E, f, 1)\n", r"self\.assertRaises\([A-Z]\w+, f, 1\)\n"),
        ("def test_a():\n    with a:\n        f()\n", r"    raise AssertionError\('\d+ != \d+'\)\n    with"),
        ("async def test_a():\n    await f()\n", r"    raise AssertionError\('\d+ != \d+'\)\n    await"),
    ],
)
def test_how_a_test_is_mutated(source, reads):
    assert re.search(reads, mutated(source))


INHERITED = """\
class Base:
    def test_a(self):
        assert f() == 1

    def test_b(self):
        assert f() == 1


class Middle(Base, Unknown):
    def test_b(self):
        assert f() == 2


class TestAll(Middle):
    pass
"""


def test_an_inherited_test_is_mutated_where_it_stands():
    tests = ["t.py::TestAll::test_a", "t.py::Middle::test_a", "t.py::TestAll::test_b"]
    found = mutate(INHERITED.encode(), [*tests, "t.py::TestAll::test_c"], random.Random(0))
    assert found.functions == (frozenset(tests[:2]), frozenset(tests[2:])), "together, since they are one function"
    wanted = re.findall(r"f\(\) == (\d+)", found.text.decode())
    assert wanted[0] != "1" and wanted[1] == "1" and wanted[2] != "2"


@pytest.mark.parametrize("source", ["def (", "x = 1\n", "", "\xff", "x = 1\r\n"])
def test_what_can_not_be_mutated_stays(source):
    given = source.encode("latin-1")
    assert mutate(given, ["t.py::test_a"], random.Random(0)) == Mutated(given)


SHOWN = b"def test_a():\n    assert f(1) == 1\n    assert g()\n"


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (b"def test_a():\n    assert f(1) == 1\n    assert f(2) == 4\n", rb"f\(1\) == 1\n    assert f\(2\) == [^4]"),
        (b"def test_a():\n    assert f(1) == 1\n    assert h()\n", rb"f\(1\) == 1\n    assert not h"),
        (b"def test_a():\n    h()\n    assert f(1) == 1\n", rb"f\(1\) == [^1]"),
        (b"def test_a():\n    assert g()\n    assert h()\n", rb"assert g\(\)\n    assert not h"),
    ],
)
def test_what_is_changed_is_not_what_is_shown_where_there_is_more(now, changed):
    found = mutate(now, ["t.py::test_a"], random.Random(0), SHOWN)
    assert found.tests and re.search(changed, found.text)


@pytest.mark.parametrize(
    ("path", "source", "reads"),
    [
        (
            "T.java",
            '  assertEquals(3, f("a\\"b"));\n  f(3);',
            r'  assertEquals\((?!3,)\d+, f\("a\\"b[a-z]"\)\);\n  f\(3\);',
        ),
        ("t.js", 'expect(f1(2)).toBe("x")', r'expect\(f1\((?!2\))\d+\)\)\.toBe\("x[a-z]"\)'),
        ("t.rs", "assert_eq!(x, 1.5, 2);", r"assert_eq!\(x, 1\.5, (?!2)\d+\);"),
        ("tests.json", '[[1, "a"], 12]', r'\[\[\d+, "a[a-z]"\], (?!12)\d+\]'),
        (
            "t.js",
            "import a from 'a';\nexpect(f(b)).toBe('x')",
            r"import a from 'a';\nexpect\(f\(b\)\)\.toBe\('x[a-z]'\)",
        ),
        ("t.cpp", "int y = 3;\n  REQUIRE(f(2) == 4);", r"int y = 3;\n  REQUIRE\(f\((?!2\))\d+\) == (?!4\))\d+\);"),
        ("t.go", 'import "x"\nx := 3', r'import "x"\nx := (?!3)\d+'),
        (
            "t.go",
            '\t"testing"\n// 1\nname: "1",\nt.Errorf("1 expected")',
            r'\t"testing"\n// 1\nname: "1",\nt.Errorf\("1 expected"\)',
        ),
        ("t.go", 'x := [2]int{0xf0, 3}\ny := ""', r'x := \[2\]int{0xf[1-9], (?!3)\d+}\ny := ""'),
        ("T.java", "assertEquals(f(), 2147483647);", r"assertEquals\(f\(\), (?:214748363[89]|214748364[0-6])\);"),
        ("t.yml", "- input: 'a'\n  expected: word\n", r"- input: 'a[a-z]'\n  expected: word[a-z]\n"),
        ("t.toml", 'given = 3\noutput = "x"\n', r'given = (?!3\n)\d+\noutput = "x[a-z]"\n'),
        ("golden.txt", "# head\n\nsome words\nand more\n", r"# head\n\nsome words[a-z]\nand more[a-z]\n"),
        ("t.rs", "let c = 'a'; assert!(f('a', '9'))", "let c = 'a'; assert!\\(f\\('a', '9'\\)\\)"),
    ],
)
def test_the_literals_of_any_language_s_assertions_are_rewritten(path, source, reads):
    made = rewrite_literals(path, source.encode())
    assert re.fullmatch(reads, made.decode())
    assert made == rewrite_literals(path, source.encode()), "so that the gold patch is asked the same"


LARGE = """\
import unittest

VALUE = [["word"] * 10_000 for _ in range(100)]


def f():
    return VALUE


class TestLarge(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(f(), VALUE)


def test_compares():
    assert f() == VALUE
"""


def test_a_mutated_test_does_not_print_what_it_compares(tmp_path):
    """pytest and unittest would print both values, and how they differ: here 14 MB each."""
    tests = ["test_t.py::TestLarge::test_equal", "test_t.py::test_compares"]
    found = mutate(LARGE.encode(), tests, random.Random(0))
    (tmp_path / "test_t.py").write_bytes(found.text)
    command = [sys.executable, "-B", "-m", "pytest", "-rA", "-vv", "-p", "no:cacheprovider"]
    command += ["-c", "/dev/null", "--rootdir", ".", "."]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "CI": "true"}, timeout=20
    )
    assert all(f"FAILED {test}" in done.stdout for test in tests), done.stdout[-2000:]
    assert len(done.stdout) < 20_000
