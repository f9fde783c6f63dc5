"""Components of a reward: weights, measures, and the outcome that none of them makes up for."""

from __future__ import annotations

import itertools
import random

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.config import resolve
from slime_swe.rewards import slime_plugin
from slime_swe.rewards.compose import (
    ADDED,
    ERRORS,
    GAPS,
    GRAM,
    MEASURES,
    OVERLONG,
    TAKEN,
    WEIGHTED,
    Composition,
    composed,
    errors_in,
    stakes,
    wrong_weights,
)
from slime_swe.rollout.episode import Counters
from slime_swe.rollout.records import EpisodeRecord, Record, Score
from tests.rewards.test_slime_plugin import GOLD, WRONG, episode, graded, make_args

LIMITS = {"max_context": 100, "max_turns": 10}


def settings(mode="plus_minus", last_mile=1.0, windows=0, penalty=1.0, **weights) -> Composition:
    window = {"overlong_tokens": 20 * windows, "overlong_turns": 2 * windows, "overlong_penalty": penalty}
    return Composition(**LIMITS, **window, given=weights, last_mile=last_mile, mode=mode)


def record(tokens: list[int], mask: list[int] | None = None) -> Record:
    return Record(0, 0, 0, "t", "completed", None, tokens=tokens, response_length=len(tokens), loss_mask=mask)


def score(solved=False, value=-1.0, tests=(True, False), f2p=0.5, **evidence) -> Score:
    shown = {"tests": {f"t{n}": passed for n, passed in enumerate(tests)}, **evidence}
    return Score(solved, value, {"fail_to_pass": f2p}, shown)


def measured(name: str, of: Score, segments=None, turns=4, malformed=0, **more) -> float:
    """What a component of weight 0.5 is, over its weight."""
    played = EpisodeRecord("", turns=turns, counters=Counters(malformed_calls=malformed))
    found = composed(of, segments or [record([1] * 5)], played, settings(**{name: 0.5}, **more))
    assert found.value == of.value + found.components[name] and found.solved is of.solved
    return found.components[name] / 0.5


def test_every_component_has_a_measure_and_a_side():
    assert set(MEASURES) == {*ADDED, *TAKEN, *ERRORS} == {*WEIGHTED, *OVERLONG}


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("tests", {"of": score(tests=[True, True, True, False])}, 0.75),
        ("tests", {"of": score(tests=[True, True, True, False]), "last_mile": 2.0}, 0.5625),
        ("tests", {"of": score(tests=[False, True, True], f2p=0.0)}, 0.0),
        ("tests", {"of": score(True, 1.0, tests=[True])}, 1.0),
        ("tests", {"of": score(tests=[])}, 0.0),
        ("diff", {"of": score(likeness=0.25)}, 0.25),
        ("diff", {"of": score(True, 1.0)}, 1.0),
        ("diff", {"of": score()}, 0.0),
        ("format", {"of": score()}, 1.0),
        ("format", {"of": score(), "malformed": 1}, 0.75),
        ("format", {"of": score(), "malformed": 9}, 0.0),
        ("format", {"of": score(), "turns": 0}, 0.0),
        ("syntax", {"of": score(errors=["name", "syntax"])}, -1.0),
        ("type", {"of": score(errors=["name", "syntax"])}, 0.0),
        ("name", {"of": score(True, 1.0, errors=["name"])}, 0.0),
    ],
)
def test_what_a_component_measures(name, given, expected):
    assert measured(name, **given) == pytest.approx(expected)


def test_a_log_names_its_errors_by_kind():
    log = "E  ModuleNotFoundError: x\nTabError\nRAISED 3 UnboundLocalError\nMyTypeErrors\nTypeErrorish"
    assert errors_in(log) == ["import", "name", "syntax"]
    assert errors_in("all passed") == []


def test_repetition_is_what_the_policy_said_before():
    said = [*range(GRAM), *range(GRAM)]
    assert measured("repetition", score(), [record(said)]) == pytest.approx(-1 / (GRAM + 1))
    assert measured("repetition", score(), [record([7] * 200)]) == pytest.approx(-(1 - 1 / (200 - GRAM + 1)))
    assert measured("repetition", score(), [record([*range(200)]), record([*range(200)])]) == -0.5
    assert measured("repetition", score(), [record([7] * 200, [0] * 200)]) == 0.0  # what it was shown
    assert measured("repetition", score(), [record([7] * 79, [1] * 39 + [0] + [1] * 39)]) == 0.0
    assert measured("repetition", score(), [record([])]) == 0.0


def test_no_components_make_an_unsolved_answer_worth_more_than_a_solved_one():
    """Every corner of the measures, for random weights that are accepted."""
    dice = random.Random(0)
    corners = list(itertools.product([0, 1], repeat=5))
    for mode, gap in GAPS.items():
        for _ in range(40):
            shares = [dice.random() for _ in range(6)]
            room = dice.choice([0.5, 0.999]) * gap / sum(shares)
            tests, diff, form, repetition, penalty, _ = (share * room for share in shares)
            chosen = settings(
                mode, dice.choice([1, 3]), 1, penalty / 2, tests=tests, diff=diff, format=form, repetition=repetition,
                syntax=dice.random() * 9,
            )  # fmt: skip
            solved, unsolved = ([*_values(chosen, corners, is_solved)] for is_solved in (True, False))
            assert min(solved) > max(unsolved) - 1e-12, (mode, chosen)
            assert mode == "fraction" or min(solved) > max(unsolved)


def _values(chosen: Composition, corners, solved: bool):
    values = {"plus_minus": (1, -1), "binary": (1, 0), "fraction": (1, 1)}[chosen.mode]
    for likeness, well_formed, repeats, longs, errors in corners:
        of = score(solved, float(values[not solved]), [True, True], 1.0, likeness=likeness, errors=["syntax"] * errors)
        tokens = [7] * 1000 if longs else [*range(50)]
        segment = record(tokens if repeats else [*range(len(tokens))])
        played = EpisodeRecord(
            "", turns=10 if longs else 4, counters=Counters(malformed_calls=0 if well_formed else 99)
        )
        yield composed(of, [segment], played, chosen).value


@pytest.mark.parametrize(
    ("mode", "weights", "said"),
    [
        ("plus_minus", {"tests": 1.5, "format": 0.5}, "comes to 2, and must be less than 2"),
        ("binary", {"repetition": 0.5, "diff": 0.5}, "comes to 1, and must be less than 1"),
        ("fraction", {"overlong_tokens": 1.0}, "comes to 1, and must be less than 1"),
        ("binary", {"repetitions": 0.1}, "Did you mean 'repetition'"),
        ("binary", {"syntax": -0.1}, "syntax=-0.1 must be a finite number"),
        ("binary", {"syntax": float("nan")}, "must be a finite number"),
        ("plus_minus", {"tests": 1.9, "syntax": 5.0}, ""),
    ],
)
def test_weights_that_could_make_up_for_the_outcome_are_refused(mode, weights, said):
    assert said in "; ".join(wrong_weights(mode, weights)) and bool(said) == bool([*wrong_weights(mode, weights)])
    assert stakes({"syntax": 5.0}) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("reward.weights={tests: 2.5}", r"reward.weights=.* is refused: .* comes to 2.5"),
        ("reward.weights={words: 0.1}", "unknown name 'words'"),
        ("reward.weights={tests: much}", "reward.weights"),
        ("reward.weights=0.1", "reward.weights"),
    ],
)
def test_a_recipe_whose_weights_would_is_refused(given, said):
    with pytest.raises(UserError, match=said):
        resolve("tiny_cpu", [given])


def test_a_recipe_whose_two_penalties_make_up_for_the_outcome_is_refused():
    both = ["reward.overlong_tokens=64", "reward.overlong_turns=2"]
    with pytest.raises(UserError, match=r"reward\.overlong_penalty=1 is refused"):
        resolve("tiny_cpu", both)
    assert resolve("tiny_cpu", [*both, "reward.overlong_penalty=0.9"]).reward.overlong_penalty == 0.9
    assert resolve("tiny_cpu", ["reward.weights={repetition: 0.1, tests: 1}"]).reward.weights == {
        "repetition": 0.1,
        "tests": 1,
    }


async def test_components_are_in_the_value_and_logged_and_the_filter_sees_the_outcome():
    args = make_args(swe_reward_weights={"tests": 0.3, "format": 0.1, "diff": 0.2, "type": 0.1})
    good, bad = episode(0), episode(1, WRONG)
    for sample in (good, bad):
        sample.metadata["episode"]["turns"] = 2
    values = await slime_plugin.reward(args, [good, bad])
    parts = bad.metadata["score"]["components"]
    assert values[0] == pytest.approx(1 + 0.3 + 0.1 + 0.2)
    assert 0 < parts["diff"] < 0.2 and parts["format"] == 0.1 and {"tests", "type"} <= {*parts}
    assert values[1] == pytest.approx(-1 + sum(parts[name] for name in args.swe_reward_weights))
    same = [graded(2, True), graded(3, True)]
    for number, sample in enumerate(same):
        sample.reward = 1.0 + number
    assert slime_plugin.keep_group(args, same).reason == "all_solved"
    assert slime_plugin.keep_group(args, [good, bad]).keep
    with pytest.raises(UserError, match="unknown name"):
        await slime_plugin.reward(make_args(swe_reward_weights={"words": 1.0}), episode(4, GOLD))


@pytest.mark.parametrize(("last_mile", "stake", "expected"), [(1.0, 0.0, 0.5), (2.0, 0.0, 0.25), (2.0, 0.4, 0.15)])
def test_in_mode_fraction_the_share_leaves_room_for_what_is_at_stake(last_mile, stake, expected):
    chosen = settings("fraction", last_mile, repetition=stake)
    played = EpisodeRecord("", turns=1)
    assert composed(score(value=0.5), [record([1])], played, chosen).value == pytest.approx(expected)
    assert composed(score(True, 1.0), [record([1])], played, chosen).value == 1.0
    assert composed(score(value=-1.0), [record([1])], played, chosen).value == -1.0
