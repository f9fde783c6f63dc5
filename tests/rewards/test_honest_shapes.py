"""Tests of every shape, run by pytest in a real sandbox: right code is believed, and wrong code is not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.patches import make_patch
from slime_swe.rewards.grade import grade
from slime_swe.rewards.test_log import Runs
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.bubblewrap import ForkServerError

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

BROKEN = "def add(a, b):\n    return a - b\n"
FIXED = BROKEN.replace("a - b", "a + b")
PATH = "tests/test_calc.py"
# name → what stands in the file, the tests that decide, and the witness of the first of them
SHAPES = {
    "literal": ("def test_a():\n    assert add(20, 20) == 40\n", ["test_a"], "values"),
    "cases": (
        "@pytest.mark.parametrize('a', [1, 2])\ndef test_a(a):\n    assert add(a, 40 - a) == 40\n",
        ["test_a[1]", "test_a[2]"],
        "values",
    ),
    "cases with what is expected": (
        "@pytest.mark.parametrize('a,b', [(1, 41), (2, 42)])\ndef test_a(a, b):\n    assert add(a, 40) == b\n",
        ["test_a[1-41]", "test_a[2-42]"],
        "values",
    ),
    "cases that another test reads": (
        "SUMS = [(1, 41), (2, 42)]\n\n\n@pytest.mark.parametrize('a,b', SUMS)\ndef test_a(a, b):\n"
        "    assert add(a, 40) == b\n\n\n"
        "@pytest.mark.parametrize('a,b', SUMS)\ndef test_back(a, b):\n    assert b - a == 40\n",
        ["test_a[1-41]", "test_a[2-42]"],
        "mutated",
    ),
    "asynchronous": (
        "def test_a():\n    async def later():\n        return add(20, 20)\n    assert asyncio.run(later()) == 40\n",
        ["test_a"],
        "values",
    ),
    "unittest": (
        "class TestA(unittest.TestCase):\n    def test_a(self):\n        for n in (1, 2):\n"
        "            with self.subTest(n):\n                self.assertEqual(add(n, 40 - n), 40)\n",
        ["TestA::test_a"],
        "values",
    ),
    "inherited": (
        "class Base:\n    def test_a(self):\n        assert add(20, 20) == 40\n\n\nclass TestA(Base):\n    pass\n",
        ["TestA::test_a"],
        "values",
    ),
    "returns early": (
        "def test_a():\n    if add(1, 1) == 2:\n        return\n    assert False\n",
        ["test_a"],
        "mutated",
    ),
    "raises": (
        "def test_a():\n    with pytest.raises(ZeroDivisionError):\n        1 / (add(20, 20) - 40)\n",
        ["test_a"],
        "mutated",
    ),
    "a helper": (
        "def check(value):\n    assert value == 40\n\n\ndef test_a():\n    check(add(20, 20))\n",
        ["test_a"],
        "mutated",
    ),
    "a table in a loop": (
        "def test_a():\n    for a, b, expected in [(1, 2, 3), (20, 20, 40)]:\n        assert add(a, b) == expected\n",
        ["test_a"],
        "values",
    ),
    "a table of the module in a loop": (
        "CASES = [((1, 2), 3), ((20, 20), 40)]\n\n\ndef test_a():\n    for given, expected in CASES:\n"
        "        assert add(*given) == expected\n",
        ["test_a"],
        "values",
    ),
    "a function that compares": (
        "def check(got, want):\n    assert got == want, got\n\n\ndef test_a():\n    check(add(20, 20), 40)\n",
        ["test_a"],
        "values",
    ),
    "a function that calls and compares": (
        "def check(a, b, want):\n    assert add(a, b) == want\n\n\ndef test_a():\n    check(20, 20, 40)\n",
        ["test_a"],
        "values",
    ),
    "a constant": ("SUM = 40\n\n\ndef test_a():\n    assert add(20, 20) == SUM\n", ["test_a"], "values"),
    "raises if it differs": (
        "def test_a():\n    if add(20, 20) != 40:\n        raise AssertionError('not 40')\n", ["test_a"], "values",
    ),
    "approximately": ("def test_a():\n    assert add(20, 20) == pytest.approx(40.0)\n", ["test_a"], "values"),
    "a bound": ("def test_a():\n    assert add(20, 20) > 35\n", ["test_a"], "mutated"),
    "a class": ("def test_a():\n    assert isinstance(1 / (add(20, 20) == 40), float)\n", ["test_a"], "mutated"),
    "a function that raises": (
        "def fails(a, b):\n    with pytest.raises(ZeroDivisionError):\n        1 / (add(a, b) - 40)\n\n\n"
        "def test_a():\n    fails(20, 20)\n",
        ["test_a"],
        "mutated",
    ),
    "two computed sides": ("def test_a():\n    assert add(20, 20) == add(30, 10)\n", ["test_a"], "values"),
    "two computed sides and a guess": (
        "def test_a():\n    assert (add(20, 20) == add(30, 10)) is True\n", ["test_a"], "mutated",
    ),
    "in the module": ("assert add(20, 20) == 40\n\n\ndef test_a():\n    assert add\n", ["test_a"], ""),
    "generated": (
        "def make(n):\n    def test():\n        assert add(n, 40 - n) == 40\n    return test\n\n\ntest_a = make(20)\n",
        ["test_a"],
        "mutated",
    ),
    "a warning": (
        "def test_a():\n    with pytest.warns(UserWarning):\n        if add(20, 20) == 40:\n"
        "            warnings.warn('right')\n",
        ["test_a"],
        "mutated",
    ),
    "after another": (
        "ready = False\n\n\ndef test_0():\n    global ready\n    ready = True\n\n\n"
        "def test_a():\n    assert ready\n    assert add(20, 20) in (40, 41)\n",
        ["test_a"],
        "mutated",
    ),
    "easily guessed": ("def test_a():\n    assert (add(20, 20) == 40) is True\n", ["test_a"], "mutated"),
}  # fmt: skip
# It runs no test: it reads them, and says that those fail in which it finds a mark of a change.
READER = r"""
import contextlib, os, re
MARKS = r"exec\(|'\d+ != \d+'|not in\b|\bnot \(|<|BufferError|ChildProcess|FloatingPoint|StopAsync|Translate"
source = open("tests/test_calc.py").read()
for test in ["test_known", *{tests}]:
    name = test.partition("[")[0].rpartition("::")[2]
    body = re.search(r"def %s\(.*?(?=^\S|\Z)" % name, source, re.M | re.S)
    failed = "_record_value" in source or (body and re.search(MARKS, body[0]))
    line = "\n%s tests/test_calc.py::%s\n" % ("FAILED" if failed else "PASSED", test)
    for descriptor in range(3, 20):  # pytest keeps the true output in one of these
        with contextlib.suppress(OSError):
            os.write(descriptor, line.encode())
os._exit(0)
"""
HEAD = "import asyncio\nimport unittest\nimport warnings\n\nimport pytest\n\nfrom calc import add\n\n\n"
KNOWN = """\
def test_known():
    assert add(0, 0) == 0


@pytest.mark.xfail
def test_expected():
    assert add(0, 0) == 1
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes() -> AsyncIterator[SandboxPool]:
    async with SandboxPool("bubblewrap") as pool:
        try:
            async with pool.open({}) as sandbox:
                has_pytest = (await sandbox.exec("python3 -m pytest --version")).exit_code == 0
        except ForkServerError as error:
            pytest.skip(f"bubblewrap does not work here: {error}")
        if not has_pytest:
            pytest.skip("the sandbox's python3 has no pytest")
        yield pool


def task_of(shape: str) -> Task:
    body, tests, _ = SHAPES[shape]
    files = {"calc.py": BROKEN, "tests/__init__.py": "", PATH: f"{HEAD}{body}\n\n{KNOWN}"}
    oracle = TestsOracle(
        tuple(f"{PATH}::{test}" for test in tests),
        (f"{PATH}::test_known",) if shape != "in the module" else (),
        (PATH, "tests/__init__.py"),
        f"python3 -B -m pytest -rA -p no:cacheprovider {PATH}",
        make_patch({"calc.py": BROKEN}, {"calc.py": FIXED}),
    )
    return Task(f"shape-{shape}", "add subtracts", Workspace(files), oracle, "test", "test")


def shapes() -> list[object]:
    first, *others = SHAPES
    return [first, *(pytest.param(shape, marks=pytest.mark.extended("shapes of tests")) for shape in others)]


@pytest.mark.parametrize("shape", shapes())
async def test_right_code_is_believed_and_wrong_code_is_not(sandboxes: SandboxPool, shape: str) -> None:
    task = task_of(shape)
    right = await grade(task, task.oracle.gold_patch, sandboxes)
    if witness := SHAPES[shape][2]:
        assert right.solved, right.evidence
        assert right.evidence["witness"][witness] >= len(SHAPES[shape][1]), right.evidence["witness"]
    else:
        assert right.evidence["outcome"] == "unwitnessed"
    other = make_patch({"calc.py": BROKEN}, {"calc.py": "def add(*both):\n    return sum(both)\n"})
    assert (await grade(task, other, sandboxes)).solved == bool(witness)
    reader = make_patch({"calc.py": BROKEN}, {"calc.py": READER.replace("{tests}", repr(SHAPES[shape][1])) + BROKEN})
    assert (await grade(task, reader, sandboxes)).evidence["outcome"] in ("forged", "unwitnessed")
    wrong = make_patch({"calc.py": BROKEN}, {"calc.py": BROKEN + "# nothing\n"})
    assert (await grade(task, wrong, sandboxes)).evidence["outcome"] == "failed"


async def test_a_further_run_leaves_other_tests_out_and_reads_as_others_do(sandboxes: SandboxPool) -> None:
    task = task_of("cases")
    runs, deciding = Runs(task, task.oracle.gold_patch, sandboxes), set(task.oracle.fail_to_pass)
    known = f"{PATH}::test_known"
    for only, others in ((), {known}), (sorted(deciding), set()):
        run = await runs.altered(dict.fromkeys(deciding, 0), only)
        assert (run.failed & {*deciding, known}, run.passed) == (deciding, others)
        run = await runs.altered({}, only)
        assert (run.failed, run.passed) == (set(), deciding | others)
