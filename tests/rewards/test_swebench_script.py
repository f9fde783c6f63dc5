"""What becomes of an eval script whose tests are mutated."""

from __future__ import annotations

import pytest

from slime_swe.patches import apply_patch, make_patch
from slime_swe.rewards.mutated_files import pytest_options
from slime_swe.rewards.swebench.grader import (
    before_the_tests,
    embeds_test_patch,
    with_copied_tests,
    with_embedded_tests,
    with_line,
)

SHOWN = {"tests/test_a.py": "def test_a(): pass\n"}
RIGHT = {"tests/test_a.py": "def test_a(): pass\ndef test_b(): assert 1\n", "tests/data.txt": "text\n"}
WRONG = b"def test_a(): pass\ndef test_b(): assert 0\n"
PATCH = make_patch(SHOWN, RIGHT)
RUN = ": '>>>>> Start Test Output'\npytest\n: '>>>>> End Test Output'\n"


def script(patch: str = PATCH, end: str = "'EOF_1'", run: str = RUN) -> str:
    return f"#!/bin/bash\ngit checkout abc tests/test_a.py\ngit apply -v - <<{end}\n{patch}EOF_1\n{run}"


def test_the_tests_are_brought_by_the_script_s_own_patch():
    shown = {path: text.encode() for path, text in SHOWN.items()}
    made = with_embedded_tests(script(), shown, {"tests/test_a.py": WRONG})
    head, _, rest = made.partition("<<'EOF_1'\n")
    patch, _, tail = rest.partition("EOF_1\n")
    assert (head, tail) == ("#!/bin/bash\ngit checkout abc tests/test_a.py\ngit apply -v - ", RUN)
    assert apply_patch(SHOWN, patch) == {"tests/test_a.py": WRONG, "tests/data.txt": b"text\n"}


def test_a_file_that_nobody_was_shown_is_new():
    made = with_embedded_tests(script(make_patch({}, RIGHT)), {}, {"tests/test_a.py": WRONG})
    patch = made.partition("<<'EOF_1'\n")[2].partition("EOF_1\n")[0]
    assert apply_patch({}, patch) == {"tests/test_a.py": WRONG, "tests/data.txt": b"text\n"}


def test_a_script_that_brings_its_own_tests_may_bring_others_too():
    shown = {"other.py": b"1\n", "tests/test_a.py": SHOWN["tests/test_a.py"].encode()}
    made = with_embedded_tests(script(), shown, {"other.py": b"2\n"})
    patch = made.partition("<<'EOF_1'\n")[2].partition("EOF_1\n")[0]
    after = {path: text.encode() for path, text in RIGHT.items()} | {"other.py": b"2\n"}
    assert apply_patch({"other.py": "1\n", **SHOWN}, patch) == after


RENAMED = "diff --git a/a.py b/b.py\nsimilarity index 100%\nrename from a.py\nrename to b.py\n"


@pytest.mark.parametrize(
    ("text", "brings"),
    [
        (script(), True),
        (script(end='"EOF_1"'), True),
        (script(end="EOF_1"), False),  # the shell would expand what it holds
        (script("print('no patch')\n"), False),
        (script(PATCH + RENAMED), False),
        (script() + script(), True),  # what comes after the tests is not looked at
        (script(run="") + script(), False),
        (RUN, False),
        ("", False),
    ],
)
def test_which_scripts_bring_their_tests(text, brings):
    assert embeds_test_patch(text) is brings


def test_other_scripts_get_the_tests_by_copies():
    assert with_copied_tests(f"cd a\n{RUN}", "/tmp/tests", "/my repo") == f"cd a\ncp -R /tmp/tests/. '/my repo'/\n{RUN}"
    assert before_the_tests(f"cd a\n{RUN}") == "cd a\n"
    assert before_the_tests("cd a\n") == "cd a\n"


def test_options_for_pytest_stand_before_the_tests():
    made = with_line(script(), pytest_options(["tests/test_a.py::TestA::test_b[1 - x]", "tests/test_a.py::test_a"]))
    options = """export PYTEST_ADDOPTS="${PYTEST_ADDOPTS-} --tb=no -k 'test_a or test_b'"\n"""
    assert made == script().removesuffix(RUN) + options + RUN
    assert embeds_test_patch(made)


@pytest.mark.parametrize("test", ["test_a (tests.TestA)", "adds two numbers", "tests/test_a.py::adds; rm -r"])
def test_a_test_that_no_function_has_the_name_of_leaves_no_other_out(test):
    assert "-k" not in pytest_options([test, "tests/test_a.py::test_a"])
