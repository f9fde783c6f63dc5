from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_swe.rewards.advantages import EPSILON, AdvantageError, Row, group_advantages, segment_advantages

REWARD = st.sampled_from([-1.0, 0.0, 1.0]) | st.floats(-10, 10, width=32)
TRAJECTORY = st.tuples(st.integers(0, 3), REWARD, st.booleans(), st.integers(1, 4))
TRAJECTORIES = st.lists(TRAJECTORY, max_size=20)  # (group, reward, excluded, number of segments)


def rows_of(trajectories) -> list[Row]:
    return [
        Row(group, number, reward, excluded)
        for number, (group, reward, excluded, segments) in enumerate(trajectories)
        for _ in range(segments)
    ]


def by_trajectory(rows, advantages) -> dict:
    return {row.trajectory: value for row, value in zip(rows, advantages, strict=True)}


@pytest.mark.parametrize(
    ("rewards", "plain", "normalised"),
    [
        ([], [], []),
        ([0.7], [0.0], [0.0]),
        ([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ([0.1, 0.1, 0.1], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
        ([1.0, -1.0], [1.0, -1.0], [1 / math.sqrt(2), -1 / math.sqrt(2)]),
        ([1.0, 0.0, 0.0, 0.0], [0.75, -0.25, -0.25, -0.25], [1.5, -0.5, -0.5, -0.5]),
    ],
)
def test_known_groups(rewards, plain, normalised):
    assert group_advantages(rewards, normalize_std=False) == pytest.approx(plain)
    assert group_advantages(rewards, normalize_std=True) == pytest.approx(normalised, abs=1e-5)


@settings(deadline=None)
@given(st.lists(REWARD, min_size=2, max_size=10), st.booleans())
def test_it_is_the_textbook_formula(rewards, normalize_std):
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    scale = deviation + EPSILON if normalize_std else 1.0
    expected = [(reward - mean) / scale for reward in rewards]
    assert group_advantages(rewards, normalize_std=normalize_std) == pytest.approx(expected, abs=1e-6)


def test_it_is_slime_s_formula():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rewards = torch.tensor([1.0, -1.0, -1.0, 0.5, 1.0])
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    assert group_advantages(rewards.tolist(), normalize_std=True) == pytest.approx(expected.tolist(), abs=1e-6)


@settings(deadline=None)
@given(TRAJECTORIES, st.booleans())
def test_how_many_segments_a_trajectory_became_changes_nothing(trajectories, normalize_std):
    one_each = rows_of([(group, reward, out, 1) for group, reward, out, _ in trajectories])
    rows = rows_of(trajectories)
    fanned = segment_advantages(rows, normalize_std=normalize_std)
    single = segment_advantages(one_each, normalize_std=normalize_std)
    assert by_trajectory(rows, fanned) == by_trajectory(one_each, single)


@settings(deadline=None)
@given(TRAJECTORIES, st.booleans(), st.randoms())
def test_the_order_of_samples_changes_nothing(trajectories, normalize_std, random):
    rows = rows_of(trajectories)
    shuffled = random.sample(rows, len(rows))
    straight = by_trajectory(rows, segment_advantages(rows, normalize_std=normalize_std))
    mixed = by_trajectory(shuffled, segment_advantages(shuffled, normalize_std=normalize_std))
    assert mixed == pytest.approx(straight, abs=1e-9)


@settings(deadline=None)
@given(TRAJECTORIES, st.booleans())
def test_what_is_excluded_gets_nothing_and_moves_nothing(trajectories, normalize_std):
    rows = rows_of(trajectories)
    advantages = segment_advantages(rows, normalize_std=normalize_std)
    kept = [row for row in rows if not row.excluded]
    assert all(value == 0.0 for row, value in zip(rows, advantages, strict=True) if row.excluded)
    assert segment_advantages(kept, normalize_std=normalize_std) == [
        value for row, value in zip(rows, advantages, strict=True) if not row.excluded
    ]


@settings(deadline=None)
@given(TRAJECTORIES, st.booleans())
def test_each_group_sums_to_zero_over_its_trajectories(trajectories, normalize_std):
    rows = rows_of(trajectories)
    advantages = by_trajectory(rows, segment_advantages(rows, normalize_std=normalize_std))
    for group in range(4):
        total = math.fsum(
            advantages[row.trajectory] for row in {r.trajectory: r for r in rows}.values() if row.group == group
        )
        assert total == pytest.approx(0.0, abs=1e-4)


@settings(deadline=None)
@given(TRAJECTORIES, st.booleans())
def test_groups_do_not_touch_each_other(trajectories, normalize_std):
    rows = rows_of(trajectories)
    together = by_trajectory(rows, segment_advantages(rows, normalize_std=normalize_std))
    for group in range(4):
        alone = [row for row in rows if row.group == group]
        values = by_trajectory(alone, segment_advantages(alone, normalize_std=normalize_std))
        assert values == {name: together[name] for name in values}


@settings(deadline=None)
@given(TRAJECTORIES, st.booleans())
def test_a_better_reward_never_gets_a_lower_advantage(trajectories, normalize_std):
    rows = [row for row in rows_of(trajectories) if not row.excluded]
    pairs = sorted(
        zip(rows, segment_advantages(rows, normalize_std=normalize_std), strict=True), key=lambda p: p[0].reward
    )
    for group in range(4):
        values = [value for row, value in pairs if row.group == group]
        assert values == sorted(values)


def test_one_excluded_segment_excludes_its_trajectory():
    rows = [Row(0, "a", 1.0), Row(0, "b", 0.0), Row(0, "c", 0.0, True), Row(0, "c", 5.0)]
    assert segment_advantages(rows, normalize_std=False) == [0.5, -0.5, 0.0, 0.0]


def test_segments_of_one_trajectory_with_different_rewards_are_refused():
    with pytest.raises(AdvantageError, match="trajectory 'a' of group 0 has segments with rewards"):
        segment_advantages([Row(0, "a", 1.0), Row(0, "a", 0.0)], normalize_std=True)
