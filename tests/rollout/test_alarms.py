"""Alarms are raised by the mean of the last rollouts, once while they hold, each by a limit of its own."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from slime_swe.recipes import base
from slime_swe.recipes.registry import load_recipe
from slime_swe.rollout.alarms import LIMITS, SHARES, STALL_SECONDS, WINDOW, Alarms
from slime_swe.rollout.metrics import GAP_BEFORE

OFF = {
    "broken": 1.0,
    "truncated": 1.0,
    "uninformative": 1.0,
    "lost_prefixes": 1.0,
    "stall": 0.0,
    "gap": 9.0,
    "drift": 0.0,
}
PARTS = {  # a part of each share, in a line of ten episodes or groups
    "broken": lambda share: {"episodes": 10.0, "infrastructure_failures/sandbox_error": 10 * share},
    "truncated": lambda share: {"stop/submitted": 1 - share, "stop/context_full": share},
    "uninformative": lambda share: {"groups": 10.0, "groups/informative": 10 - 10 * share,
                                    "groups/all_unsolved": 10 * share},
    "lost_prefixes": lambda share: {"serving": {"prefix_lost_rate": share}},
}  # fmt: skip


def lines(figures) -> list[dict]:
    return [{"rollout_id": number, **line} for number, line in enumerate(figures)]


def test_the_recipe_has_a_limit_for_each():
    assert (
        asdict(base.Alarms()).keys() == {*SHARES, "stall", "gap", "drift"} == OFF.keys()
        and PARTS.keys() == SHARES.keys()
    )
    for field in LIMITS.values():
        section, _, name = field.partition(".")
        assert section == "rollout" and name in base.Rollout.__dataclass_fields__


@pytest.mark.parametrize(("changes", "limit"), [({}, 0.9), ({"samples_per_task": 1}, 1.0)])
def test_groups_that_can_not_differ_raise_none(changes, limit):
    recipe = load_recipe("tiny_cpu")
    recipe = replace(recipe, rollout=replace(recipe.rollout, **changes))
    assert recipe.alarm_limits == {**asdict(recipe.alarms), "uninformative": limit}
    stage = replace(recipe, data=replace(recipe.data, source=base.RECORDED_SOURCE))
    assert stage.alarm_limits["uninformative"] == 1.0


@pytest.mark.parametrize("name", SHARES)
def test_a_share_is_the_mean_of_the_last_rollouts_and_raised_once_while_it_is_above(name):
    shares = [0.0] * WINDOW + [1.0] * 4 + [0.0] * WINDOW + [1.0] * 3
    alarms = Alarms({**OFF, name: 0.5})
    said = [alarms.add(line) for line in lines(map(PARTS[name], shares))]
    raised = [number for number, sentences in enumerate(said, 1) if sentences]
    assert raised == [8, 17], "at three of the last five"
    assert [(one.name, one.first, one.last, one.worst) for one in alarms.raised] == [
        (name, 8, 11, pytest.approx(0.8)),
        (name, 17, 17, pytest.approx(0.6)),
    ]
    assert said[7] == [f"alarm, rollout 8: {alarms.raised[0].said}"]
    assert "60%" in said[7][0] and said[7][0].endswith(f"(alarms.{name}=0.5)")


@pytest.mark.parametrize("name", SHARES)
def test_a_limit_of_one_raises_none_and_so_does_a_figure_that_nobody_recorded(name):
    assert not Alarms.of(OFF, lines([PARTS[name](1.0)] * WINDOW)).raised
    assert not Alarms.of({**OFF, name: 0.0}, lines([{}] * WINDOW)).raised
    assert not Alarms.of({}, lines([PARTS[name](1.0)] * WINDOW)).raised, "where SLiME runs without a recipe of ours"


def test_the_parts_of_a_share_are_named_with_what_can_be_changed():
    line = {"stop/submitted": 0.5, "stop/max_turns": 0.3, "stop/context_full": 0.16, "stop/time_budget": 0.04}
    (raised,) = Alarms.of({**OFF, "truncated": 0.25}, lines([line])).raised
    assert "50% (max_turns 30%, context_full 16%, time_budget 4%) of the episodes" in raised.said
    assert "see rollout.max_turns, rollout.max_context (" in raised.said


@pytest.mark.parametrize(
    ("last", "raised"), [(STALL_SECONDS, [4]), (STALL_SECONDS - 1, []), (2 * STALL_SECONDS, [4])], ids=str
)
def test_a_rollout_that_takes_many_times_the_median_and_half_an_hour_is_a_stall(last, raised):
    times = [{"seconds": {"total": seconds}} for seconds in (60.0, 200.0, 100.0, last)]
    alarms = Alarms.of({**OFF, "stall": 6.0}, lines(times))
    assert [one.first for one in alarms.raised] == raised
    assert not Alarms.of(OFF, lines(times)).raised
    if raised:
        assert f"took {last / 100:.0f} times as long" in alarms.raised[0].said


def test_a_line_that_lacks_what_those_before_it_have_is_no_error():
    """As in a damaged run, of which a report is made."""
    whole, bare = {"serving": {"prefix_lost_rate": 0.9, "admitted_episodes": 7.0}}, {"seconds": {"total": 7200.0}}
    alarms = Alarms.of({**OFF, "lost_prefixes": 0.5, "stall": 6.0}, lines([whole, bare, bare]))
    assert [(one.name, one.first, one.last) for one in alarms.raised] == [("lost_prefixes", 1, 3)]


def test_a_slow_rollout_among_slow_ones_is_none():
    times = [{"seconds": {"total": 7200.0}}, {"seconds": {"total": 14400.0}}]
    assert not Alarms.of({**OFF, "stall": 6.0}, lines(times)).raised


def test_a_rollout_that_goes_on_is_overdue_once_before_it_has_ended():
    """Whether it ends or hangs: then no line comes."""
    alarms = Alarms({**OFF, "stall": 6.0})
    assert not alarms.overdue(1e6), "no rollout to compare with"
    for number in range(3):
        alarms.add({"rollout_id": number, "seconds": {"total": STALL_SECONDS / 10}})
    assert not alarms.overdue(0.9 * STALL_SECONDS), "9 times, and less than half an hour"
    said = "nothing was recorded for 10 times as long as the median of the rollouts before"
    assert alarms.overdue(STALL_SECONDS) == f"alarm, rollout 4: {said} (alarms.stall=6)"
    assert not alarms.overdue(2 * STALL_SECONDS) and not alarms.raised, "it is raised when it ends"
    alarms.add({"rollout_id": 3, "seconds": {"total": STALL_SECONDS}})
    assert [one.name for one in alarms.raised] == ["stall"]
    assert alarms.overdue(STALL_SECONDS).startswith("alarm, rollout 5: ")
    off = Alarms.of({**OFF, "stall": 0.0}, lines([{"seconds": {"total": 1.0}}]))
    assert not off.overdue(1e6)


@pytest.mark.parametrize(
    ("gaps", "raised"),
    [
        ([0.011, 0.012, 0.030, 0.032], []),
        ([0.011, 0.012, 0.036, 0.050], [("drift", 3, 4)]),
        ([0.011, 0.036, 0.012, 0.036], [("drift", 2, 2), ("drift", 4, 4)]),
        ([0.2, 0.2], [("gap", 1, 1)]),
        ([1e-7, 9e-4, 2e-3], [("drift", 3, 3)]),
        ([0.0, 9e-4, 2e-3], [("drift", 3, 3)]),
        ([None, 0.011, None, 0.036], [("drift", 4, 4)]),
    ],
    ids=str,
)
def test_trainer_and_engines_that_drift_apart_raise_an_alarm(gaps, raised):
    limits = {**OFF, "gap": 0.1, "drift": 3.0}
    known = lines({} if gap is None else {GAP_BEFORE: gap} for gap in gaps)
    alarms = Alarms(limits)
    said = [sentence for line in known for sentence in alarms.add(line)]
    assert [(one.name, one.first, one.last) for one in alarms.raised] == raised and len(said) == len(raised)
    for (_, first, _), sentence in zip(raised, said, strict=True):
        assert f"{gaps[first - 1]:.2g} nats" in sentence and "slime-swe rehearse" in sentence
    assert not Alarms.of(OFF, known).raised
