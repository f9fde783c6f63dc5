"""Figures of episodes, from samples and from a run's journal alike."""

from __future__ import annotations

import copy
from argparse import Namespace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_swe.errors import UserError
from slime_swe.rewards.slime_plugin import keep_group
from slime_swe.rollout.journals import append_records, read_records
from slime_swe.rollout.metrics import (
    OUTCOMES,
    UNIFORM,
    compare,
    episode_metrics,
    evaluation_metrics,
    pass_at_k,
    pass_hat_k,
    wilson_interval,
)
from slime_swe.rollout.records import write_failure
from slime_swe.sample import Sample


def make_sample(index: int, value: float, **changes) -> Sample:
    sample = Sample(index=index, rollout_id=index, group_index=index // 4, reward=value, status=Sample.Status.COMPLETED)
    sample.metadata = {"task": {"id": f"task-{index // 2}"}, "score": {"value": value, "solved": value > 0}}
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
    metrics = episode_metrics([*siblings, make_sample(1, -1.0), aborted(2)])
    assert (metrics["episodes"], metrics["infrastructure_failures"]) == (3, 1)
    assert (metrics["reward"], metrics["solve_rate"], metrics["segments"]) == (0.0, 0.5, 1.5)
    broken = {"infrastructure_failures/unknown": 1, "groups": 1, "groups/all_infrastructure_failures": 1}
    none = dict.fromkeys(("informative", "all_solved", "all_unsolved", "all_truncated"), 0)
    none = {f"groups/{outcome}": count for outcome, count in none.items()}
    assert episode_metrics([aborted(0)]) == {"episodes": 1, "infrastructure_failures": 1, **broken, **none}


@given(st.lists(st.sampled_from(("solved", "unsolved", "masked", "broken", "empty")), min_size=1, max_size=12))
def test_groups_are_counted_as_the_filter_judges_them(kinds):
    """Groups of up to four episodes; `empty` ones sampled nothing, and `masked` ones solved what they truncated."""
    changes = {
        "broken": {"status": Sample.Status.ABORTED},
        "masked": {"remove_sample": True},
        "empty": {"remove_sample": True},
    }
    samples = [
        make_sample(index, -1.0 if kind == "unsolved" else 1.0, **changes.get(kind, {}))
        for index, kind in enumerate(kinds)
    ]
    for sample, kind in zip(samples, kinds, strict=True):
        sample.metadata["episode"] = {"patch": "", "masked": kind == "masked"}
    metrics = episode_metrics(samples)
    groups = [samples[start : start + 4] for start in range(0, len(samples), 4)]
    verdicts = [keep_group(Namespace(reward_key=None), group) for group in groups]
    assert metrics["groups"] == len(groups) == sum(metrics[f"groups/{outcome}"] for outcome in OUTCOMES)
    assert metrics["groups/informative"] == sum(verdict.keep for verdict in verdicts)
    for reason in UNIFORM:
        assert metrics[f"groups/{reason}"] == sum(verdict.reason == reason for verdict in verdicts)


def test_failures_by_what_failed_cached_prompts_masked_tokens_and_spread():
    samples = [make_sample(index, value) for index, value in enumerate((1.0, 1.0, -1.0, 3.0))]
    for number, sample in enumerate(samples):
        sample.loss_mask, sample.response_length, sample.tokens = [1, 0, 1], 3, [1] * (4 + number)
        counters = {"prompt_tokens": 10, "cached_tokens": 3 * number, "known_tokens": 9, "lost_tokens": 9 - 3 * number}
        sample.metadata["episode"] = {"patch": "", "turns": 2 + number, "counters": counters}
    samples[1].remove_sample = True
    broken = [aborted(4), aborted(5), aborted(6)]
    for sample, where in zip(broken, ("sandbox_error", "grader_error", "sandbox_error"), strict=True):
        write_failure(sample, where, "gone")
    metrics = episode_metrics([*samples, *broken])
    assert metrics["infrastructure_failures"] == 3
    causes = ("sandbox_error", "grader_error")
    assert [metrics[f"infrastructure_failures/{cause}"] for cause in causes] == [2, 1]
    assert (metrics["prefix_cache_hit_rate"], metrics["prefix_lost_rate"]) == (18 / 40, 18 / 40)
    per_turn = metrics["cached_tokens_per_turn"], metrics["prefilled_tokens_per_turn"]
    assert per_turn == (18 / 14, 22 / 14)
    assert (metrics["sampled_tokens"], metrics["masked_tokens"]) == (2.0, 0.5)
    spread = {name: (metrics[f"train_spread/{name}/median"], metrics[f"train_spread/{name}/deviation"])
              for name in ("reward", "turns", "sampled_tokens", "context_tokens")}  # fmt: skip
    assert spread["reward"] == (1.0, pytest.approx(np.std([1, 1, -1, 3])))
    assert spread["turns"] == (3.5, pytest.approx(np.std([2, 3, 4, 5])))
    assert spread["sampled_tokens"] == (2.0, 0.0) and spread["context_tokens"][0] == 5.5


def test_what_was_tried_again_is_summed_up_by_cause_over_all_episodes():
    samples = [make_sample(0, 1.0), make_sample(-1, 1.0, rollout_id=0), make_sample(1, 1.0), aborted(2)]
    for sample in samples:
        counters = {"engine_retries": {"aborted": 2}, "broken_attempts": {"sandbox_error": 1}}
        sample.metadata["episode"] = {"patch": "", "counters": counters}
    metrics = episode_metrics(samples)
    assert (metrics["engine_retries/aborted"], metrics["broken_attempts/sandbox_error"]) == (6, 3)


def test_a_reward_without_a_score_solves_where_it_is_positive_in_every_figure(tmp_path):
    """One rule for metrics, evaluations, the group filter and the journal; SLiME's `reward_key` chooses the number."""
    good, bad = (make_sample(i, 0.0, reward={"a": value, "b": 9.0}, metadata={}) for i, value in enumerate((1.0, -1.0)))
    assert episode_metrics([good, bad], "a")["solve_rate"] == 0.5
    assert evaluation_metrics([good, bad], "a")["solve_rate"] == 0.5
    assert keep_group(Namespace(reward_key="a"), [good, bad]).keep
    append_records(tmp_path / "episodes.jsonl", [good, bad], "a", rollout_id=0)
    assert episode_metrics(read_records(tmp_path / "episodes.jsonl"))["solve_rate"] == 0.5


def test_the_mean_of_each_component_of_the_score():
    samples = [make_sample(0, 1.0), make_sample(1, 0.5), make_sample(2, 0.0), aborted(3)]
    for sample, components in zip(
        samples, ({"tests": 1.0, "turns": -0.5}, {"tests": 0.5}, {}, {"tests": 9.0}), strict=True
    ):
        sample.metadata["score"]["components"] = components
    for metrics in (episode_metrics(samples), evaluation_metrics(samples)):
        assert (metrics["reward/tests"], metrics["reward/turns"]) == (0.75, -0.5)


def test_a_user_s_hook_may_leave_numpy_s_numbers():
    score = {"value": np.float32(1), "solved": np.bool_(True), "components": {"tests": np.float64(0.5)}}
    metrics = episode_metrics([make_sample(0, np.float32(1), metadata={"score": score})])
    assert (metrics["reward"], metrics["solve_rate"], metrics["reward/tests"]) == (1.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("key", "given", "why"),
    [("episode", {}, "missing required field `patch`"), ("score", {"value": 1.0}, "missing required field `solved`")],
)
def test_a_malformed_record_of_a_user_s_hook_is_named(key, given, why):
    with pytest.raises(UserError, match=rf"metadata\['{key}'\] of sample 5 .*{why}"):
        episode_metrics([make_sample(5, 1.0, metadata={key: given})])


def test_evaluation_metrics():
    samples = [make_sample(0, 1.0), make_sample(1, -1.0), make_sample(2, 1.0), aborted(3)]
    for sample, first in zip(samples, (True, False, False), strict=False):
        sample.metadata["score"]["first_edit_solved"] = first
        sample.metadata["episode"] = {"patch": "", "stop_reason": "submitted", "turns": 3, "counters": {"edits": 2}}
        sample.weight_versions = ["7", "7"]
    metrics = evaluation_metrics(samples)
    assert metrics["weight_versions"] == ["7"]
    samples[0].weight_versions, later = ["7"], copy.copy(samples[0])
    later.weight_versions = ["8"]  # of a further sample of the first episode
    assert evaluation_metrics([samples[0], later, *samples[1:]])["weight_versions"] == ["7", "8"]
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


@pytest.mark.parametrize(("solved", "episodes"), [(0, 5), (1, 5), (3, 5), (5, 5), (2, 2)])
def test_pass_at_k_and_pass_hat_k_are_the_shares_of_all_choices_of_k(solved, episodes):
    outcomes = [1] * solved + [0] * (episodes - solved)
    for k in range(1, episodes + 1):
        chosen = list(combinations(outcomes, k))
        assert pass_at_k(solved, episodes, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))
        assert pass_hat_k(solved, episodes, k) == pytest.approx(sum(map(all, chosen)) / len(chosen))


def test_an_evaluation_has_pass_at_k_up_to_the_fewest_sound_episodes_of_a_task():
    """Five episodes of one task and seven of another, of which infrastructure broke one; of a third nothing is left."""
    outcomes = {0: [1, 0, 0, 1, 0], 1: [0, 0, 0, 1, 0, 0, None], 2: [None]}
    samples = []
    for task, row in outcomes.items():
        for outcome in row:
            index = len(samples)
            samples.append(aborted(index) if outcome is None else make_sample(index, float(outcome)))
            samples[-1].metadata["task"] = {"id": f"task-{task}"}
    metrics = evaluation_metrics(samples)
    assert list(metrics["pass_at_k"]) == list(metrics["pass_hat_k"]) == ["2", "4", "5"]
    assert metrics["pass_at_k"] == pytest.approx({"2": (0.7 + 1 / 3) / 2, "4": (1 + 2 / 3) / 2, "5": (1 + 5 / 6) / 2})
    assert metrics["pass_hat_k"] == pytest.approx({"2": 0.1 / 2, "4": 0.0, "5": 0.0})
    assert "pass_at_k" not in evaluation_metrics([*samples, make_sample(99, 1.0)]), "one task has a single episode"


def test_paired_comparison_is_the_exact_sign_test():
    before = {"a": [0, 0], "b": [1, None], "c": [0, 0], "d": [0, 1]}
    after = {"a": [1, 1], "b": [1, 1], "c": [1, 1], "d": [1, 0]}
    assert compare(before, after) == {"pairs": 7, "gained": 5, "lost": 1, "p_value": pytest.approx(2 * 7 / 64)}
    assert compare(before, before)["p_value"] == 1.0
