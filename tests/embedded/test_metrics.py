"""Intervals, outcome figures and the shuffled-reward control."""

from __future__ import annotations

from argparse import Namespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_sources.sample import Sample
from embedded.metrics import compare, evaluation_metrics, outcome_metrics, wilson_interval


def make_sample(index: int, reward: float, **changes) -> Sample:
    sample = Sample(
        index=index, rollout_id=index, group_index=index // 4, reward=reward, status=Sample.Status.COMPLETED
    )
    sample.metadata = {"task": {"id": f"task-{index // 2}"}, "score": {"value": reward, "solved": reward > 0}}
    for name, value in changes.items():
        setattr(sample, name, value)
    return sample


def aborted(index: int) -> Sample:
    return make_sample(index, 0.0, status=Sample.Status.ABORTED, remove_sample=True)


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [  # R: binom::binom.wilson
        (0, 10, 0.0, 0.2775328),
        (5, 10, 0.2365931, 0.7634069),
        (10, 10, 0.7224672, 1.0),
        (81, 263, 0.2552801, 0.3662146),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_interval(successes, total, low, high):
    assert wilson_interval(successes, total) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 500), st.data())
def test_wilson_interval_holds_the_share_and_narrows_with_more_trials(total, data):
    successes = data.draw(st.integers(0, total))
    low, high = wilson_interval(successes, total)
    assert 0 <= low <= successes / total <= high <= 1
    wider = wilson_interval(successes, total, z=2.6)
    assert wider[0] <= low and high <= wider[1]


def test_outcomes_leave_broken_episodes_out_and_count_siblings_once():
    siblings = [make_sample(0, 1.0), make_sample(-1, 1.0, rollout_id=0)]
    samples = [*siblings, make_sample(1, -1.0), aborted(2)]
    assert outcome_metrics(samples) == {
        "episodes": 3, "infrastructure_failures": 1, "reward": 0.0, "solve_rate": 0.5,
    }  # fmt: skip
    assert outcome_metrics([aborted(0)]) == {"episodes": 1, "infrastructure_failures": 1}


def test_evaluation_metrics():
    samples = [make_sample(0, 1.0), make_sample(1, -1.0), make_sample(2, 1.0), aborted(3)]
    for sample, first in zip(samples, (True, False, False), strict=False):
        sample.metadata["score"]["first_edit_solved"] = first
        sample.metadata["episode"] = {"stop_reason": "submitted", "turns": 3, "counters": {"edits": 2}}
    metrics = evaluation_metrics(samples)
    assert metrics["outcomes"] == {"task-0": [1, 0], "task-1": [1, None]}
    assert (metrics["episodes"], metrics["solved"], metrics["tasks"], metrics["infrastructure_failures"]) == (
        3,
        2,
        2,
        1,
    )
    assert metrics["solve_rate"] == pytest.approx(2 / 3)
    assert metrics["interval"] == pytest.approx(list(wilson_interval(2, 3)))
    assert metrics["first_edit_solve_rate"] == pytest.approx(1 / 3)
    assert (metrics["turns"], metrics["edits"], metrics["stop_reasons"]) == (3, 2, {"submitted": 1})


def test_evaluation_metrics_without_reports_of_plugins():
    sample = make_sample(0, 0.5, metadata={})
    metrics = evaluation_metrics([sample])
    assert metrics["solve_rate"] == 1 and "turns" not in metrics and "first_edit_solve_rate" not in metrics
    assert evaluation_metrics([aborted(0)])["solve_rate"] is None


def test_paired_comparison_is_the_exact_sign_test():
    before = {"a": [0, 0], "b": [1, None], "c": [0, 0], "d": [0, 1]}
    after = {"a": [1, 1], "b": [1, 1], "c": [1, 1], "d": [1, 0]}
    assert compare(before, after) == {"pairs": 7, "gained": 5, "lost": 1, "p_value": pytest.approx(2 * 7 / 64)}
    assert compare(before, before)["p_value"] == 1.0


def test_shuffled_rewards_keep_their_counts_and_say_nothing_of_who_earned_them():
    from embedded.control import shuffled_post_process

    samples = [make_sample(i, 1.0 if i % 4 == 0 else -1.0) for i in range(64)] + [aborted(64)]
    args = Namespace(seed=3, reward_key=None, rewards_normalization=True, grpo_std_normalization=False)
    raw, shuffled = shuffled_post_process(args, samples)
    assert raw == [sample.reward for sample in samples]
    assert (raw, shuffled) == shuffled_post_process(args, samples)
    assert shuffled[-1] == 0.0
    from rewards.slime_plugin import post_process

    _, honest = post_process(args, samples)
    assert shuffled != honest and sum(shuffled) == pytest.approx(0)
    agreement = sum(a * b > 0 for a, b in zip(shuffled, honest, strict=True)) / 64
    assert agreement < 0.85
