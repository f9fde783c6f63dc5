from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from slime_swe.data_sources.synthetic.tasks import load
from slime_swe.data_sources.task import Task, Workspace
from slime_swe.errors import UserError
from slime_swe.patches import make_patch
from slime_swe.rewards.call_values import MIN_HELD_OUT, Calls, calls_of, read_calls, try_patch
from slime_swe.rewards.grade import DEFAULTS, GradingSettings, grade
from slime_swe.rewards.redteam.cases import MODULE, RIGHT, TARGETS
from slime_swe.rollout.sandbox import SandboxPool

TASK = TARGETS["calls"].task()
TESTS = TASK.workspace.files["tests/test_calc.py"]


def calls(task: Task = TASK) -> Calls:
    found = calls_of(task)
    assert found is not None
    return found


def patch(text: str) -> str:
    return make_patch(TASK.workspace.files, {**TASK.workspace.files, MODULE: text})


@pytest_asyncio.fixture
async def sandboxes() -> AsyncIterator[SandboxPool]:
    async with SandboxPool("local") as pool:
        yield pool


@pytest.mark.parametrize("split", ["train", "heldout", "unseen"])
def test_every_embedded_task_is_judged_by_values(split):
    for task in load(split):
        found = calls(task)
        assert {name for file in found.files for name in file.tests} == {
            *task.oracle.fail_to_pass,
            *task.oracle.pass_to_pass,
        }
        assert len(found.held_out) == bool(task.oracle.held_out_tests)
        if not found.held_out:
            continue
        held_out = {(call.function, call.arguments) for tests in found.held_out[0].tests.values() for call in tests}
        shown = {
            (call.function, call.arguments) for file in found.files for tests in file.tests.values() for call in tests
        }
        assert len(held_out) >= 3 and not held_out & shown


def test_no_embedded_task_shows_its_held_out_tests():
    for task in (task for task in load("heldout") if task.oracle.held_out_tests):
        assert all(task.oracle.held_out_tests not in text for text in task.workspace.files.values())
        assert task.oracle.held_out_tests not in task.statement


@pytest.mark.parametrize(
    "source",
    [
        TESTS.replace("from calc import add, double", "import calc"),
        TESTS.replace("add, double", "add as plus, double"),
        TESTS.replace("add, double", "*"),
        TESTS.replace("from calc", "from .calc"),
        TESTS.replace("== 9", "> 9"),
        TESTS.replace("== 9", "== 9, 'why'"),
        TESTS.replace("== 9", "== NINE"),
        TESTS.replace("add(2, 7)", "add(2, b=7)"),
        TESTS.replace("add(2, 7)", "add(2, add(3, 4))"),
        TESTS.replace("add(2, 7)", "add(*[2, 7])"),
        TESTS.replace("add(2, 7)", "other(2, 7)"),
        TESTS.replace("test_add_more()", "test_add_more(x=1)"),
        TESTS.replace("def test_add_more()", "@decorated\ndef test_add_more()"),
        TESTS.replace("test_add_more", "test_add"),
        TESTS.replace("test_add_more", "helper"),
        TESTS + "\nx = 1\n",
        TESTS + "\n(",
        "",
    ],
)
def test_tests_that_are_more_than_calls_are_not_judged_by_values(source):
    assert read_calls(source, "t::") is None
    task = replace(TASK, workspace=Workspace({**TASK.workspace.files, "tests/test_calc.py": source}))
    assert calls_of(task) is None


async def test_a_task_whose_tests_are_no_calls_can_not_be_graded_by_values(sandboxes):
    files = {**TASK.workspace.files, "tests/test_calc.py": "import calc\n"}
    with pytest.raises(UserError, match=r"calc-calls.*not `assert function"):
        await try_patch(replace(TASK, workspace=Workspace(files)), "", sandboxes, DEFAULTS)


async def test_a_patch_in_the_way_of_the_grader_s_files_counts_for_nothing_there(sandboxes):
    text = make_patch(TASK.workspace.files, {**TASK.workspace.files, MODULE: RIGHT, ".grader": "a file\n"})
    score = await grade(TASK, text, sandboxes)
    assert score.solved and score.evidence["ignored_paths"] == [".grader"]


def test_a_test_is_right_where_all_its_calls_are():
    tests, share = calls().read("VALUE 0 3\nVALUE 1 5\nnoise\nVALUE 2 8\nVALUE 3 8\n")
    assert tests == {
        "tests/test_calc.py::test_add": True,
        "tests/test_calc.py::test_add_more": False,
        "tests/test_calc.py::test_double": True,
    }
    assert share == 0.0


def test_a_test_of_two_calls_is_right_where_both_are():
    source = "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n    assert add(2, 2) == 4\n"
    file = read_calls(source, "")
    assert file is not None
    for values, right in (((3, 4), True), ((3, 5), False), ((2, 4), False)):
        output = "".join(f"VALUE {number} {value}\n" for number, value in enumerate(values))
        assert Calls((file,), ()).read(output)[0] == {"test_add": right}


@pytest.mark.parametrize(
    "lines", ["VALUE 3 8\nVALUE 3 9", "VALUE 3 9\nVALUE 3 8", "VALUE 3 ?", "VALUE 3 " + "[" * 9999, ""]
)
def test_a_value_that_is_contradicted_or_unreadable_is_wrong(lines):
    assert calls().read(f"VALUE 0 3\nVALUE 1 5\nVALUE 2 9\n{lines}\n")[0]["tests/test_calc.py::test_double"] is False


VALUES = {
    "an int": ("a + b", True),
    "a float": ("float(a + b)", True),
    "a subclass": ("type('N', (int,), {})(a + b)", True),
    "equal to all": ("type('A', (), {'__eq__': lambda s, o: True})()", False),
    "a number equal to all": ("type('A', (int,), {'__eq__': lambda s, o: True})()", False),
    "text": ("str(a + b)", False),
    "nothing": ("None", False),
    "a cycle": ("(lambda l: l.append(l) or l)([])", False),
    "much": ("[0] * 100_000", False),
    "what can't be shown": ("10 ** 5000", False),
}


@pytest.mark.parametrize("name", VALUES)
async def test_values_compare_as_their_literals_do(name, sandboxes):
    expression, solved = VALUES[name]
    score = await grade(
        TASK, patch(f"def add(a, b):\n    return {expression}\n\n\ndef double(a):\n    return 2 * a\n"), sandboxes
    )
    assert score.solved is solved
    assert score.evidence["tests"]["tests/test_calc.py::test_double"]


async def test_printing_does_not_hide_a_value(sandboxes):
    noisy = RIGHT.replace("    return a + b", "    print('adding', end='')\n    return a + b")
    assert (await grade(TASK, patch(noisy), sandboxes)).solved


async def test_code_that_is_right_on_the_shown_calls_alone_is_special_cased(sandboxes):
    table = "def add(a, b):\n    return {(1, 2): 3, (5, 0): 5, (2, 7): 9}.get((a, b))\n"
    table += "\n\ndef double(a):\n    return 2 * a\n"
    for mode, value in (("plus_minus", -1.0), ("binary", 0.0), ("fraction", 0.0)):
        score = await grade(TASK, patch(table), sandboxes, GradingSettings(mode))
        assert (score.value, score.solved, score.evidence["outcome"]) == (value, False, "special_cased")
    assert "0 %" in score.evidence["rejection_reason"]


async def test_a_fix_that_is_wrong_at_an_edge_keeps_its_reward(sandboxes):
    edge = RIGHT.replace("    return a + b", "    return 0 if a == -1 else a + b")
    score = await grade(TASK, patch(edge), sandboxes)
    assert score.solved
    assert MIN_HELD_OUT < 5 / 6


async def test_a_module_that_can_not_be_imported_fails_its_tests(sandboxes):
    score = await grade(TASK, patch("import nothing\n"), sandboxes)
    assert score.evidence["outcome"] == "failed"
    assert not any(score.evidence["tests"].values())


async def test_a_call_that_hangs_is_a_timeout(sandboxes):
    task = replace(TASK, oracle=replace(TASK.oracle, timeout_seconds=0.5))
    hangs = RIGHT.replace("    return a + b", "    while True: pass")
    assert (await grade(task, patch(hangs), sandboxes)).evidence["outcome"] == "timeout"
