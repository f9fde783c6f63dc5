"""The agent's command, in a real sandbox: what it says of a program, of a wrong grid, and of each line that runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio

from slime_swe.data_sources.arc.tasks import ANSWER, COMMAND, Pair, arc_task
from slime_swe.sandbox.base import ExecResult
from slime_swe.sandbox.pool import SandboxPool

PAIRS = [Pair(((1, 2), (3, 4)), ((2, 1), (4, 3))), Pair(((5, 6, 0),), ((0, 6, 5),))]
HIDDEN = [Pair(((7, 8),), ((8, 7),))]
FLIP = "def transform(grid):\n    return [row[::-1] for row in grid]\n"
Run = Callable[..., Awaitable[ExecResult]]


@pytest_asyncio.fixture
async def run() -> AsyncIterator[Run]:
    """`await run(program, words)` in a fresh workspace of the task."""
    async with SandboxPool("local") as pool:

        async def start(program: str | None, words: str = "", form: str = "digits") -> ExecResult:
            files = dict(arc_task("flip", PAIRS, HIDDEN, "own", form).workspace.files)
            if program is not None:
                files[ANSWER] = program
            async with pool.open(files) as sandbox:
                return await sandbox.exec(f"{COMMAND} {words}")

        yield start


async def test_a_right_program(run):
    result = await run(FLIP)
    assert result.output == "transform, pair 1: right\ntransform, pair 2: right\n2 of 2 pairs right\n"
    assert result.exit_code == 0


async def test_a_wrong_grid_is_shown_cell_by_cell_and_whole_and_only_the_first(run):
    result = await run("def transform(grid):\n    return grid\n")
    assert (
        result.output
        == """\
transform, pair 1: wrong, 4 of 4 cells differ
     [0][0] is 1, expected 2
     [0][1] is 2, expected 1
     [1][0] is 3, expected 4
     [1][1] is 4, expected 3
     expected:
       21
       43
     got:
       12
       34
transform, pair 2: wrong, 2 of 3 cells differ
0 of 2 pairs right
"""
    )
    assert result.exit_code == 1


async def test_grids_have_the_form_of_the_statement(run):
    result = await run("def transform(grid):\n    return [[9]]\n", form="letters")
    assert (
        "wrong, 1 x 1 in place of 2 x 2 cells\n     expected:\n       CB\n       ED\n     got:\n       J\n"
        in result.output
    )
    assert "[[2,1],[4,3]]" in (await run("def transform(grid):\n    return [[9]]\n", form="json")).output


async def test_two_attempts_count_together(run):
    halves = (
        "def transform(grid):\n    return [row[::-1] for row in grid if len(row) == 2]\n"
        "def transform2(grid):\n    return [row[::-1] for row in grid if len(row) == 3]\n"
    )
    result = await run(halves)
    assert "2 of 2 pairs right" in result.output
    assert "transform, pair 2: ValueError: a grid is a list of 1 to 30 rows, not a list of 0" in result.output


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (None, "solution.py can't be read: "),
        ("def transform(grid:\n", "solution.py: SyntaxError: '(' was never closed"),
        ("x = 1\n", "solution.py defines no function transform(grid)\n0 of 2"),
        (
            "def transform(grid):\n    x = 1\n    return grid[9]\n",
            "pair 1: IndexError: list index out of range (line 3)",
        ),
        ("def transform(grid):\n    x = 1\n    return grid\n", "never read: x\n"),
        ("import os\ndef transform(grid):\n    return open('a')\n", "not allowed: import os, open\n"),
        ("def transform(grid):\n    print('row', grid[0])\n", "printed:\n       row [1, 2]\n"),
        ("def transform(grid):\n    raise SystemExit(3)\n", "pair 1: SystemExit: 3 (line 2)\n"),
        ("import os\ndef transform(grid):\n    os._exit(3)\n", "Exit: the process ended with code 3 and gave nothing"),
        ("def transform(grid):\n    return 'x'\n", "ValueError: a grid is a list of 1 to 30 rows, not 'x'\n"),
        ("def transform(grid):\n    return [[1], [2, 3]]\n", "as many as the first has, not a list of 2\n"),
        ("def transform(grid):\n    return [[10]]\n", "a cell is a whole number from 0 to 9, not 10\n"),
    ],
)
async def test_what_is_wrong_is_said(run, program, said):
    result = await run(program)
    assert said in result.output
    assert result.exit_code != 0


TRACED = """\
def transform(grid):
    out = list(map(list, grid))
    for row in out:
        row.reverse()
    return out
"""


async def test_a_trace_shows_lines_and_what_they_change(run):
    result = await run(TRACED, "trace 1")
    assert (
        result.output
        == """\
     grid =
       12
       34
   2 out = list(map(list, grid))
     out =
       12
       34
   3 for row in out:
     row = [1, 2]
   4 row.reverse()
     out[0][0]: 1 -> 2
     out[0][1]: 2 -> 1
     row = [2, 1]
   3 for row in out:
     row = [3, 4]
   4 row.reverse()
     out[1][0]: 3 -> 4
     out[1][1]: 4 -> 3
     row = [4, 3]
   3 for row in out:
   5 return out
     transform gives
       21
       43
"""
    )


async def test_a_trace_of_what_goes_wrong_ends_with_it(run):
    result = await run("def transform(grid):\n    height = len(grid)\n    return grid[height]\n", "trace 2")
    assert "     height = 1\n" in result.output
    assert result.output.endswith("IndexError: list index out of range (line 3)\n")


ENDLESS = """\
def transform(grid):
    n = 0
    while True:
        try:
            n += 1
        except Exception:
            pass
"""


async def test_a_trace_has_an_end(run):
    result = await run(ENDLESS, "trace 1")
    assert result.output.endswith("(and more)\n")
    assert 390 < len(result.output.splitlines()) <= 400


@pytest.mark.parametrize("words", ["trace", "trace 0", "trace 3", "trace x", "again"])
async def test_wrong_words_show_the_usage(run, words):
    result = await run(FLIP, words)
    assert "python3 -m arc_tool trace N [FUNCTION]" in result.output and "N is 1 to 2." in result.output
    assert result.exit_code == 2


async def test_the_hidden_output_is_nowhere_in_the_workspace():
    task = arc_task("flip", PAIRS, HIDDEN, "own")
    text = task.statement + "".join(task.workspace.files.values())
    assert "78" in text and "[7,8]" in text.replace("[[7,8]]", "[7,8]")
    assert "87" not in task.statement and "[8,7]" not in text and "8, 7" not in text


async def test_a_trace_leaves_comprehensions_out_and_other_files(run):
    result = await run(
        "import textwrap\ndef transform(grid):\n    return [textwrap.fill(c) for c in 'ab']\n", "trace 1"
    )
    assert "listcomp" not in result.output
    assert result.output.endswith("     transform gives ['a', 'b']\n")
