"""Programs on grids, in real sandboxes: ARC's rule, five answers that know no rule, and programs that attack."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import chain

import pytest
import pytest_asyncio

from slime_swe.data_sources.arc.tasks import ANSWER, ArcOracle, Pair, arc_task
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task
from slime_swe.patches import make_patch
from slime_swe.rewards.arc import LONGEST, read_report, try_patch
from slime_swe.rewards.grade import DEFAULTS, GraderError, GradingSettings, grade
from slime_swe.rewards.validation import Status, validate
from slime_swe.rollout.records import Score
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.pool import SandboxPool
from tests.effort import FACTOR, assert_linear

FLIP = "def transform(grid):\n    return [row[::-1] for row in grid]\n"
TRAIN = [Pair(((1, 2, 3), (4, 5, 6)), ((3, 2, 1), (6, 5, 4))), Pair(((7, 0), (8, 1)), ((0, 7), (1, 8)))]
TEST = [Pair(((1, 2), (3, 4)), ((2, 1), (4, 3))), Pair(((5, 0, 0), (0, 6, 7)), ((0, 0, 5), (7, 6, 0)))]
TASK = arc_task("flip", TRAIN, TEST, "own")
FRACTION = GradingSettings("fraction")


@pytest_asyncio.fixture
async def sandboxes() -> AsyncIterator[SandboxPool]:
    async with SandboxPool("local") as pool:
        yield pool


def answer(program: str, path: str = ANSWER) -> str:
    return make_patch({}, {path: program})


async def score_of(program: str, sandboxes: SandboxPool, task: Task = TASK) -> Score:
    return await grade(task, answer(program), sandboxes, FRACTION)


async def test_a_program_that_follows_the_rule_solves_the_task(sandboxes):
    score = await score_of(FLIP, sandboxes)
    assert (score.solved, score.value, score.evidence["outcome"]) == (True, 1.0, "solved")
    assert score.components == {
        "fail_to_pass": 1.0, "pass_to_pass": 1.0, "answered": 1.0, "compiles": 1.0, "dsl": 1.0, "unused_variables": 0.0,
        "train_share": 1.0, "test_right": 2.0, "cells": 1.0,
    }  # fmt: skip


async def test_tasks_prove_themselves(sandboxes):
    assert (await validate(TASK, sandboxes)).status is Status.SOUND
    assert Task.from_dict(TASK.to_dict()) == TASK
    for task in load_tasks("arc:generated")[:3] + load_tasks("arc:heldout")[:3]:
        assert (await validate(task, sandboxes, runs=1)).status is Status.SOUND


async def test_each_test_output_may_be_of_another_attempt(sandboxes):
    halves = """
def transform(grid):
    return [row[::-1] for row in grid] if len(grid[0]) == 2 else grid
def transform2(grid):
    return [row[::-1] for row in grid] if len(grid[0]) == 3 else 1 / 0
"""
    score = await score_of(halves, sandboxes)
    assert score.solved and score.components["train_share"] == 1.0
    alone = await score_of(halves.split("def transform2")[0], sandboxes)
    assert not alone.solved
    assert (alone.components["test_right"], alone.components["train_share"]) == (1.0, 0.5)
    assert 0 < alone.value < 0.5


async def test_a_third_attempt_counts_for_nothing(sandboxes):
    wrong = "def transform(grid):\n    return grid\ntransform2 = transform\n"
    assert not (await score_of(wrong + FLIP.replace("transform", "transform3"), sandboxes)).solved


ORACLE_QUOTING = f"""
TABLE = {{{", ".join(f"{pair.input}: {pair.output}" for pair in TRAIN)}}}
def transform(grid):
    return TABLE.get(tuple(map(tuple, grid)), grid)
def transform2(grid):
    return {TRAIN[1].output}
"""
KNOW_NO_RULE = {
    "constant": "def transform(grid):\n    return [[0, 0], [0, 0]]\n",
    "empty": "",
    "copied": "def transform(grid):\n    return grid\n",
    "overlong": FLIP + "#" * LONGEST,
    "oracle-quoting": ORACLE_QUOTING,
}


@pytest.mark.parametrize("name", KNOW_NO_RULE)
async def test_an_answer_that_knows_no_rule_raises_no_reward(sandboxes, name):
    score = await score_of(KNOW_NO_RULE[name], sandboxes)
    assert (score.solved, score.value) == (False, 0.0)
    if name == "oracle-quoting":
        assert score.components["train_share"] == 1.0


async def test_no_answer_at_all_raises_none_either(sandboxes):
    assert (await grade(TASK, answer(FLIP, "other.py"), sandboxes, FRACTION)).value == 0.0
    score = await grade(TASK, "", sandboxes, FRACTION)
    assert (score.value, score.evidence["outcome"]) == (0.0, "empty_patch")


async def test_a_program_of_the_longest_size_is_run(sandboxes):
    assert (await score_of(FLIP + "#" * (LONGEST - len(FLIP)), sandboxes)).solved


HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
    "infinite loop": "def transform(grid):\n    while True:\n        pass\n",
    "infinite loop that catches": """
def transform(grid):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
""",
    "sleep in a process that it leaves behind": """
import os, time
def transform(grid):
    if os.fork() == 0:
        os.setsid()
        time.sleep(10_000)
    os._exit(0)
""",
    "memory": "def transform(grid):\n    kept = []\n    while True:\n        kept.append(bytearray(1 << 26))\n",
    "sys.exit": "import sys\ndef transform(grid):\n    sys.exit(0)\n",
    "os._exit at import": "import os\nos._exit(0)\ndef transform(grid):\n    return grid\n",
    "deep recursion": "def transform(grid):\n    return transform(grid)\n",
    "deeper recursion": "import sys\nsys.setrecursionlimit(1 << 30)\ndef transform(g):\n    return transform(g)\n",
    "huge grid": "def transform(grid):\n    return [[0] * 10**5 for _ in range(10**3)]\n",
    "huge number": "def transform(grid):\n    return [[1 << 10**6]]\n",
    "huge print": "def transform(grid):\n    while True:\n        print('x' * 10**6)\n",
    "no grid": "def transform(grid):\n    return 'grid'\n",
    "nothing": "def transform(grid):\n    pass\n",
    "ragged": "def transform(grid):\n    return [[1, 2], [3]]\n",
    "empty grid": "def transform(grid):\n    return []\n",
    "floats": "def transform(grid):\n    return [[float(cell) for cell in row[::-1]] for row in grid]\n",
    "nan": "def transform(grid):\n    return [[float('nan')]]\n",
    "equal to everything": """
class Any(int):
    def __eq__(self, other):
        return True
    __hash__ = None
def transform(grid):
    return [[Any(0) for cell in row] for row in grid]
""",
    "list that lies": """
class Rows(list):
    def __len__(self):
        return 2
    def __eq__(self, other):
        return True
def transform(grid):
    return Rows()
""",
    "generator that never ends": """
class Row(list):
    def __len__(self):
        return 1
    def __iter__(self):
        while True:
            yield 1
def transform(grid):
    return [Row([1])]
""",
    "error that raises": """
class Odd(Exception):
    def __str__(self):
        raise Odd()
def transform(grid):
    raise Odd()
""",
    "patched json": """
import json
json.dumps = lambda value: '{"value": [[0]], "error": null}'
def transform(grid):
    return [[0]]
""",
    "patched builtins": """
import builtins
builtins.isinstance = lambda *arguments: True
builtins.len = lambda value: 1
builtins.map = lambda *arguments: arguments
def transform(grid):
    return object()
""",
    "deep value": "def transform(grid):\n    for _ in range(10**5):\n        grid = [grid]\n    return grid\n",
    "syntax error": "def transform(grid:\n",
    "no function": "x = 1\n",
    "no callable": "transform = 5\n",
    "nul": "def transform(grid):\n    return '\0'\n",
    "nested": f"transform = {'(' * 3000}1{')' * 3000}\n",
    "minus": f"transform = {'-' * 15_000}1\n",
    "surrogate in an error": "def transform(grid):\n    raise ValueError('\\ud800' * 1000)\n",
    "signals": "import os, signal\ndef transform(grid):\n    os.kill(os.getppid(), signal.SIGSTOP)\n",
    "kill the runner": "import os\ndef transform(grid):\n    os.kill(os.getppid(), 9)\n",
    "kill everything": "import os\ndef transform(grid):\n    os.kill(-1, 9)\n",
    "fill the disk": "def transform(grid):\n    with open('x', 'wb') as file:\n        file.write(bytes(1 << 30))\n",
    "close everything": "import os\nos.closerange(0, 100)\ndef transform(grid):\n    return grid\n",
    "looks for the outputs": """
import gc, glob, os
def transform(grid):
    for path in glob.glob('/**/*.json', recursive=True)[:200] + glob.glob('/proc/*/environ') + ['inputs.json']:
        try:
            text = open(path).read()
        except (OSError, UnicodeDecodeError):
            continue
        if '[2,1],[4,3]' in text.replace(' ', '') or '"output"' in text:
            return [row[::-1] for row in grid]
    return grid
""",
}
# What a program that could say more than it returns would say: the right answer of its own accord, in many ways.
SAID = """
import os, sys
LINES = "".join(f"\\nGRID {number} {text}\\n" for number in range(8) for text in GUESSES)
def everywhere():
    for process in ("self", str(os.getppid()), "1"):
        for number in range(0, 12):
            try:
                to = os.open(f"/proc/{process}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
                os.write(to, LINES.encode())
            except OSError:
                pass
    for number in range(0, 12):
        try:
            os.write(number, LINES.encode())
        except OSError:
            pass
    print(LINES)
    sys.stderr.write(LINES)
"""
GUESSES = "GUESSES = ['21/43', '005/760', '12/34', '0']\n"
HOSTILE |= {
    "writes its results itself": f"{GUESSES}{SAID}\ndef transform(grid):\n    everywhere()\n    return grid\n",
    "writes its results at import": f"{GUESSES}{SAID}\neverywhere()\ndef transform(grid):\n    os._exit(0)\n",
    "writes over the runner": f"""
{GUESSES}{SAID}
import glob
def transform(grid):
    for path in glob.glob("arc_tool/*.py") + ["inputs.json"]:
        try:
            open(path, "w").write("print('PROGRAM 1 1 0 0')\\nprint('GRID 0 21/43')\\nprint('GRID 2 005/760')\\n")
        except OSError:
            pass
    everywhere()
    return grid
""",
}


SHORT = replace(TASK, oracle=replace(TASK.oracle, timeout_seconds=8.0))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if number % 3 == 0 else [pytest.mark.extended("programs that attack")])
        for number, name in enumerate(HOSTILE)
    ],
)
async def test_a_program_that_attacks_is_not_rewarded(sandboxes, name):
    """And its grading ends, in a score: what a program does is never infrastructure."""
    score = await score_of(HOSTILE[name], sandboxes, SHORT)
    assert (score.solved, score.value) == (False, 0.0), score.evidence
    assert score.evidence["outcome"] in ("failed", "timeout")


REPORT = (
    "PROGRAM 1 2 0 3\n"
    + "".join(f"GRID {n} {'/'.join(['0123456789' * 3] * 30)}\n" for n in range(20))
    + ('ERROR 20 {"type": "ValueError", "message": "no", "line": 3}\nGRID 21 12/3\nGRID 22 1\nGRID 22 2\nGRID 22 1\n')
)


def test_a_report_is_read_and_what_is_said_twice_is_not():
    report = read_report(REPORT)
    assert (report.compiles, report.attempts, report.unused, report.outside) == (True, 2, 0, 3)
    assert report.grids is not None and sorted(report.grids) == [*range(20)]
    assert report.given(9, 3)[:2] == [[report.grids[18], report.grids[19]], []]
    assert read_report("\n" + REPORT).attempts == 0  # what does not come first is not the runner's


REPORT_PIECES = [
    "GRID 0 1\n", "GRID ", "/", "9" * 400, "GRID 7 " + "1/" * 3000, "\n", "\0", "\ud800", "GRID -1 1\n",
    "PROGRAM 1 2 0 0\n", "\u0663", "GRID 0 " * 2000, "\r", "GRID 1 1/1/1\n" * 3000, "0/" * 9999,
]  # fmt: skip


def mutated_report(dice: random.Random) -> str:
    text = REPORT
    for _ in range(dice.randint(1, 4)):
        at, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
        piece = dice.choice(REPORT_PIECES)
        text = dice.choice([text[:at] + text[end:], text[:at] + piece + text[at:], text[:at] + piece + text[end:]])
    return text


@pytest.mark.parametrize(
    "count", [1_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.extended("mutated reports of grids")])]
)
@pytest.mark.timeout(7200)
def test_a_mutated_report_is_read(count):
    """To grids that are whole: rows of one length, cells of one digit."""
    dice = random.Random(count)
    for _ in range(count):
        report = read_report(mutated_report(dice))
        for grid in (report.grids or {}).values():
            assert len({len(row) for row in grid}) == 1 and set(chain(*grid)) <= {*range(10)} and len(grid) <= 30


@pytest.mark.parametrize("piece", REPORT_PIECES, ids=lambda piece: repr(piece[:12]))
def test_a_report_is_read_in_time_that_grows_with_it(piece):
    """Of pieces on end, and on lines of their own."""
    for part in (piece, f"{piece}\n", f"GRID 0 {piece}"):
        reports = {size: REPORT + part * (size // len(part)) for size in (1 << 17, FACTOR << 17)}
        assert_linear(lambda size, reports=reports: read_report(reports[size]), 1 << 17, part[:99])


async def test_hidden_outputs_enter_no_sandbox(sandboxes):
    """Nor do the training outputs: all that a program finds is what runs it, itself and the inputs."""
    opened: list[str] = []

    class Watched:
        def open(self, files, *limits):
            opened.extend(f"{path}\n{content}" for path, content in files.items() if not path.endswith(".py"))
            assert set(files) == {ANSWER, "inputs.json"} | {path for path in files if path.startswith("arc_tool/")}
            return sandboxes.open(files, *limits)

    assert (await grade(TASK, answer(FLIP), Watched())).solved
    (inputs,) = opened
    given = str([[list(row) for row in pair.input] for pair in TASK.oracle.test])[1:-1]
    assert given in inputs
    assert all(
        str([list(row) for row in pair.output]) not in inputs for pair in (*TASK.oracle.test, *TASK.oracle.train)
    )


async def test_a_sandbox_that_fails_is_the_grader_s_failure():
    class Broken:
        def open(self, files, *limits):
            raise SandboxError("no sandbox")

    with pytest.raises(GraderError, match="the grader's sandbox failed: no sandbox"):
        await try_patch(TASK, answer(FLIP), Broken(), DEFAULTS)


async def test_what_a_program_is_made_of_is_a_part_of_its_score(sandboxes):
    odd = "import os\ndef transform(grid):\n    kept = os.sep\n    return [row[::-1] for row in grid]\n"
    score = await score_of(odd, sandboxes)
    assert score.solved
    assert {name: score.components[name] for name in ("answered", "compiles", "dsl", "unused_variables")} == {
        "answered": 1.0, "compiles": 1.0, "dsl": 0.0, "unused_variables": 1.0,
    }  # fmt: skip
    assert isinstance(TASK.oracle, ArcOracle)
    language = replace(TASK, oracle=replace(TASK.oracle, functions=("reversed",)))
    for call, allowed in (("list(row[::-1])", 0.0), ("[*reversed(row)]", 1.0)):
        program = f"def transform(grid):\n    return [{call} for row in grid]\n"
        score = await score_of(program, sandboxes, language)
        assert (score.solved, score.components["dsl"]) == (True, allowed)
    broken = await score_of("def transform(grid:\n", sandboxes)
    assert [broken.components[name] for name in ("answered", "compiles", "dsl")] == [1.0, 0.0, 0.0]
    assert "SyntaxError" in broken.evidence["log"]
    missing = await grade(TASK, answer(FLIP, "other.py"), sandboxes)
    assert missing.components["answered"] == 0.0


async def test_what_a_program_raises_is_data_of_its_score(sandboxes):
    score = await score_of("def transform(grid):\n    return grid[7]\n", sandboxes)
    assert 'ERROR 0 {"type": "IndexError", "message": "list index out of range", "line": 2}' in score.evidence["log"]
