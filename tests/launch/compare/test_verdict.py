"""The p value, the verdict, and how small a difference can be shown."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar

from slime_swe.launch.compare import detectable, power, run_deviation, runs_each, verdict, verdict_of
from slime_swe.launch.compare import test_of as significance
from slime_swe.launch.compare.intervals import Side, intervals_of, other_tasks, pair, these_tasks
from tests.launch.compare.simulated import TASKS, World, draw


def singles(gained: int, lost: int, both: int, neither: int):
    a = [0] * gained + [1] * lost + [1] * both + [0] * neither
    b = [1] * gained + [0] * lost + [1] * both + [0] * neither
    return pair({str(n): [x] for n, x in enumerate(a)}, {str(n): [x] for n, x in enumerate(b)})


@pytest.mark.parametrize(
    "counts", [(14, 4, 30, 52), (3, 9, 0, 8), (5, 5, 1, 1), (0, 6, 2, 2), (1, 0, 9, 9), (0, 0, 2, 2)]
)
def test_single_episodes_take_mcnemar_s_exact_test(counts):
    gained, lost, both, neither = counts
    found = significance(singles(*counts))
    expected = mcnemar([[both, lost], [gained, neither]], exact=True).pvalue
    assert (found.name, found.p_value) == ("exact McNemar", pytest.approx(expected))


def test_several_episodes_take_the_paired_t_test_of_tasks():
    a, b = (
        {str(n): row for n, row in enumerate(rows)} for rows in ([[1, 0], [0, 0], [1, 1]], [[1, 1], [0, 1], [1, 1]])
    )
    found, student = significance(pair(a, b)), stats.ttest_rel([1, 0.5, 1], [0.5, 0, 1])
    assert (found.name, found.p_value) == ("paired t test", pytest.approx(student.pvalue))
    assert found.p_value == pytest.approx(other_tasks(pair(a, b)).estimate.p_value)


def test_tasks_that_differ_alike_take_the_exact_sign_test():
    rows = {str(n): [0, 0] for n in range(6)}
    found = significance(pair(rows, {name: [1, 1] for name in rows}))
    assert (found.name, found.p_value) == ("exact sign test", 2 / 64)
    assert significance(pair(rows, rows)).p_value == 1.0
    assert significance(pair({"x": [0, 0]}, {"x": [1, 1]})).p_value == 1.0


def test_a_verdict_has_a_sign_where_the_test_rejects():
    assert [verdict(0.1, 0.049), verdict(-0.1, 0.049), verdict(0.1, 0.05), verdict(0.0, 0.0)] == [
        "better", "worse", "not resolved", "not resolved",
    ]  # fmt: skip
    found = [verdict_of(other_tasks(singles(*counts))) for counts in ((20, 2, 5, 5), (2, 20, 5, 5), (6, 5, 5, 5))]
    assert found == ["better", "worse", "not resolved"]


def test_the_runs_that_the_issue_of_power_is_about():
    """At a deviation of 2 points from run to run, 5 points take 3 runs of each side and 2 points 16."""
    assert (runs_each(5, 2), runs_each(2, 2)) == (3, 16)
    assert (runs_each(0.05, 0.02), runs_each(0.02, 0.02)) == (3, 16)
    assert runs_each(2, 1e-6) == 1


@pytest.mark.parametrize("difference", [2.0, 3.0, 5.0])
def test_so_many_runs_have_the_power_and_one_less_has_not(difference):
    """By the normal distribution of the difference of two means."""

    def reached(runs: int) -> float:
        return float(stats.norm.sf(stats.norm.ppf(0.975) - difference / (2 * math.sqrt(2 / runs))))

    runs = runs_each(difference, 2)
    assert reached(runs) >= 0.8 > reached(runs - 1)


def test_the_deviation_from_run_to_run_is_that_of_simulated_runs():
    """From one evaluation with eight episodes a task, beside 4,000 runs of the same tasks."""
    rng = np.random.default_rng(0)
    rates = rng.beta(0.4, 0.6, TASKS)
    side = Side(rng.binomial(8, rates).astype(float), np.full(TASKS, 8.0))
    runs = rng.binomial(1, rates, (4000, TASKS)).mean(1)
    assert run_deviation(side) == (pytest.approx(runs.std(), rel=0.05), True)
    bound, measured = run_deviation(Side(rng.binomial(1, rates).astype(float), np.ones(TASKS)))
    assert bound > 1.2 * runs.std() and not measured


def test_a_detectable_difference_is_found_in_four_of_five_evaluations():
    """The power that a first evaluation promises, in 1,000 with a difference of that size."""
    world = World(shift=0.33)
    paired = next(draw(world, 2, 1, seed=0)).paired
    promised = detectable(other_tasks(paired))
    assert promised == pytest.approx(world.population, rel=0.1)
    found = [verdict(d.paired.difference, significance(d.paired).p_value) for d in draw(world, 2, 1000, seed=1)]
    assert 0.72 <= found.count("better") / 1000 <= 0.88


def test_power_is_one_document():
    paired = next(draw(World(), 2, 1, seed=0)).paired
    found = power(paired, intervals_of(paired))
    assert found["detectable"]["these tasks"] == pytest.approx(detectable(these_tasks(paired)))
    deviation = found["run_deviation"]
    assert deviation["typical"] == pytest.approx(math.sqrt((deviation["a"] ** 2 + deviation["b"] ** 2) / 2))
    assert found["run_deviation_measured"] is True
    assert {row["difference"]: row["runs"] for row in found["runs_each"]} == {
        difference: runs_each(difference, deviation["typical"]) for difference in (0.01, 0.02, 0.03, 0.05, 0.1)
    }
    same = singles(0, 0, 0, 4)
    nothing = power(same, intervals_of(same))
    assert nothing["detectable"] == {"these tasks": None, "other tasks of these repositories": None}
    assert nothing["runs_each"][0]["runs"] is None
