"""Runs of the tests of several states of one project, in real processes without a sandbox."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from slime_swe.data_sources.factory.runs import PROGRAM, Job, outcomes, run_here

CODE = "def double(n):\n    return 2 * n\n"
TESTS = """\
from shop import double

def test_two():
    assert double(2) == 4

def test_three():
    assert double(3) == 6
"""
PROJECT = {"shop.py": CODE, "test_shop.py": TESTS}
TWO, THREE = "test_shop.py::test_two", "test_shop.py::test_three"


def of(*sources, tests=(TWO, THREE)):
    return [Job({"shop.py": source}, tests, test_seconds=0.3) for source in sources]


def test_each_state_has_its_own_outcomes():
    wrong = ["def double(n):\n    return n + 2\n", "def double(n:\n", "import os\nos._exit(1)\n"]
    hanging = "def double(n):\n    while n > 2:\n        pass\n    return 4\n"
    found = outcomes(PROJECT, of(CODE, *wrong, hanging, CODE))
    right, none = {TWO: True, THREE: True}, {TWO: False, THREE: False}
    assert found == [right, {TWO: True, THREE: False}, none, none, {TWO: True, THREE: False}, right]


def test_files_of_a_state_are_no_others():
    added = Job({"test_more.py": TESTS}, ["test_more.py::test_two"])
    assert outcomes(PROJECT, [added, Job({}, ["test_more.py::test_two"])]) == [
        {"test_more.py::test_two": True},
        {"test_more.py::test_two": False},
    ]


def test_no_test_begins_when_the_time_is_over():
    long = "import time\n\ndef test_long():\n    while time.process_time() < 1.1:\n        pass\n"
    files = {"test_a.py": f"{long}\ndef test_next():\n    pass\n"}
    runs = run_here(files, [Job({}, [], seconds=1), Job({}, [], wall=0.01)])
    assert [run.passed for run in runs] == [{"test_a.py::test_long": True}, {}]
    assert all(run.timed_out for run in runs) and runs[0].tests["test_a.py::test_long"].seconds > 0.1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_the_tests_and_their_processes(tmp_path, number):
    begun, seconds = tmp_path / "begun", f"{4000 + number}.5"
    tests = f"import subprocess\n\ndef test():\n    subprocess.Popen(['sleep', '{seconds}'])\n"
    tests += f"    open({str(begun)!r}, 'w').close()\n    while True:\n        pass\n"
    code = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
    code += (
        f"from slime_swe.data_sources.factory.runs import *\nrun_here({{'test_a.py': {tests!r}}}, [Job({{}}, [])])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    process.wait()
    assert seconds not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout


def test_what_was_printed_is_kept_where_no_test_ran():
    unknown, right = run_here(PROJECT, [Job({}, ["--no-such-option"]), Job({}, [TWO])])
    assert "unrecognized arguments: --no-such-option" in unknown.log and not unknown.tests
    assert right.passed == {TWO: True} and right.log == ""


def test_the_program_imports_nothing_of_ours():
    code = f"import runpy, sys; runpy.run_path({str(PROGRAM)!r}); print([n for n in sys.modules if 'slime' in n])"
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True).stdout == "[]\n"
