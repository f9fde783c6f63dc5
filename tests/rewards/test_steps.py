"""How far the calls of a step agree with those that were made, and what earns nothing."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from slime_swe.data_sources.steps import ANSWER, Call, StepOracle, read_calls, written
from slime_swe.data_sources.task import Task, Workspace
from slime_swe.patches import make_patch
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rewards.redteam.cases import TARGETS, attacks
from slime_swe.rewards.steps import agreement
from tests.effort import assert_linear

EDIT = {"path": "calc.py", "old_str": "return a - b", "new_str": "return a + b"}
MADE = [Call("str_replace", EDIT)]
FRACTION = GradingSettings("fraction", least_spread=0.1)


def edit(**changes) -> list[Call]:
    return [Call("str_replace", {**EDIT, **changes})]


async def graded(answer: str | None, made=MADE):
    oracle = StepOracle(calls=written(made), gold_patch=make_patch({}, {ANSWER: written(made)}))
    task = Task("a-step1", "next", Workspace(), oracle)
    return await grade(task, "" if answer is None else make_patch({}, {ANSWER: answer}), None, FRACTION)


@pytest.mark.parametrize(
    ("said", "worth"),
    [
        (edit(), 1.0),
        (edit(new_str=" return  a + b\n"), 1.0),
        (edit(new_str="return a + c"), pytest.approx((1 + 1 + 0.99 * 0.5) / 3)),
        (edit(new_str="a b c d"), 0.0),
        (edit(path="b.py"), 0.0),
        (edit(old_str=""), 0.0),
        ([Call("str_replace", EDIT | {"more": 1})], 0.0),
        ([Call("bash", {"command": "ls"})], 0.0),
        ([*edit(), *edit()], 0.0),
        ([], 0.0),
    ],
)
def test_calls_agree_where_they_are_interchangeable(said, worth):
    assert agreement(said, MADE) == worth


def test_values_that_are_no_text_of_several_words_agree_or_do_not():
    made = [Call("view", {"path": "a b.py", "line": 1, "all": True})]
    assert agreement([Call("view", {"path": "a b.py", "line": True, "all": True})], made) == 0.0
    assert agreement([Call("view", {"path": "a b.py", "line": 1, "all": True})], made) == 1.0
    assert agreement([Call("submit", {})], [Call("submit", {})]) == 1.0
    two = [Call("submit", {}), *MADE]
    assert agreement([Call("submit", {}), *edit(path="b.py")], two) == 0.5


async def test_a_step_is_graded_by_a_degree_and_solved_by_the_same_calls_alone():
    right, near, wrong, none = [
        await graded(a) for a in (written(MADE), written(edit(new_str="return a + c")), "[]", None)
    ]
    assert [score.solved for score in (right, near, wrong, none)] == [True, False, False, False]
    assert right.value == 1.0 and 0.8 < near.value < 0.85 and (wrong.value, none.value) == (0.0, 0.0)
    assert {score.spread for score in (right, near, wrong, none)} == {0.1}
    assert near.components["agreement"] == near.value and "made: " in near.evidence["log"]


async def test_no_attack_of_the_integrity_gate_raises_the_reward_of_a_degree(tmp_path):
    """Those of the gate that write the file by `echo` alone."""
    task, played = TARGETS["step"].task(), 0
    for case in attacks():
        script = case.script.strip()
        if case.only == ("step",) and script.startswith("echo '[") and script.endswith("' > step.json"):
            answer = script.removeprefix("echo '").removesuffix("' > step.json")
            score = await grade(task, make_patch({}, {ANSWER: answer}), None, FRACTION)
            assert score.value == 0.0, case.name
            played += 1
    assert played >= 6
    assert (await grade(task, make_patch({}, {ANSWER: task.oracle.calls}), None, FRACTION)).value == 1.0


@pytest.mark.parametrize("calls", ["", "[]", "{}", '[{"name": 1, "arguments": {}}]', '[{"name": "a"}]', "[" * 100_000])
def test_an_oracle_without_calls_is_refused(calls):
    task = Task("a", "b", Workspace(), StepOracle(calls=calls, gold_patch="x")).to_dict()
    with pytest.raises(ValueError, match="calls must be"):
        Task.from_dict(task)
    assert Task.from_dict({**task, "oracle": {**task["oracle"], "calls": written(MADE)}}).oracle.calls == written(MADE)


PIECES = ["", '"', "{", "[", "\\", "\\ud800", "\x00", "1e999", "漢", "[" * 3_000, "9" * 5_000, '"a": 1, ' * 2_000]


def mutated_answer(dice: random.Random) -> str:
    answer = list(written(MADE))
    for _ in range(dice.randint(1, 6)):
        at = dice.randrange(len(answer))
        answer[at : at + dice.randint(0, 3)] = dice.choice(PIECES)
    return "".join(answer)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=pytest.mark.extended("hostile answers"))])
async def test_hostile_answers_are_read_or_worth_nothing(count):
    dice, read = random.Random(0), 0
    for _ in range(count):
        answer = mutated_answer(dice)
        try:
            read_calls(answer)
            read += 1
        except ValueError as error:
            assert str(error)
        assert 0.0 <= (await graded(answer)).value <= 1.0
    assert count / 30 < read < count, "both kinds are tried"


async def test_an_answer_of_many_digits_is_worth_nothing():
    assert (await graded("[" + "9" * 300_000 + "]")).value == 0.0


def test_long_texts_are_compared_in_time_that_grows_with_them():
    def compare(size: int) -> float:
        return agreement(edit(new_str="a b ) " * size), edit(new_str="a c ( " * size))

    assert_linear(compare, 4_000)


def test_the_gold_patch_is_the_step_s_own_calls():
    oracle = replace(StepOracle(), calls=written(MADE))
    assert json.loads(oracle.calls) == [{"name": "str_replace", "arguments": EDIT}]
