"""The cases of data files: mutated, and graded with a witness."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.patches import make_patch
from slime_swe.rewards.data_cases import mutate_cases
from slime_swe.rewards.grade import grade
from slime_swe.rewards.validation import Status, validate
from slime_swe.sandbox import SandboxPool

MYPY = """\
-- What mypy's own suites look like.
[case testComment]
# flags: --strict
x: int = "a"  # E: Incompatible types in assignment

[case testOutput-skip]
f(1)
[out]
main:1: error: Too many arguments

[case testNothing]
x: int = 1
[builtins fixtures/list.pyi]

[case testOther]
reveal_type(1)  # N: Revealed type is "int"
"""
PLUGINS = """\
- case: comment
  main: |
    reveal_type(x)  # N: Revealed type is "int"
- case: out
  main: |
    x.y
  out: |
    main:1: error: "int" has no attribute "y"
- case: nothing
  main: |
    x = 1
"""
SYRUPY = "# serializer version: 1\n# name: test_a\n  'one'\n# ---\n# name: TestB.test_b[x]\n  dict({\n  })\n# ---\n"
CRAM = "Adding:\n\n  $ add 1 \\\n  >   2\n  3\n"
SILENT = "Nothing is printed:\n\n  $ quiet \\\n  >   1\n\n"


@pytest.mark.parametrize(
    ("path", "text", "test", "old", "new"),
    [
        ("d/check-x.test", MYPY, "t.py::S::check-x.test::testComment", "in assignment\n", "in assignment?\n"),
        ("d/check-x.test", MYPY, "t.py::S::testComment", "in assignment\n", "in assignment?\n"),
        ("d/check-x.test", MYPY, "t.py::S::check-x.test::testOutput", "many arguments\n", "many arguments?\n"),
        (
            "d/check-x.test",
            MYPY,
            "t.py::S::check-x.test::testNothing",
            "testNothing]\n",
            'testNothing]\npass # E: Name "???" is not defined\n',
        ),
        ("t/p.yml", PLUGINS, "t/p.yml::comment", 'type is "int"\n', 'type is "int"?\n'),
        ("t/p.yml", PLUGINS, "t/p.yml::out[a=1]", 'attribute "y"\n', 'attribute "y"?\n'),
        (
            "t/p.yml",
            PLUGINS,
            "t/p.yml::nothing",
            "    x = 1\n",
            '    pass # E: Name "???" is not defined\n    x = 1\n',
        ),
        ("t/__snapshots__/test_a.ambr", SYRUPY, "t/test_a.py::test_a", "'one'\n", "'one'?\n"),
        ("t/__snapshots__/test_a.ambr", SYRUPY, "t/test_a.py::TestB::test_b[x]", "dict({\n", "dict({?\n"),
        ("t/add.t", CRAM, "t/add.t::t/add.t", "  3\n", "  3?\n"),
        ("t/quiet.t", SILENT, "t/quiet.t::", "  >   1\n", "  >   1\n  ???\n"),
    ],
)
def test_a_case_expects_something_else(path, text, test, old, new):
    found = mutate_cases(path, text.encode(), [test, "t/other.py::test_a"], random.Random(1))
    assert found.functions == (frozenset({test}),)
    before, _, after = text.partition(old)
    pattern = new.partition("?")[0]
    made = found.text.decode()
    assert made.startswith(before + pattern) and made.endswith(after)
    assert len(made) == len(before + new + after)
    assert made != mutate_cases(path, text.encode(), [test], random.Random(2)).text.decode()


@pytest.mark.parametrize(
    ("path", "text", "test"),
    [
        ("d/check-x.test", MYPY, "t.py::S::check-y.test::testComment"),
        ("d/check-x.test", MYPY, "t.py::S::check-x.test::testComm"),
        ("t/p.yml", PLUGINS, "t/q.yml::comment"),
        ("t/__snapshots__/test_a.ambr", SYRUPY, "t/test_b.py::test_a"),
        ("t/add.t", CRAM, "t/other.t::t/other.t"),
        ("t/add.t", "use Test::More;\nok(1);\n", "t/add.t::t/add.t"),
        ("t/data.yml", "a: 1\n", "t/data.yml::a"),
    ],
)
def test_another_case_and_another_form_stay_as_they_are(path, text, test):
    found = mutate_cases(path, text.encode(), [test], random.Random(1))
    assert (found.text, found.functions) == (text.encode(), ())
    assert mutate_cases(path, b"\xff\xfe", [test], random.Random(1)).text == b"\xff\xfe"


# Like mypy's: a case's lines are calls, and what each must say stands behind it.
RUNNER = """\
import re, sys
sys.path.insert(0, ".")
from check import check
CASE = re.compile(r"^\\[case (\\w+)\\]\\n(.*?)(?=^\\[case|\\Z)", re.M | re.S)
for name, body in CASE.findall(open("data/check-x.test").read()):
    lines = [line.partition(" # E: ") for line in body.splitlines() if line]
    right = all(check(code.strip()) == said for code, _, said in lines)
    print("PASSED" if right else "FAILED", f"tests/run.py::Suite::check-x.test::{name}")
"""
FILES = {
    "tests/run.py": RUNNER,
    "check.py": "def check(code):\n    return ''\n",
    "data/check-x.test": "[case testBad]\nx = y # E: y is not defined\n\n[case testGood]\nx = 1\n",
}
RIGHT = "def check(code):\n    last = code.split()[-1]\n    return f'{last} is not defined' if last.isalpha() else ''\n"
BAD, GOOD = (f"tests/run.py::Suite::check-x.test::{name}" for name in ("testBad", "testGood"))


def patch(code: str) -> str:
    return make_patch(FILES, {**FILES, "check.py": code})


TASK = Task(
    "check",
    "Undefined names are not found",
    Workspace(FILES),
    TestsOracle((BAD,), (GOOD,), ("tests/run.py", "data/check-x.test"), "python3 -I -S -B tests/run.py", patch(RIGHT)),
)
FORGED = f"print('PASSED {BAD}')\nprint('PASSED {GOOD}')\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"


async def test_a_data_file_s_cases_are_a_witness():
    async with SandboxPool("local") as sandboxes:
        solved = await grade(TASK, patch(RIGHT), sandboxes)
        assert solved.solved, solved.evidence
        assert solved.evidence["witness"] == {"values": 0, "mutated": 2, "silent": 0, "none": 0}
        assert (await grade(TASK, patch(FORGED), sandboxes)).evidence["outcome"] == "forged"
        hidden = replace(
            TASK.oracle, hidden={"data/check-x.test": FILES["data/check-x.test"]}, protected=("tests/run.py",)
        )
        shown = {path: text for path, text in FILES.items() if path != "data/check-x.test"}
        own = replace(TASK, workspace=Workspace(shown), oracle=hidden)
        assert (await validate(own, sandboxes, runs=1)).status is Status.SOUND
