"""The three intervals: errors and degrees of freedom beside statsmodels', limits where nothing varies, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from slime_swe.launch.compare.intervals import (
    Interval,
    Paired,
    Refused,
    Side,
    effective_clusters,
    intervals_of,
    other_repositories,
    other_tasks,
    pair,
    these_tasks,
)
from tests.launch.compare.simulated import CODES, SIZES, TASKS, World, draw

SOME = 40  # tasks, of which a regression on cells takes no time


@pytest.fixture(scope="module")
def drawn() -> Paired:
    """Verified's tasks; A has three episodes of each, B two or five."""
    rng = np.random.default_rng(0)
    solved = next(draw(World(0.5, 0.5), 3, 1, seed=1)).paired
    episodes = rng.choice([2.0, 5.0], TASKS)
    b = Side(rng.binomial(episodes.astype(int), 0.3 + 0.4 * rng.random(TASKS)).astype(float), episodes)
    return Paired(solved.tasks, solved.a, b, CODES)


def part(side: Side, count: int) -> Side:
    return Side(side.solved[:count], side.episodes[:count])


def made(a: list[list[int]], b: list[list[int]], repositories: list[str] | None = None) -> Paired:
    names = [f"task-{number}" for number in range(len(a))]
    of = dict(zip(names, repositories, strict=True)) if repositories else None
    return pair(dict(zip(names, a, strict=True)), dict(zip(names, b, strict=True)), of)


def estimate(found: Interval | Refused):
    assert isinstance(found, Interval), found
    return found.estimate


def students(found: Interval | Refused) -> tuple[float, float]:
    """The interval that scipy gives for the estimate."""
    one = estimate(found)
    return stats.t.interval(0.95, one.degrees, one.difference, one.error)


def test_these_tasks_is_a_regression_on_cells_with_the_errors_of_each(drawn):
    """One cell for each task and side, with HC2: its errors are those of independent means."""
    sides, cells, outcomes = [part(side, SOME) for side in (drawn.a, drawn.b)], [], []
    for number, side in enumerate(sides):
        for task in range(SOME):
            count, solved = int(side.episodes[task]), int(side.solved[task])
            cells += [number * SOME + task] * count
            outcomes += [1] * solved + [0] * (count - solved)
    fitted = sm.OLS(outcomes, np.eye(2 * SOME)[cells]).fit(cov_type="HC2")
    contrast = np.repeat([-1 / SOME, 1 / SOME], SOME)
    one = estimate(these_tasks(Paired(drawn.tasks[:SOME], *sides)))
    assert one.difference == pytest.approx(contrast @ fitted.params)
    assert one.error == pytest.approx(float(np.sqrt(contrast @ fitted.cov_params() @ contrast)))


def test_other_tasks_is_a_regression_on_repositories(drawn):
    """With HC2; the smallest two of Verified's repositories are one, as flask has a single task."""
    strata = np.minimum(CODES, 10)
    weights = np.bincount(strata) / TASKS
    fitted = sm.OLS(drawn.differences, np.eye(11)[strata]).fit(cov_type="HC2")
    one = estimate(other_tasks(drawn))
    assert one.difference == pytest.approx(weights @ fitted.params)
    assert one.error == pytest.approx(float(np.sqrt(weights @ fitted.cov_params() @ weights)))


def test_other_repositories_is_a_cluster_jackknife(drawn):
    """By fitting a constant once without each repository; and CV1, statsmodels' own, of the same constant."""
    constant = np.ones(TASKS)
    clustered = sm.OLS(drawn.differences, constant).fit(
        cov_type="cluster", cov_kwds={"groups": CODES, "use_correction": True}
    )
    others = [np.flatnonzero(CODES - g) for g in range(len(SIZES))]
    without = [sm.OLS(drawn.differences[kept], constant[kept]).fit().params[0] for kept in others]
    one = estimate(other_repositories(drawn))
    jackknife = np.sqrt(11 / 12 * np.sum((np.array(without) - clustered.params[0]) ** 2))
    assert one.difference == pytest.approx(clustered.params[0])
    assert one.error == pytest.approx(jackknife)
    assert one.degrees == pytest.approx(TASKS**2 / np.sum(SIZES**2) - 1)
    assert clustered.bse[0] < one.error < 2 * clustered.bse[0]


def test_the_jackknife_is_pyfixest_s():
    """pyfixest 0.60.0, `feols("d ~ 1", vcov={"CRV3": "g"}, ssc=ssc(k_adj=False, G_adj=False))`, which is the sum over
    repositories without (G - 1) / G."""
    number = np.arange(TASKS)
    sides = [Side(solved.astype(float), np.full(TASKS, 3.0)) for solved in (7 * number % 3, (5 * number + CODES) % 4)]
    one = estimate(other_repositories(Paired(tuple(map(str, number)), *sides, CODES)))
    assert one.difference == pytest.approx(0.164)
    assert one.error == pytest.approx(0.0021160264238906977 * np.sqrt(11 / 12))


def test_with_repositories_of_one_size_the_jackknife_is_statsmodels_cluster_error():
    """CV3 / CV1 is then G / (G - 1), but for statsmodels' correction (N - 1) / (N - 1) of a constant."""
    rng = np.random.default_rng(3)
    sides = (Side(rng.integers(0, 4, 40).astype(float), np.full(40, 3.0)) for _ in "ab")
    groups = np.repeat(np.arange(8), 5)
    paired = Paired(tuple(map(str, range(40))), *sides, groups)
    fitted = sm.OLS(paired.differences, np.ones(40)).fit(cov_type="cluster", cov_kwds={"groups": groups})
    assert estimate(other_repositories(paired)).error == pytest.approx(fitted.bse[0])
    assert estimate(other_repositories(paired)).degrees == pytest.approx(7)


def test_limits_are_student_s(drawn):
    for found in intervals_of(drawn).values():
        assert (found.low, found.high) == pytest.approx(students(found), rel=1e-9)


def test_degrees_of_freedom_of_two_samples_are_welch_s():
    paired = made([[1, 0, 0, 1, 0]], [[1, 1, 0]])
    welch = stats.ttest_ind([1, 1, 0], [1, 0, 0, 1, 0], equal_var=False)
    one = estimate(these_tasks(paired))
    assert (one.degrees, one.difference / one.error) == pytest.approx((welch.df, welch.statistic))
    assert one.p_value == pytest.approx(welch.pvalue)


def test_degrees_of_freedom_of_one_repository_are_those_of_the_paired_t_test():
    a, b = [[1], [0], [0], [1], [0], [1]], [[1], [1], [0], [1], [1], [0]]
    student = stats.ttest_rel([n for (n,) in b], [n for (n,) in a])
    for repositories in (None, ["x"] * 6):
        one = estimate(other_tasks(made(a, b, repositories)))
        assert (one.degrees, one.p_value) == pytest.approx((5, student.pvalue))


def test_strata_add_up_by_satterthwaite(drawn):
    counts = np.array([*SIZES[:10], 3])
    variances = np.array([np.var(drawn.differences[np.minimum(CODES, 10) == g], ddof=1) for g in range(11)])
    parts = counts * variances / TASKS**2
    assert estimate(other_tasks(drawn)).degrees == pytest.approx(parts.sum() ** 2 / (parts**2 / (counts - 1)).sum())


def test_several_repositories_of_one_task_are_one_stratum():
    a, b = [[0]] * 6, [[1], [0], [1], [0], [1], [1]]
    found = estimate(other_tasks(made(a, b, ["x", "x", "p", "q", "r", "s"])))
    parts = [2 * np.var([1, 0], ddof=1), 4 * np.var([1, 0, 1, 1], ddof=1)]
    assert found.error == pytest.approx(np.sqrt(sum(parts)) / 6)


def test_verified_has_effectively_four_repositories():
    assert (
        effective_clusters(SIZES.astype(float))
        == pytest.approx(TASKS**2 / np.sum(SIZES**2))
        == pytest.approx(3.87, abs=0.005)
    )
    assert effective_clusters(np.full(9, 4.0)) == pytest.approx(9)


@pytest.mark.parametrize("rates", [(0, 0), (1, 1), (0, 1)])
def test_where_nothing_varies_the_limits_are_wilson_s(rates):
    """All solved or none, with four episodes of each of 25 tasks: 0 of 100, 0 of 25, and 0 of 5 repositories."""
    found = intervals_of(made([[rates[0]] * 4] * 25, [[rates[1]] * 4] * 25, [f"r{n // 5}" for n in range(25)]))
    difference = rates[1] - rates[0]
    assert all(estimate(one).error == 0 and one.low <= difference <= one.high for one in found.values())
    of_100, of_25, of_5 = (proportion_confint(0, count, method="wilson")[1] for count in (100, 25, 5))
    these = {0: (-of_100, of_100), 1: (1 - np.hypot(of_100, of_100), 1)}[difference]
    others = {0: (-of_25, of_25), 1: (1 - 2 * of_25, 1)}[difference]
    assert (found["these tasks"].low, found["these tasks"].high) == pytest.approx(these, abs=1e-5)
    assert (found["other tasks of these repositories"].low, found["other tasks of these repositories"].high) == (
        pytest.approx(others, abs=1e-5)
    )
    repositories = found["other repositories"]
    assert repositories.high - repositories.low > of_5 > of_25


def test_the_same_tasks_solved_by_both_sides_is_no_certainty():
    """No task differs, half are solved: the limit is on the share of tasks that would differ, not on the rates."""
    found = other_tasks(made([[1]] * 10 + [[0]] * 10, [[1]] * 10 + [[0]] * 10))
    limit = proportion_confint(0, 20, method="wilson")[1]
    assert (found.low, found.high) == pytest.approx((-limit, limit), abs=1e-5)


def test_no_limit_is_beyond_one():
    found = other_tasks(made([[1], [0], [0]], [[1], [1], [1]]))
    assert (found.low, found.high) == (pytest.approx(-0.767, abs=1e-3), 1.0)


def test_what_can_not_be_known_is_refused_with_the_reason():
    one = made([[1], [0, 1]], [[1, 1], [0, 1]], ["x", "x"])
    assert "1 of 2 tasks have not two episodes on both sides" in these_tasks(one).reason
    assert "no task has two episodes" in these_tasks(made([[1], [0]], [[1], [1]])).reason
    assert other_repositories(one) == Refused("the tasks are of one repository, which says nothing of others")
    lone = made([[1]] * 12, [[0]] * 11 + [[1]], ["x"] * 11 + ["y"])
    assert "2 repositories, in effect 1.2, which" in other_repositories(lone).reason
    assert other_repositories(made([[1]], [[0]]), "nobody knows") == Refused("nobody knows")
    assert other_tasks(made([[1]], [[0]])) == Refused("one task is no sample of tasks")


def test_tasks_have_equal_weights_and_a_task_of_one_side_none():
    a = {"x": [1, 1, 1, 0], "y": [0], "only a": [1]}
    b = {"y": [1, 0], "x": [1], "only b": [0], "broken": []}
    paired = pair(a, b)
    assert paired.tasks == ("x", "y") and list(paired.differences) == [0.25, 0.5]
    assert paired.difference == 0.375
