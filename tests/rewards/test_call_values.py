from __future__ import annotations

import ast
import asyncio
import contextlib
import copy
import functools
import random
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import example, given
from hypothesis import strategies as st

from slime_swe.data_sources.synthetic.tasks import load
from slime_swe.data_sources.task import Task, Workspace
from slime_swe.errors import UserError
from slime_swe.patches import make_patch
from slime_swe.rewards import call_values
from slime_swe.rewards.call_values import Calls, calls_of, read_calls, try_patch
from slime_swe.rewards.canonical import NotPlain, canonical
from slime_swe.rewards.grade import DEFAULTS, GraderError, GradingSettings, grade
from slime_swe.rewards.redteam.cases import MODULE, RIGHT, TARGETS
from slime_swe.rewards.validation import Status, validate
from slime_swe.rewards.withheld import read_records, sandbox_source
from slime_swe.rollout.loop_scope import close_loop_scope
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.base import ExecResult, Sandbox, SandboxError
from tests.effort import FACTOR, assert_linear

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
        assert len(held_out) >= 16 and not held_out & shown


def test_what_runs_in_a_sandbox_is_read_from_disk_once_for_all_gradings():
    assert calls().grading_files()[call_values._RUNNER] is calls().grading_files()[call_values._RUNNER]
    for name in ("call_runner.py", "value_recorder.py"):
        defined = {node.name for node in ast.parse(sandbox_source(name)).body if isinstance(node, ast.FunctionDef)}
        assert {"canonical", "digest"} < defined


class Idle:
    """Sandboxes in which every command ends at once and prints nothing. opened: how many; files: of the last one."""

    def __init__(self) -> None:
        self.opened = 0
        self.files: Mapping[str, str | bytes] = {}

    @asynccontextmanager
    async def open(self, files: Mapping[str, str | bytes], *_: object) -> AsyncIterator[Idle]:
        self.opened += 1
        self.files = files
        yield self

    async def exec(self, command: str, *, timeout: float) -> ExecResult:
        return ExecResult(0, "", 0.0)


@pytest.mark.parametrize("split", ["train", "heldout", "unseen"])
async def test_no_answer_and_no_test_is_where_an_embedded_task_is_graded(split):
    for task in load(split):
        sandboxes = Idle()
        await try_patch(task, task.oracle.gold_patch, sandboxes, DEFAULTS)
        code = {path for path in task.workspace.files if path not in task.oracle.protected}
        assert sandboxes.files.keys() == code | {call_values._RUNNER, call_values._CALLS}
        files = ast.literal_eval(str(sandboxes.files[call_values._CALLS]))
        assert all(len(call) == 2 for _, _, calls in files for call in calls)


async def test_a_test_file_is_withheld_from_the_code_even_if_the_oracle_does_not_protect_it():
    sandboxes = Idle()
    await try_patch(replace(TASK, oracle=replace(TASK.oracle, protected=())), patch(RIGHT), sandboxes, DEFAULTS)
    assert sandboxes.files.keys() == {MODULE, "README", "runtests.py", call_values._RUNNER, call_values._CALLS}


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
    tests, held_out = calls().read("VALUE 0 3\nVALUE 1 5\nnoise\nVALUE 2 8\nVALUE 3 8\nVALUE 4 -37\nVALUE 05 -8\n")
    assert tests == {
        "tests/test_calc.py::test_add": True,
        "tests/test_calc.py::test_add_more": False,
        "tests/test_calc.py::test_double": True,
    }
    assert held_out == [True] + [False] * 15


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
    "a huge number": ("10 ** 5000", False),
    "not a number": ("float('nan')", False),
    "infinity": ("float('inf')", False),
    "sets of equal hashes": ("{n * (2 ** 61 - 1) for n in range(2000)}", False),
    "surrogates": ("chr(0xd800) * 9 + chr(0)", False),
    "deep": ("(lambda f, n: f(f, n))(lambda f, n: [f(f, n - 1)] if n else 0, 500)", False),
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


def special_case(otherwise: str) -> str:
    """`add` right on the calls of the tests, and else what is given; `a - b` is what the code gave."""
    table = f"{{(1, 2): 3, (5, 0): 5, (2, 7): 9}}.get((a, b), {otherwise})"
    return RIGHT.replace("return a + b", f"return {table}")


@pytest.mark.parametrize("otherwise", ["None", "a - b", "b - a", "3", "a - b + 1", "a + b if a > b else a - b"])
async def test_code_that_is_right_on_the_shown_calls_alone_is_special_cased(otherwise, sandboxes):
    for mode, value in (("plus_minus", -1.0), ("binary", 0.0), ("fraction", 0.0)):
        score = await grade(TASK, patch(special_case(otherwise)), sandboxes, GradingSettings(mode))
        assert (score.value, score.solved, score.evidence["outcome"]) == (value, False, "special_cased")
    assert "held-out calls that the unpatched code gets wrong" in score.evidence["rejection_reason"]


async def test_code_that_loses_what_was_right_is_special_cased(sandboxes):
    """Such as a table before the opposite of what the code gave, where that has two values."""
    score = await grade(TASK, patch(special_case("a + b if b else -1")), sandboxes)
    assert score.evidence["outcome"] == "special_cased"
    assert score.evidence["rejection_reason"].endswith("the 4 held-out calls that the unpatched code gets right 0")


@pytest.mark.parametrize("edge", ["a == -7 and b == 4", "a == 100 and b == 4"])
async def test_a_fix_that_is_wrong_at_an_edge_keeps_its_reward(edge, sandboxes):
    code = RIGHT.replace("    return a + b", f"    return 0 if {edge} else a + b")
    assert (await grade(TASK, patch(code), sandboxes)).solved


async def test_held_out_calls_that_show_nothing_of_the_bug_reward_nothing(sandboxes):
    held_out = "from calc import double\n\n\ndef test_held_out():\n    assert double(3) == 6\n"
    task = replace(TASK, oracle=replace(TASK.oracle, held_out_tests=held_out))
    assert (await grade(task, patch(RIGHT), sandboxes)).evidence["outcome"] == "special_cased"
    finding = await validate(task, sandboxes, runs=1)
    assert finding.status is Status.UNSOUND and "can't tell a fix from a table" in finding.detail
    without = replace(TASK, oracle=replace(TASK.oracle, held_out_tests=""))
    assert (await grade(without, patch(RIGHT), sandboxes)).solved


async def test_forged_reports_of_held_out_calls_are_compared_as_all_are(sandboxes):
    forged = (
        "import os\nfor n in range(40):\n    os.write(1, f'\\nVALUE {n} {(3, 5, 9, 8, 7)[min(n, 4)]}\\n'.encode())\n"
    )
    score = await grade(TASK, patch(forged + "os._exit(0)\n" + RIGHT), sandboxes)
    assert score.evidence["outcome"] == "special_cased"
    assert all(score.evidence["tests"].values())


class Counting:
    """Sandboxes that count how often they are opened, and fail while `broken`."""

    def __init__(self, pool: SandboxPool) -> None:
        self.pool, self.opened, self.broken = pool, 0, False

    def open(
        self, files: Mapping[str, str | bytes], *more: Any, **options: Any
    ) -> AbstractAsyncContextManager[Sandbox]:
        self.opened += 1
        if self.broken:
            raise SandboxError("no sandbox today")
        return self.pool.open(files, *more, **options)


async def test_the_unpatched_code_is_run_once_for_all_patches_of_a_task(sandboxes):
    counting = Counting(sandboxes)
    patches = [patch(RIGHT + f"\n# {number}\n") for number in range(4)]
    scores = await asyncio.gather(*(grade(TASK, text, counting) for text in patches))
    assert all(score.solved for score in scores) and counting.opened == 5
    assert not (await grade(TASK, patch("def add(a, b):\n    return 0\n"), counting)).solved
    assert counting.opened == 6
    other = replace(TASK, workspace=Workspace({**TASK.workspace.files, "README": "another"}))
    await grade(other, patch(RIGHT), counting)
    assert counting.opened == 8
    await close_loop_scope()


async def test_the_answers_of_all_synthetic_tasks_are_made_once_and_are_small():
    """Training goes through all tasks before one comes again."""
    tasks = [task for split in ("train", "heldout", "unseen") for task in load(split)]
    idle, held_out = Idle(), calls(tasks[0])
    tracemalloc.start()
    for _ in range(2):
        for task in tasks:
            assert not any(await call_values._unpatched(task, held_out, idle))
        assert idle.opened == len(tasks) == 768
    kept, _ = tracemalloc.get_traced_memory()
    await close_loop_scope()
    assert kept - tracemalloc.get_traced_memory()[0] < 2048 * len(tasks)
    tracemalloc.stop()


async def test_a_failure_to_run_the_unpatched_code_is_the_grader_s_and_not_cached(sandboxes):
    counting = Counting(sandboxes)
    unpatched = functools.partial(call_values._unpatched, TASK, calls(), counting)
    counting.broken = True
    with pytest.raises(GraderError, match="no sandbox today"):
        await unpatched()
    counting.broken = False
    assert (await unpatched()).count(False) == 12
    await close_loop_scope()


class Stalling:
    """Sandboxes whose runs reach their time limit, each behind so many calls; None: it does not."""

    def __init__(self, inner, *after: int | None) -> None:
        self.inner, self.after = inner, [*after]

    @contextlib.asynccontextmanager
    async def open(self, *words):
        async with self.inner.open(*words) as sandbox:
            yield Stalled(sandbox, self.after.pop(0) if self.after else None)


class Stalled:
    def __init__(self, sandbox, after: int | None) -> None:
        self.sandbox, self.after = sandbox, after

    async def exec(self, command: str, timeout: float):
        result = await self.sandbox.exec(command, timeout=timeout)
        if self.after is None:
            return result
        shown = result.output.split(f"VALUE {self.after} ")[0]
        return replace(result, output=shown, timed_out=True, exit_code=None)


async def test_a_stall_of_the_unpatched_code_makes_no_call_wrong(sandboxes):
    right = await call_values._unpatched(TASK, calls(), sandboxes)
    await close_loop_scope()
    assert await call_values._unpatched(TASK, calls(), Stalling(sandboxes, 0)) == right, "it is run again"
    await close_loop_scope()
    hangs = await call_values._unpatched(TASK, calls(), Stalling(sandboxes, 5, 5))
    assert hangs == [*right[:5], False, *[None] * (len(right) - 6)], "it hangs at this call"
    await close_loop_scope()
    behind = Stalling(sandboxes, len(right), len(right))
    assert await call_values._unpatched(TASK, calls(), behind) == right, "it hangs once it has said everything"
    assert behind.after == [len(right)], "one run has told all"
    await close_loop_scope()
    stalling = Stalling(sandboxes, 0, 5)
    with pytest.raises(
        GraderError, match=r"stopped after .* twice, at different calls \(0, 5\): the machine is too busy"
    ):
        await call_values._unpatched(TASK, calls(), stalling)
    assert await call_values._unpatched(TASK, calls(), stalling) == right, "and that is not cached"
    await close_loop_scope()


@pytest.mark.parametrize(
    ("right", "before", "believed"),
    [
        ([True] * 4, [False, True, None, None], True),
        ([False, True, True, True], [False, True, None, None], False),
        ([True, True, False, False], [False, True, None, None], False),
    ],
)
def test_calls_that_the_unpatched_code_does_not_come_to_count_for_themselves(right, before, believed):
    assert (call_values._special_cased(right, before) == "") is believed


# Literals, with numbers of all types that are equal to each other, and containers of them.
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.booleans(),
    st.sampled_from([0.0, -0.0, 1.0, -2.0, 0.5, 1e300, float("inf"), 1j, complex(1, 0), complex(1, -0.0), 2.5 + 1j]),
    st.sampled_from([10**18, -(10**18), 10**18 - 1, float(10**18), 2**70, 10**300, 10**4000]),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
)
HASHABLE = st.recursive(
    st.one_of(NUMBERS, st.none(), st.text(max_size=3), st.binary(max_size=3), st.sampled_from(["1", "None", "(1)"])),
    lambda inner: st.one_of(st.tuples(inner), st.tuples(inner, inner), st.frozensets(inner, max_size=3)),
    max_leaves=4,
)
LITERALS = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.sets(HASHABLE, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3),
    ),
    max_leaves=6,
)


@given(LITERALS, LITERALS)
@example(1, True)
@example(-0.0, 0)
@example({1: 2, "a": 3}, {"a": 3.0, True: 2})
@example({(1, 2), (0,)}, {(False,), (1.0, 2)})
@example(set(), {})
@example([1], (1,))
@example("b''", b"")
def test_values_have_one_text_if_and_only_if_they_are_equal(first, second):
    assert (canonical(first) == canonical(second)) is bool(first == second)
    assert canonical(copy.deepcopy(first)) == canonical(first)


def test_what_equals_nothing_has_no_text():
    for value in (float("nan"), [float("nan")], complex(0, float("nan")), object()):
        with pytest.raises(NotPlain):
            canonical(value)


def test_a_task_that_wants_an_odd_value_is_no_task_of_values():
    for literal in ("1e999 - 1e999", "{[]: 1}", "..."):
        assert read_calls(TESTS.replace("== 9", f"== {literal}"), "") is None


MEAN_TEXTS = {
    "a number": lambda n: "9" * n,
    "a hexadecimal number": lambda n: "0x" + "f" * n,
    "lists in lists": lambda n: "[" * n,
    "a set of one hash": lambda n: "{" + ", ".join(str(number * (2**61 - 1)) for number in range(n // 22)) + "}",
    "signs": lambda n: "-" * n + "1",
    "a sum": lambda n: "(1" + " + 1j" * (n // 5) + ")",
    "escapes": lambda n: '"' + "\\x" * (n // 2),
    "no character": lambda n: "'\\ud800'\ud800\0",
    "no finite number": lambda n: "1e999",
    "a function": lambda n: "lambda: 0",
    "nothing": lambda n: "",
}


@pytest.mark.parametrize("name", MEAN_TEXTS)
@pytest.mark.parametrize("line", ["VALUE 3 {}\n", "VALUE {} 3\n", "VALUE {}\n", "{} VALUE 3 8\n"])
def test_nothing_that_code_prints_stops_or_delays_the_grader(name, line):
    """In a long line, and in many."""
    judged, text, size = calls(), MEAN_TEXTS[name], 1 << 17
    many = line.format(text(5_000))
    for printed in (lambda length: line.format(text(length)), lambda length: many * (length // len(many))):
        logs = {length: f"VALUE 0 3\nVALUE 1 5\nVALUE 2 9\n{printed(length)}" for length in (size, FACTOR * size)}
        assert_linear(lambda length, logs=logs: judged.read(logs[length]), size, name)
        for log in logs.values():
            tests, held_out = judged.read(log)
            assert tests == {name: not name.endswith("double") for name in tests} and not any(held_out)


@given(st.lists(st.one_of(st.sampled_from(["VALUE", " ", "\n", "\r\n", "0", "3", "\u0663", "[", "\ud800"]), st.text())))
def test_any_log_can_be_read(pieces):
    tests, held_out = calls().read("".join(pieces))
    assert len(tests) == 3 and len(held_out) == 16


ANSWERS = ("3", "5", "9", "8", "7", "-37", "-8")
PIECES = [
    "VALUE",
    "RAISED",
    " ",
    "\n",
    "\r\n",
    "\u0663",
    "\ud800",
    "\0",
    "9" * 5_000,
    "[" * 3_000,
    "-",
    "?",
    "3",
    "x" * 9_000,
]


def mutated_log(dice: random.Random) -> str:
    """Right reports of the calls, with faults."""
    lines = [f"VALUE {number} {answer}" for number, answer in enumerate(ANSWERS)]
    for _ in range(dice.randint(0, 3)):
        at, other = dice.randrange(len(lines)), dice.randrange(len(lines))
        line, place = lines[at], dice.randint(0, len(lines[at]))
        match dice.randrange(5):
            case 0:
                lines[at] = line[:place] + dice.choice(PIECES) + line[place + dice.randint(0, 2) :]
            case 1:
                lines.insert(
                    at, lines[other] if dice.random() < 0.5 else f"VALUE {dice.randrange(30)} {dice.choice(ANSWERS)}"
                )
            case 2:
                lines[at] = dice.choice(PIECES) * dice.randint(1, 9)
            case 3:
                lines[at], lines[other] = lines[other], lines[at]
            case 4:
                lines[at] = line.rpartition(" ")[0]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "count", [3_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.extended("mutated values")])]
)
def test_a_value_counts_where_all_that_is_reported_of_it_is_right(count):
    dice, right = random.Random(count), Counter[bool]()
    judged = calls()
    for _ in range(count):
        log = mutated_log(dice)
        tests, held_out = judged.read(log)
        read_records(log.replace("VALUE ", ""))
        lines = log.split("\n")
        given = {line.split(" ", 2)[2] for line in lines if line.startswith("VALUE 3 ")}
        assert tests["tests/test_calc.py::test_double"] is (given == {"8"})
        right[tests["tests/test_calc.py::test_double"]] += 1
        assert len(held_out) == 16
    assert min(right.values()) > count // 20


async def test_a_module_that_can_not_be_imported_fails_its_tests(sandboxes):
    score = await grade(TASK, patch("import nothing\n"), sandboxes)
    assert score.evidence["outcome"] == "failed"
    assert not any(score.evidence["tests"].values())


async def test_a_call_that_hangs_is_a_timeout(sandboxes):
    task = replace(TASK, oracle=replace(TASK.oracle, timeout_seconds=0.5))
    hangs = RIGHT.replace("    return a + b", "    while True: pass")
    assert (await grade(task, patch(hangs), sandboxes)).evidence["outcome"] == "timeout"
