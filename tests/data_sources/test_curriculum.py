"""Solve rates decide which tasks are handed out, and how often."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_swe.data_sources.slime_plugin import Curriculum, CurriculumSettings, TaskDataSource
from slime_swe.errors import UserError
from tests.data_sources.test_slime_plugin import ids, make_args, mixed, set_of

BOUNDS = {"swe_retire_above": 0.8, "swe_boost_below": 0.05, "swe_rate_episodes": 4}


def source_of(folder, **changes) -> TaskDataSource:
    return TaskDataSource(make_args(folder, **{**BOUNDS, **changes}))


def fresh_source(folder, weighted: bool) -> TaskDataSource:
    return mixed(folder, [3, 1], **BOUNDS) if weighted else source_of(folder)


def outcomes_of(groups, skill: int) -> dict[str, list[bool]]:
    """Two episodes of each group, some tasks being easier than others."""
    return {name: [(sum(map(ord, name)) + place) % 16 < skill for place in range(2)] for name in ids(groups)}


def test_a_rate_is_that_of_the_latest_episodes_and_not_known_before_there_are_enough():
    curriculum = Curriculum(CurriculumSettings(rate_episodes=4))
    rates = []
    for solved in (False, False, False, True, True, True, True):
        curriculum.add({"a": [solved]})
        rates.append(curriculum.rate("a"))
    assert rates == [None, None, None, 0.25, 0.5, 0.75, 1.0]
    assert curriculum.rate("b") is None


@pytest.mark.parametrize(
    ("solved", "rounds"), [(0, "both"), (1, "first"), (16, "first"), (17, "none"), (20, "none"), (None, "first")]
)
def test_tasks_above_the_one_bound_are_retired_and_those_below_the_other_come_twice_as_often(solved, rounds):
    """The bounds themselves are neither: 16 of 20 is 80 %, and 1 of 20 is 5 %."""
    curriculum = Curriculum(CurriculumSettings(0.8, 0.05, rate_episodes=20))
    if solved is not None:
        curriculum.add({"a": [place < solved for place in range(20)]})
    turns = [curriculum.has_turn(["a"], number) for number in range(4)]
    assert turns == {"both": [True] * 4, "first": [True, False] * 2, "none": [False] * 4}[rounds]


def test_tasks_that_belong_together_have_their_turns_together():
    """Their rate is the mean: a policy that always gives one answer solves one half of a pair, which is kept."""
    curriculum = Curriculum(CurriculumSettings(0.8, 0.05, rate_episodes=4))
    curriculum.add({"a": [True] * 4})
    assert curriculum.has_turn(["a", "b"], 0), "nothing is known of the other"
    curriculum.add({"b": [False] * 4})
    assert [curriculum.has_turn(["a", "b"], number) for number in (0, 1)] == [True, False]
    curriculum.add({"b": [True] * 4})
    assert not curriculum.has_turn(["a", "b"], 0)


def test_without_bounds_nothing_is_retired_or_boosted(tmp_path):
    source, plain = TaskDataSource(make_args(tmp_path)), TaskDataSource(make_args(tmp_path))
    source.end_rollout(0, outcomes={"task-1": [True] * 99, "task-2": [False] * 99})
    assert source.get_samples(21) == plain.get_samples(21)


def test_what_is_handed_out_follows_the_rates(tmp_path):
    source = source_of(tmp_path)
    source.end_rollout(0, outcomes={"task-1": [True] * 4, "task-2": [False] * 4, "task-3": [True, False] * 2})
    counts = Counter(ids(source.get_samples(70)))
    assert counts == {"task-2": 20, **{f"task-{number}": 10 for number in (0, 3, 4, 5, 6)}}


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=8), st.booleans())
def test_what_a_schedule_samples_ahead_and_gives_back_changes_nothing(tmp_path, rollouts, weighted):
    """The last groups are chosen anew by the rates that are known by then."""
    straight, source = fresh_source(tmp_path, weighted), fresh_source(tmp_path, weighted)
    for number, (size, ahead) in enumerate(rollouts):
        expected, groups = straight.get_samples(size), source.get_samples(size + ahead)
        assert groups[:size] == expected
        source.add_samples(groups[size:])
        for each in (straight, source):
            each.end_rollout(number, outcomes=outcomes_of(expected, 9))


def test_where_all_of_a_set_is_retired_none_is(tmp_path):
    source = source_of(tmp_path)
    source.end_rollout(0, outcomes={f"task-{number}": [True] * 4 for number in range(7)})
    source.quarantine("task-0")
    assert Counter(ids(source.get_samples(12))) == {f"task-{number}": 2 for number in range(1, 7)}


def test_a_set_keeps_its_weight_whatever_is_retired_or_boosted_in_it(tmp_path):
    source = mixed(tmp_path, [3, 1, 2], **BOUNDS)
    source.end_rollout(0, outcomes={**{f"task-{n}": [True] * 4 for n in range(6)}, "a-0": [False] * 4})
    groups = ids(source.get_samples(120))
    assert Counter(map(set_of, groups)) == {0: 60, 1: 20, 2: 40}
    assert Counter(groups)["task-6"] == 60 and Counter(groups)["a-0"] == 10


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 15)), min_size=1, max_size=8),
    st.integers(0, 7),
    st.booleans(),
)
def test_a_resumed_run_hands_out_what_it_would_have(tmp_path, rollouts, stop, weighted):
    """size, groups that are given back, and how many episodes are solved."""
    straight, source = fresh_source(tmp_path, weighted), fresh_source(tmp_path, weighted)
    for number, (size, requeued, skill) in enumerate(rollouts):
        expected, groups = straight.get_samples(size), source.get_samples(size)
        assert groups == expected
        for each in (straight, source):
            each.add_samples(groups[:requeued])
            each.end_rollout(number, outcomes=outcomes_of(groups[requeued:], skill))
        source.save(number)
        if number == stop:
            source = fresh_source(tmp_path, weighted)
            source.load(number)
    assert source.get_samples(30) == straight.get_samples(30)


def test_a_resumed_run_plays_anew_what_was_still_played(tmp_path):
    source = source_of(tmp_path)
    groups = source.get_samples(5)
    source.end_rollout(0, [1, 3], {ids(groups)[1]: [True] * 4, ids(groups)[0]: [True] * 4})
    source.save(0)
    resumed = source_of(tmp_path)
    resumed.load(0)
    assert resumed.get_samples(2) == [groups[1], groups[3]]
    assert resumed.get_samples(3) == source.get_samples(3)


def test_bounds_may_change_where_a_run_is_resumed(tmp_path):
    source = source_of(tmp_path)
    source.end_rollout(0, outcomes={"task-1": [True] * 4})
    source.save(0)
    resumed = source_of(tmp_path, swe_retire_above=1.0)
    resumed.load(0)
    assert "task-1" in ids(resumed.get_samples(7))
    resumed = source_of(tmp_path)
    resumed.load(0)
    assert "task-1" not in ids(resumed.get_samples(20))


@pytest.mark.parametrize("changes", [{"swe_retire_above": 1.5}, {"swe_boost_below": -1.0}, {"swe_rate_episodes": 0}])
def test_a_bound_that_is_none_is_named(tmp_path, changes):
    with pytest.raises(UserError, match=next(iter(changes))):
        source_of(tmp_path, **changes)
