"""The task that agents are checked on: a module that subtracts where it should add. Their check scripts repair it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from slime_swe.data_sources.task import Image, Task, TestsOracle, Workspace
from slime_swe.patches import make_patch

STATEMENT = "add() in calc.py returns wrong sums. Fix it."
BUG, FIX = "return a - b", "return a + b"
PATH = f"{Image.folder}/calc.py"
EDIT_COMMAND = f"sed -i 's/{BUG}/{FIX}/' calc.py"
TEST_COMMAND = "python3 -B run_tests.py"
_FILES = {
    "calc.py": f'"""Sums."""\n\n\ndef add(a, b):\n    {BUG}\n',
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n\n\n"
    "def test_nothing():\n    assert add(0, 0) == 0\n",
    "run_tests.py": """\
import sys

sys.path.insert(0, ".")
import test_calc

failed = 0
for name in ("test_add", "test_nothing"):
    try:
        getattr(test_calc, name)()
        print(f"PASSED test_calc.py::{name}")
    except AssertionError as error:
        failed = 1
        print(f"FAILED test_calc.py::{name} - {error}")
sys.exit(failed)
""",
}


def toy_task() -> Task:
    oracle = TestsOracle(
        command="python3 -I -S -B run_tests.py",
        fail_to_pass=("test_calc.py::test_add",),
        pass_to_pass=("test_calc.py::test_nothing",),
        protected=("test_calc.py", "run_tests.py"),
        gold_patch=make_patch(_FILES, {**_FILES, "calc.py": _FILES["calc.py"].replace(BUG, FIX)}),
        runner="lines",
    )
    return Task("agent-check", STATEMENT, Workspace(_FILES), oracle, source="bundled", split="check")


def repair(tool: str, argument: str = "command", **more: object) -> tuple[str, ...]:
    """Return a policy's turns at an agent that runs commands by this tool; the last turn ends its work."""
    commands = ("cat calc.py", EDIT_COMMAND, TEST_COMMAND)
    look, edit, test = (tool_call(tool, **{argument: command}, **more) for command in commands)
    return f"Let me look first.\n{look}", f"It subtracts.\n{edit}", test, "The sums are right now."


def tool_call(name: str, **arguments: object) -> str:
    """Write a call in Hermes' format."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def with_malformed_call(script: Sequence[str]) -> tuple[str, ...]:
    """Repeat a script's second call (or its only one): before it is right, its arguments are cut short.

    The result is empty if the script has no calls.
    """
    calls = [at for at, turn in enumerate(script) if "</tool_call>" in turn][:2]
    if not calls:
        return ()
    at = calls[-1]
    before, _, after = script[at].rpartition("}}")
    return *script[:at], f"{before[:-1]}{after}", *script[at:]
