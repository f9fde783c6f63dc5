"""Tests whose values are withheld, run for real: what honest code gives is what they expect, and no file says it."""

from __future__ import annotations

import ast
import collections
import decimal
import enum
import fractions
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.rewards.canonical import LONGEST, NotPlain, canonical, digest
from slime_swe.rewards.mutation import Mutated, Recording, mutate
from slime_swe.rewards.withheld import GUESSABLE, Withheld, read_records

ROOT = Path(__file__).parents[2]
CODE = """\
import asyncio
class Odd(dict): pass
def f(x=0): return x + 4000
def text(): return "four thousand"
def items(): return Odd(a=[1, 2], b=(3, None))
async def later(): return 7000
"""
TESTS = '''\
# -*- coding: utf-8 -*-
"""Tests."""
from __future__ import annotations; import unittest

import pytest
from code_here import f, items, later, text


def test_one_line(): assert f() == 4000

def test_sides():
    assert 4000 == f(), "not 4000"
    assert (
        f(
            1  # one
        ) == 4001
        and text() == "four thousand"
    )

def test_constant():
    expected = {"b": (3, None), "a": [1, 2]}
    assert items() == expected

def test_early():
    for number in (1,):
        if number:
            assert f(number) == 4001
            return
    assert f() == 1

def test_semicolons():
    a = f(); assert a == 4000;

def test_in_a_loop():
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            assert f() == 4000
            1 / 0

async def test_async():
    assert await later() == 7000

@pytest.mark.parametrize("x", [1, 2])
def test_cases(x):
    assert f(x) - x == 4000

@pytest.fixture
def value():
    return 4000

def test_fixture(value, tmp_path):
    assert value == 4000
    tmp_path.joinpath("x").write_text("1"); assert tmp_path.joinpath("x").read_text() == "1"

class TestUnit(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(f(), 4000)
        with self.subTest():
            self.assertEqual(
                "four thousand", text(), "message"
            )

    async def helper(self):
        return 1


class TestMangled:
    def test_private(self):
        __x = f(); assert __x == 4000  # the last word
'''
VALUED = [
    "test_one_line", "test_sides", "test_constant", "test_early", "test_semicolons", "test_in_a_loop", "test_cases[1]",
    "test_cases[2]", "test_fixture", "TestUnit::test_equal", "TestMangled::test_private",
]  # fmt: skip
IDS = [f"t.py::{name}" for name in VALUED]


def withheld(source: str, tests: list[str], path: str = "/nowhere", first: int = 0) -> Mutated:
    return mutate(source.encode(), tests, random.Random(0), recording=Recording(path, first))


def run(folder: Path, found: Mutated, code: str = CODE) -> tuple[str, dict[int, frozenset[str]]]:
    """The log of pytest, and what is recorded in `folder`."""
    (folder / "code_here.py").write_text(code)
    (folder / "t.py").write_bytes(found.text)
    command = [sys.executable, "-B", "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-c", "none.ini", "t.py"]
    (folder / "none.ini").write_text("[pytest]\n")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    record = folder / "record"
    return done.stdout, dict(read_records(record.read_text() if record.exists() else ""))


def test_honest_code_gives_every_value_and_each_test_is_reported_as_failed(tmp_path):
    found = withheld(TESTS, IDS, str(tmp_path / "record"), first=5)
    log, records = run(tmp_path, found)
    for test in IDS:
        assert f"FAILED {test}" in log, log
    assert "Traceback" not in log and "def test_one_line" not in log, "a traceback costs as much as the test"
    given = [records.get(number) for number, _ in enumerate(found.withheld, 5)]
    wanted = [value.digests for value in found.withheld]
    late = [number for number, pair in enumerate(zip(given, wanted, strict=True)) if pair[0] != pair[1]]
    assert late == [6], "the test has returned before"
    assert found.withheld[6].digests == {digest(1)}
    assert {test for value in found.withheld for test in value.tests} == set(IDS)


def test_no_value_is_left_in_the_file():
    lines = withheld(TESTS, IDS).text.decode().splitlines()
    text = "\n".join(line for line in lines if "_record_value, " not in line and "return 4000" not in line)
    for value in ("four thousand", "(3, None)", "4000", "4001"):
        assert value not in text


def test_a_wrong_value_is_seen(tmp_path):
    found = withheld(TESTS, IDS, str(tmp_path / "record"))
    _, records = run(tmp_path, found, CODE.replace("x + 4000", "x + 4002"))
    right = [records.get(number) == value.digests for number, value in enumerate(found.withheld)]
    assert right == [value.digests <= set(map(digest, ("four thousand", {"a": [1, 2], "b": (3, None)}, "1"))) or
                     (value.digests == {digest(4000)} and "fixture" in str(value.tests))
                     for value in found.withheld]  # fmt: skip


def test_without_assertions_nothing_is_recorded_of_them(tmp_path):
    """`python -O`: what the true tests do not compare is not held against the code."""
    source = "from code_here import f\ndef test_a(self=None):\n    assert f() == 4000\n"
    found = withheld(source, ["t.py::test_a"], str(tmp_path / "record"))
    (tmp_path / "code_here.py").write_text(CODE)
    (tmp_path / "t.py").write_bytes(found.text)
    for options, recorded in (["-O"], False), ([], True):
        command = [sys.executable, "-B", *options, "-c", "import t; t.test_a()"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "AssertionError: withheld" in done.stderr
        assert (tmp_path / "record").exists() == recorded


def test_a_test_that_replaces_open_is_recorded_too(tmp_path):
    source = "from unittest import mock\ndef test_a():\n    with mock.patch('builtins.open') as opened:\n"
    found = withheld(f"{source}        assert len('four') == 4\n        opened.assert_not_called()\n",
                     ["t.py::test_a"], str(tmp_path / "record"))  # fmt: skip
    log, records = run(tmp_path, found)
    assert records == {0: {digest(4)}} and "Expected" not in log


def test_the_path_of_the_record_need_not_be_writable(tmp_path):
    log, records = run(tmp_path, withheld(TESTS, IDS, "/no/such/folder/record"))
    assert "FAILED t.py::test_one_line - Failed: withheld" in log and records == {}


@pytest.mark.parametrize(
    "body",
    [
        "assert f() is g()",
        "assert f() == self.value",
        "value = g()\n    assert f() == value",
        "for value in (1, 2):\n        assert f() == value",
        "import other as value\n    assert f() == value.x",
        "assert 1 == 2",
        "assert f() < 3",
        "assert f() == 3 == g()",
        "assert f() == 3 or g()",
        "yield\n    assert f() == 3",
        "def inner():\n        assert f() == 3\n    inner()",
        "expected = 3\n    expected += 1\n    assert f() == expected",
        "expected = 3\n    assert f(expected) == expected",
        "global expected\n    expected = 3\n    assert f() == expected",
        "self.assertEqual(*both)",
        f"assert f() == {'x' * (LONGEST + 1)!r}",
    ],
)
def test_what_has_no_value_to_withhold_is_mutated_as_before(body):
    found = withheld(f"value = g()\ndef test_a(self):\n    {body}\n", ["t.py::test_a"])
    assert found.withheld == () and found.tests
    assert b"_record_value" not in found.text
    ast.parse(found.text)


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        (
            "def test_a():\r\n    assert f() is None\r\n",
            rb"_record_value\(0, \(f\(\)\)\)\r\n    raise _withheld_failure\(\)\r\n",
        ),
        (
            "def test_a():\n\tif a:\n\t\tassert f() == 9\n",
            rb"\t\tassert _record\S+ \(f\(\)\)\)\n\traise _withheld_failure\(\)\n",
        ),
        (
            "def test_a():\n    eq_(f(), 9)  # why\n",
            rb"    _record_value\(0, \(f\(\)\)\)\n    raise _withheld_failure\(\)  # why",
        ),
        ("def test_a():\n    assert (n := f()) == 9\n", rb"_record_value\(0, \(n := f\(\)\)\)"),
        (
            "def test_a():\n    assert f() == 9\n    def g():\n        return 9\n",
            rb"        return 9\n    raise _with",
        ),
    ],
)
def test_how_a_value_is_withheld(source, reads):
    assert re.search(reads, withheld(source, ["t.py::test_a"]).text)


@pytest.mark.parametrize("value", ["True", "None", "0", "1", "-1", "''", "[]", "{}", "set()"])
def test_what_is_easily_guessed_is_said_to_be(value):
    (found,) = withheld(f"def test_a():\n    assert f() == {value}\n", ["t.py::test_a"]).withheld
    assert found.digests <= GUESSABLE
    (other,) = withheld("def test_a():\n    assert f() == [0]\n", ["t.py::test_a"]).withheld
    assert not other.digests <= GUESSABLE


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("assert list(f(2, 'ABC')) == list('AC')", r"_record_value\(0, \(list\(f\(2, 'ABC'\)\)\)\)"),
        ("assert D({'a': 1}) == f(D({'a': 0}), 1, 2)", r"_record_value\(0, \(f\(D\(\{'a': 0\}\), 1, 2\)\)\)"),
        ("expected = [3] * 4\n    assert f() == sorted(expected)", r"expected = None\n    assert _\w+\(0, \(f\(\)\)\)"),
        ("self.assertEqual(key('x', 1), key('y'))", r"_record_value\(0, \(key\('x', 1\)\)\)"),
    ],
)
def test_what_is_no_literal_is_withheld_too(source, reads):
    found = withheld(f"def test_a(self):\n    {source}\n", ["t.py::test_a"])
    assert re.search(reads, found.text.decode())
    assert found.withheld == (Withheld(frozenset({"t.py::test_a"})),), "the gold patch shows what is right"


@pytest.mark.parametrize(
    ("body", "reads", "values"),
    [
        ("assert f() == VALUE", r"VALUE = None\n.*assert _record_value\(0, \(f\(\)\)\)", [4000]),
        ("check(f(), 4000)", r"    _record_value\(0, \(f\(\)\)\)\n", [4000]),
        ("check_call(1, 4001)", r"    _record_value\(0, \(f\(1\)\)\)\n", [4001]),
        ("want = 4001\n    check_call(x=1, want=want)", "check_call", None),
        (
            "if f() != 4000:\n        raise AssertionError('not 4000')",
            r"if not _record_value\(0, .*:\n +pass\n",
            [4000],
        ),
        ("if f() != 4000:\n        pytest.fail('not 4000')", r"if not _record_value\(0, .*:\n +pass\n", [4000]),
        ("if f() != 4000:\n        g()", "!=", None),
        ("for x, y in [(1, 4001), (2, 4002)]:\n        assert f(x) == y", r"\(1, None\), \(2, None\)", [4001, 4002]),
        ("rows = [(1, 4001)]\n    for x, y in rows:\n        assert f(x) == y", r"rows = \[\(1, None\)\]", [4001]),
        ("for x, y in ROWS:\n        assert f(x) == y", r"ROWS = \[\(1, None\)\]", [4001]),
        ("for x, y in rows():\n        assert f(x) == y", "== y", None),
        ("for x, y in ROWS:\n        assert f(x) == y\n    print(ROWS)", r"ROWS = \[\(1, 4001\)\]", None),
        ("assert f() == pytest.approx(4000.0)", r"_record_value\(0, \(f\(\)\)\)", []),
        ("assert pytest.approx(4000.0) == f()", r"_record_value\(0, \(f\(\)\)\)", []),
        ("self.assertAlmostEqual(f(), 4000.0)", r"_record_value\(0, \(f\(\)\)\)", []),
    ],
)
def test_a_value_is_withheld_wherever_it_is_written(body, reads, values):
    helpers = "def check(got, want):\n    assert got == want\ndef check_call(x, want):\n    assert f(x) == want, x\n"
    tests = f"def test_a(self):\n    {body}\ndef test_b():\n    pass\n"
    found = withheld(f"VALUE = 4000\nROWS = [(1, 4001)]\n{helpers}{tests}", ["t.py::test_a", "t.py::test_b"])
    text = re.sub("(?m)^_record_value, .*$", "", found.text.decode())
    assert re.search(reads, text, re.DOTALL), text
    digests = frozenset(map(digest, values or ()))
    assert found.withheld == (() if values is None else (Withheld(frozenset({"t.py::test_a"}), digests),))
    ast.parse(text)


@pytest.mark.parametrize(
    ("body", "reads", "values"),
    [
        (
            "assert f(1)\n    assert not f(2)",
            r"assert _record_value\(0, \(bool\(f\(1\)\)\)\)\n +assert _record_value\(1, \(bool\(f\(2\)\)\)\)",
            [True, False],
        ),
        (
            "found = f(2)\n    assert not found\n    assert f(1)",
            r"_record_value\(0, \(bool\(found\)\)\)",
            [False, True],
        ),
        (
            "self.assertFalse(f(1))\n    self.assertTrue(f(2), 'two')",
            r"    _record_value\(0, \(bool\(f\(1\)\)\)\)\n    _record_value\(1, \(bool\(f\(2\)\)\)\)",
            [False, True],
        ),
        ("assert not f(1)\n    assert not f(2)", "assert f", None),
        ("assert f(1)\n    assert not f(2) or f(3)", "not f", None),
    ],
)
def test_whether_it_is_true_is_withheld_if_some_is_true_and_some_is_not(body, reads, values):
    found = withheld(f"def test_a(self):\n    {body}\n", ["t.py::test_a"])
    assert re.search(reads, found.text.decode()), found.text.decode()
    test = frozenset({"t.py::test_a"})
    assert found.withheld == tuple(Withheld(test, frozenset({digest(value)})) for value in values or ())
    ast.parse(found.text)


def test_a_constant_that_another_test_reads_is_not():
    source = "VALUE = 7000\ndef test_a():\n    assert f() == VALUE\ndef test_b():\n    assert g(VALUE) == VALUE\n"
    assert withheld(source, ["t.py::test_a"]).withheld == ()
    assert withheld(source, ["t.py::test_a", "t.py::test_b"]).withheld == ()
    both = source.replace("g(VALUE)", "g()")
    assert len(withheld(both, ["t.py::test_a", "t.py::test_b"]).withheld) == 2
    assert withheld(f"{both}def f():\n    global VALUE\n    VALUE = 3\n", ["t.py::test_a"]).withheld == ()


TABLES = """\
import pytest
from code_here import f
COLUMNS = ((10, 4010), (11, 4011))
MORE = ((12, 4012),)
ONE_WAY = [(13, 4013)]

@pytest.mark.parametrize(("x", "expected"), COLUMNS + MORE)
def test_columns(x, expected):
    assert f(x) == expected
    assert -f(x) == -expected

@pytest.mark.parametrize("x, expected", COLUMNS)
def test_again(x, expected):
    assert expected == f(x)

@pytest.mark.parametrize("expected", [4014, pytest.param(4014, id="x")])
@pytest.mark.parametrize("x", [14])
def test_one(x, expected):
    assert f(x) == expected

@pytest.mark.parametrize("x, expected", ONE_WAY)
def test_forth(x, expected):
    assert f(x) == expected

@pytest.mark.parametrize("x, expected", ONE_WAY)
def test_back(x, expected):
    assert f(expected) - 4000 == expected
"""


def test_parameters_that_are_compared_alone_are_withheld(tmp_path):
    names = ["columns[10-4010]", "columns[11-4011]", "columns[12-4012]", "again[10-4010]", "again[11-4011]",
             "one[14-x]", "one[14-4014]", "forth[13-4013]", "back[13-4013]"]  # fmt: skip
    found = withheld(TABLES, [f"t.py::test_{name}" for name in names], str(tmp_path / "record"))
    text = re.sub("(?m)^_record_value, .*$", "", found.text.decode())
    assert not re.search("401[0124]", text), text
    assert "ONE_WAY = [(13, 4013)]" in text and "expected" in text.partition("test_forth")[2], "another test needs it"
    columns = {digest(value) for value in (4010, 4011, 4012)}
    assert [place.digests for place in found.withheld] == [
        columns, set(), {digest(4010), digest(4011)}, {digest(4014)},
    ]  # fmt: skip
    log, records = run(tmp_path, found)
    assert "ERROR" not in log and "FAILED t.py::test_columns[10-None]" in log
    for number, place in enumerate(found.withheld):
        assert records[number] == place.digests or number == 1
    assert records[1] == {digest(-4010), digest(-4011), digest(-4012)}


@pytest.mark.parametrize(
    "decorators",
    [
        "@pytest.mark.parametrize('x, expected', table())",
        "@pytest.mark.parametrize('x, expected', [(1, 2), *more])",
        "@pytest.mark.parametrize('x, expected', [(1, other), (1, 4001)])",
        "@pytest.mark.parametrize('x, expected', [(1, 4001), both])",
        "@pytest.mark.parametrize('x, expected', [(1, 4001)], indirect=True)",
        "@pytest.mark.parametrize('x, expected', READ)",
        "@pytest.mark.parametrize('x, expected', CHANGED)",
        "@pytest.mark.parametrize(names, [(1, 4001)])",
        "@given(integers(), integers())",
        "",
    ],
)
def test_parameters_that_are_not_written_out_are_not(decorators):
    source = (
        f"READ = [(1, 4001)]\nprint(READ)\nCHANGED = [(1, 4001)]\nCHANGED += [(2, 4002)]\n"
        f"{decorators}\ndef test_a(x, expected):\n    assert f(x) == expected\n"
    )
    assert withheld(source, ["t.py::test_a"]).withheld == ()


class Shown:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def test_a_value_without_a_plain_form_is_recorded_by_its_repr():
    names: dict[str, object] = {}
    exec("".join((ROOT / "rewards" / name).read_text() for name in ("canonical.py", "value_recorder.py")), names)
    digest_of_any = names["digest_of_any"]
    assert digest_of_any(4) == digest(4)
    assert digest_of_any(object()) == digest_of_any(object()) != "?", "its address is not in it"
    assert digest_of_any(Shown("a")) == digest_of_any(Shown("a")) != digest_of_any(Shown("b"))
    assert digest_of_any(Shown("'a'")) not in (digest("a"), digest_of_any("a"))
    assert digest_of_any(Shown(4)) == "?", "its __repr__ raises"


class Colour(enum.StrEnum):
    RED = "red"


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "literal"),
    [
        (True, 1), (3.0, 3), (3 + 0j, 3), (decimal.Decimal("0.5"), 0.5), (fractions.Fraction(6, 2), 3),
        (-0.0, 0), (float("inf"), 1e999), (Colour.RED, "red"), (Point(1, 2), (1, 2)), (bytearray(b"x"), b"x"),
        (collections.OrderedDict(b=1, a=2), {"a": 2, "b": 1}), (frozenset({2, 1}), {1, 2}), ({"a": 1}.keys(), {"a"}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}), ([[], ()], [[], ()]),
    ],
)  # fmt: skip
def test_equal_values_have_one_form(value, literal):
    assert value == literal
    assert canonical(value) == canonical(literal)


def test_numbers_and_texts_that_python_prints_with_trouble_have_a_form():
    assert canonical(10**5000) == canonical(10**5000) != canonical(10**5000 + 1)
    assert canonical("\ud800é") != canonical("\ud801é")


@pytest.mark.parametrize(
    ("value", "other"),
    [(1, "1"), ([1], (1,)), ("a", b"a"), ([1, [2]], [1, 2]), ({1: 2}, {2: 1}), ([""], []), (None, "None"), (0.1, 0.2),
     (1 + 2j, 1), ({1: 2}, {(1, 2)}), (["a,'b"], ["a", "b"])],
)  # fmt: skip
def test_other_values_have_other_forms(value, other):
    assert canonical(value) != canonical(other)


class Everything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None


@pytest.mark.parametrize("value", [object(), Everything(), [Everything()], float("nan"), "x" * 70_000, [0] * 70_000])
def test_what_is_not_plain_equals_nothing(value):
    with pytest.raises(NotPlain):
        canonical(value)
    assert digest(value) == "?"


def test_a_value_that_holds_itself_is_not_plain():
    value: list[object] = []
    value.append(value)
    assert digest(value) == "?"


def test_a_record_that_is_no_record_is_nothing():
    assert read_records("0 abc\nx\n1 ?\n0 abd\n99999999999999 a\n2 a b\n") == {0: {"abc", "abd"}, 1: {"?"}}
