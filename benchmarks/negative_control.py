"""What the negative control costs where it costs most: tests that print much, and a deciding test without a value.

A project of `tests` tests, each with a table of twenty long lines and a `print` of it, is graded by pytest in a local
sandbox with its right patch, without and with the control. The one FAIL_TO_PASS test compares with nothing that could
be withheld, so further runs bound how often luck is rewarded (`rewards.negative_control`). `controlled_ratio` is what a
grading takes with the control, as a multiple of one without. The controls of the task itself, which all its patches
share, are made before.

    python -m benchmarks.negative_control [--tests N] [--rounds N] [--json] [--check] [--save]

Needs bubblewrap, and pytest in the sandbox's `python3`.
"""

from __future__ import annotations

import sys

from benchmarks.command import Figures, Laps, run
from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.patches import make_patch
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.sandbox import SandboxPool

LINES = 20  # of each test's table
BROKEN = "def table(rows):\n    return '\\n'.join(rows)\n\n\ndef first(rows):\n    return rows[1]\n"
FIXED = BROKEN.replace("rows[1]", "rows[0]")
PATH = "tests/test_table.py"
HEAD = """\
from table import first, table


def check(expected, result):
    assert expected == result


def test_first():
    assert first(["a", "b"]) in ("a", "c")


def test_length():
    assert len(table(["a", "b"])) == 3
"""


async def measure(tests: int, rounds: int) -> Figures:
    """Raises `SandboxError`."""
    task, laps = printing_task(tests), Laps()
    async with SandboxPool("local") as pool:
        for number in range(rounds + 1):
            for control in (False, True):
                settings = GradingSettings(negative_control=control)
                name = "controlled" if control else "plain"
                graded = grade(task, task.oracle.gold_patch, pool, settings)
                score = await (laps.time(name, graded) if number else graded)  # the first warms up
                assert score.solved, score.evidence
    medians = laps.medians()
    return {
        "tests": tests,
        **{f"{name}_ms": took for name, took in medians.items()},
        "controlled_ratio": medians["controlled"] / medians["plain"],
    }


def printing_task(tests: int) -> Task:
    """With so many tests that pass with any patch."""
    names = [f"test_table_{number}" for number in range(tests)]
    text = HEAD + "".join(f"\n\n{_test(name)}" for name in names)
    files = {"table.py": BROKEN, PATH: text}
    oracle = TestsOracle(
        (f"{PATH}::test_first",),
        (f"{PATH}::test_length", *(f"{PATH}::{name}" for name in names)),
        (PATH,),
        f"python3 -B -m pytest -rA -p no:cacheprovider {PATH}",
        make_patch({"table.py": BROKEN}, {"table.py": FIXED}),
    )
    return Task("table", "first gives the second", Workspace(files), oracle)


def _test(name: str) -> str:
    rows = "".join(f"        'row {number} of the table of {name}, a long one',\n" for number in range(LINES))
    return (
        f"def {name}():\n    rows = [\n{rows}    ]\n    expected = '\\n'.join([\n{rows}    ])\n"
        "    result = table(rows)\n    print(result)\n    check(expected, result)\n"
    )


if __name__ == "__main__":
    sys.exit(run(__doc__, "negative_control", measure, limits={"controlled_ratio": 12.0}, tests=150, rounds=3))
