"""Which tests run which function: one real run of pytest under coverage.py on a small project."""

from __future__ import annotations

import subprocess

import pytest

pytest.importorskip("coverage")

from slime_swe.data_sources.factory import runs
from slime_swe.data_sources.factory.runs import functions_in, measure
from slime_swe.errors import UserError

SOURCE = '''\
def register(function):
    """Runs when the module is imported."""
    function.known = True
    return function


@register
def double(number):
    """Twice the number."""
    def inner():
        return 2 * number

    return inner()


class Counter:
    """Counts."""

    start = 0

    def __init__(self):
        self.count = self.start

    def add(self):
        self.count += 1


def unused(): return 3


def wrong():
    return 1
'''
TESTS = """\
import time
import pytest
from shop.code import Counter, double, wrong


@pytest.mark.parametrize("given", ["a b", "c"])
def test_double(given):
    assert double(given) == given + given


class TestCounter:
    def test_start(self):
        assert Counter().count == 0

    def test_add(self):
        counter = Counter()
        counter.add()
        assert counter.count == 1


def test_wrong():
    assert wrong() == 2


@pytest.mark.skip
def test_left_out():
    double(1)


@pytest.mark.xfail
def test_expected_to_fail():
    wrong()
    assert False


def test_slow():
    wrong()
    while True:
        time.sleep(0.01)
"""
FILES = {
    "shop/__init__.py": "",
    "shop/code.py": SOURCE,
    "tests/test_code.py": TESTS,
    "setup.cfg": "[tool:pytest]\naddopts = --cov\n",
}
DOUBLE = ("tests/test_code.py::test_double[a b]", "tests/test_code.py::test_double[c]")
START, ADD = (f"tests/test_code.py::TestCounter::test_{name}" for name in ("start", "add"))


@pytest.fixture(scope="module")
def coverage():
    return measure(FILES, ["tests"], seconds=0.5)


def test_each_function_has_the_passing_tests_that_run_its_body(coverage):
    found = {function.name: tests for function, tests in runs.tests_by_function(FILES, coverage).items()}
    named = {name: found[name] for name in ("double", "double.inner", "Counter", "Counter.add", "wrong")}
    assert named == {
        "double": DOUBLE,
        "double.inner": DOUBLE,
        "Counter": (START, ADD),
        "Counter.add": (ADD,),
        "wrong": (),
    }
    assert "unused" not in found


def test_what_runs_at_import_is_run_by_every_test(coverage):
    functions = {function.name: function for function in functions_in("shop/code.py", SOURCE)}
    assert [name for name, function in functions.items() if coverage.runs_at_import(function)] == ["register"]
    assert runs.tests_by_function(FILES, coverage)[functions["register"]] == (*DOUBLE, START, ADD)


def test_tests_have_their_outcome_and_those_that_take_too_long_fail(coverage):
    assert coverage.tests == {
        **dict.fromkeys((*DOUBLE, START, ADD), True),
        "tests/test_code.py::test_wrong": False,
        "tests/test_code.py::test_slow": False,
    }
    assert 0.4 < coverage.seconds["tests/test_code.py::test_slow"] < 5
    assert coverage.tests_of("shop/code.py", [SOURCE[: SOURCE.index("return 1")].count("\n") + 1]) == (
        "tests/test_code.py::test_wrong",
        "tests/test_code.py::test_slow",
    )


def test_other_packages_of_this_python_are_hidden():
    source = (
        "def test_one():\n    try:\n        import msgspec\n    except ImportError:\n        return\n    assert 0\n"
    )
    assert measure({"test_a.py": source}).tests == {"test_a.py::test_one": True}
    shown = measure({"test_a.py": source}, packages=(*runs.PYTEST, "msgspec"))
    assert shown.tests == {"test_a.py::test_one": False}


def test_a_run_without_tests_or_without_results_says_why():
    with pytest.raises(UserError, match=r"pytest ran no test: no tests ran in"):
        measure({"test_a.py": "x = 1\n"}, ["test_a.py"])
    with pytest.raises(UserError, match="ended without results: it printed nothing"):
        measure({"test_a.py": "import os\nos._exit(3)\n"})


def test_a_run_that_hangs_is_ended_with_its_processes(monkeypatch):
    monkeypatch.setattr(runs, "GRACE", 2.0)
    source = "import subprocess, time\nsubprocess.Popen(['sleep', '4321.5'])\ntime.sleep(4321)\n"
    with pytest.raises(UserError, match="ended without results"):
        measure({"test_a.py": source}, seconds=0.1, budget=0.1)
    assert "4321.5" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def test_what_is_no_python_has_no_functions():
    assert list(functions_in("a.py", "def f(:\n")) == list(functions_in("a.py", "a\0")) == []
