"""A change that is to break a test: what is rewarded, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slime_swe.data_sources.factory.writing import WrittenOracle, written_candidates
from slime_swe.data_sources.task import Task, Workspace
from slime_swe.patches import make_patch
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.sandbox import SandboxPool
from tests.data_sources.factory import shop

TESTS = tuple(
    f"tests/test_core.py::{name}"
    for name in ("test_total", "test_total_with_a_discount", "test_a_discount_is_never_more", "test_basket")
)
COMMAND = "python3 -m pytest -rA -p no:cacheprovider tests/test_core.py"


def changed(old: str, new: str, path: str = "shop/core.py") -> str:
    before = shop.files()[path]
    assert old in before
    return make_patch({path: before}, {path: before.replace(old, new)})


GOLD = changed("        discount = result\n", "        discount = 0\n")
TASK = Task(
    "write-fault-shop-1.1-shop/core.py",
    "",
    Workspace(shop.files()),
    WrittenOracle(protected=("tests/test_core.py",), command=COMMAND, gold_patch=GOLD, tests=TESTS),
)
EMPTY_FEATURE = changed("class Basket:", "def most(prices):\n    return max(prices)\n\n\nclass Basket:")


@pytest.fixture
async def pool():
    async with SandboxPool("local", concurrency=1) as opened:
        yield opened


async def score(pool, patch: str, task: Task = TASK):
    return await grade(task, patch, pool, GradingSettings(mode="fraction"))


async def test_a_fault_that_a_test_notices_is_worth_1(pool):
    found = await score(pool, GOLD)
    assert found.solved and found.value == 1
    assert (found.components["tests_failed"], found.components["tests_passed"]) == (0.25, 0.75)


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("", "empty"),
        (EMPTY_FEATURE, "a constant answer that breaks nothing"),
        (changed('"""A shop."""', f'"""{TESTS[0]} FAILED {TESTS[0]}"""'), "one that quotes the oracle"),
        (changed("def test_total():", "def test_total():\n    assert False", "tests/test_core.py"), "the tests"),
        (changed("def total", "def total_"), "one that breaks the imports of all"),
        (changed("    result = 0\n", "    result = (\n"), "one that does not compile"),
        (changed('"""A shop."""', "\n".join(f"x{n} = 1" for n in range(200))), "an overlong one"),
        (changed('"""A shop."""', "import os\n\nos._exit(0)"), "one that ends the run"),
    ],
    ids=lambda value: value if value.startswith(("a ", "one", "an ", "the", "empty")) else "",
)
async def test_what_breaks_nothing_or_too_much_is_worth_nothing(pool, patch, why):
    found = await score(pool, patch)
    assert not found.solved and found.value == 0, (why, found)


async def test_a_copy_of_the_input_changes_nothing(pool):
    copied = make_patch({}, {"shop/copy.py": shop.CODE})
    assert not (await score(pool, copied)).solved


def test_the_oracle_names_what_it_lacks():
    oracle = replace(TASK.oracle, tests=(), command=" ")
    assert [fault.partition(" ")[0] for fault in oracle.faults()] == ["tests", "command"]


def test_what_an_agent_wrote_is_a_candidate(tmp_path):
    package = shop.package(tmp_path)
    wrong = "write-fault-other-1.1-shop/core.py"
    patches = [(TASK.id, GOLD), (wrong, GOLD), (TASK.id, "no patch"), (TASK.id, changed("def total", "def total(("))]
    patches.append((TASK.id, changed("def test_total():", "def test_other():", "tests/test_core.py")))
    (candidate,) = written_candidates(package, patches)
    assert (candidate.kind, list(candidate.changes)) == ("written_fault", ["shop/core.py"])
    assert candidate.gold_patch() == make_patch(candidate.changes, {"shop/core.py": shop.CODE})


FORGED = {
    "in what calls the tests": """
import _pytest.python

def _call(self):
    assert self.name != "test_total"

_pytest.python.Function.runtest = _call
total = None
""",
    "by what equals everything": """
class _All:
    def __eq__(self, other):
        return True
    def add(self, *given):
        return self
    counts = add

_was = total
total = lambda prices, discount=0: 0 if not discount else _All()
Basket = lambda: _All()
""",
}


@pytest.mark.parametrize("how", FORGED)
async def test_passes_that_did_not_happen_are_not_believed(pool, how):
    """Without a control they are."""
    forging = make_patch({"shop/core.py": shop.CODE}, {"shop/core.py": shop.CODE + FORGED[how]})
    found = await score(pool, forging)
    assert (found.solved, found.value, found.evidence["outcome"]) == (False, 0, "forged"), found
    assert (await grade(TASK, forging, pool, GradingSettings("fraction", negative_control=False))).solved


async def test_the_passes_of_an_honest_fault_have_a_witness(pool):
    assert sum((await score(pool, GOLD)).evidence["witness"].values()) == 3
