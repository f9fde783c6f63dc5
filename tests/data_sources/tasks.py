"""Small tasks for tests: a module that adds, a test that fails until it adds rightly."""

from __future__ import annotations

from slime_swe.data_sources.task import Task, TestsOracle, Workspace

RUNNER = """import sys, traceback
sys.path.insert(0, ".")
failed = 0
import test_calc
for name in sorted(vars(test_calc)):
    if name.startswith("test_"):
        try:
            getattr(test_calc, name)()
            print(f"PASSED test_calc.py::{name}")
        except Exception as error:
            failed += 1
            print(f"FAILED test_calc.py::{name} - {type(error).__name__}: {error}")
sys.exit(1 if failed else 0)
"""
BROKEN = "def add(a, b):\n    return a - b\n\n\ndef name():\n    return 'calc'\n"
FIXED = BROKEN.replace("a - b", "a + b")
TESTS = """import calc


def test_add():
    assert calc.add(1, 2) == 3


def test_name():
    assert calc.name() == "calc"
"""
GOLD = """--- a/calc.py
+++ b/calc.py
@@ -1,5 +1,5 @@
 def add(a, b):
-    return a - b
+    return a + b
 
 
 def name():
"""


def make_task(task_id: str = "calc-1", **oracle) -> Task:
    files = {"calc.py": BROKEN, "test_calc.py": TESTS, "runtests.py": RUNNER}
    values = {
        "fail_to_pass": ("test_calc.py::test_add",),
        "pass_to_pass": ("test_calc.py::test_name",),
        "protected": ("test_calc.py", "runtests.py"),
        "command": "python3 -I -S -B runtests.py",
        "gold_patch": GOLD,
        "runner": "lines",
    }
    return Task(
        id=task_id,
        statement="add() gives wrong sums. Fix calc.py.",
        workspace=Workspace(files),
        oracle=TestsOracle(**{**values, **oracle}),
        source="tests",
        split="train",
    )
