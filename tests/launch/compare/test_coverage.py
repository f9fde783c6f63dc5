"""How often intervals hold the truth and verdicts are false, in 2,000 comparisons each on Verified's repositories."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from slime_swe.launch.compare import test_of as significance
from slime_swe.launch.compare import verdict, verdict_of
from slime_swe.launch.compare.intervals import Interval, other_repositories, other_tasks, these_tasks
from tests.launch.compare.simulated import CODES, REPOSITORIES, TASKS, Drawn, World, draw

COUNT = 2000
WORLDS = {
    "tasks alone": World(),
    "repositories differ": World(repository=0.7, effect=0.4),
    "repositories differ much": World(repository=1.0, effect=1.0),
}
CASES = [("tasks alone", 2), ("repositories differ", 1), ("repositories differ", 2)]
OTHERS = [(name, episodes) for name in WORLDS for episodes in (1, 2, 4) if (name, episodes) not in CASES]
CASES += [pytest.param(*case, marks=pytest.mark.extended("worlds that are compared")) for case in OTHERS]


def covers(found: object, truth: float) -> bool:
    assert isinstance(found, Interval), found
    return found.low <= truth <= found.high


def drawn(name: str, episodes: int) -> list[Drawn]:
    return list(draw(WORLDS[name], episodes, COUNT, seed=100 * list(WORLDS).index(name) + episodes))


@pytest.mark.parametrize(("name", "episodes"), CASES)
def test_the_intervals_cover_what_they_say(name, episodes):
    cases = drawn(name, episodes)
    other = np.mean([covers(other_tasks(case.paired), case.other_tasks) for case in cases])
    repositories = np.mean([covers(other_repositories(case.paired), case.other_repositories) for case in cases])
    assert 0.93 <= other <= 0.97
    assert repositories >= 0.93
    if episodes > 1:
        these = np.mean([covers(these_tasks(case.paired), case.these_tasks) for case in cases])
        assert 0.93 <= these <= 0.97


def test_what_is_usual_covers_other_repositories_too_seldom():
    """statsmodels' CV1 with G - 1 degrees of freedom: the simulations tell it from what is right."""
    quantile, missed = stats.t.ppf(0.975, REPOSITORIES - 1), 0
    for case in drawn("repositories differ much", 2):
        deviations = case.paired.differences - case.paired.difference
        sums = np.bincount(CODES, deviations)
        error = np.sqrt(REPOSITORIES / (REPOSITORIES - 1) * sums @ sums) / TASKS
        missed += abs(case.paired.difference - case.other_repositories) > quantile * error
    assert missed > 0.1 * COUNT


@pytest.mark.parametrize(("name", "episodes"), CASES)
def test_false_improvements_are_rare(name, episodes):
    """Of tasks of these repositories by the verdict, of other repositories by their interval."""
    world = WORLDS[name]
    null = World(world.repository, world.effect, shift=0.0, level=0.0)
    assert abs(null.population) < 1e-12
    false = {"better": 0, "worse": 0, "not resolved": 0}
    for case in draw(null, episodes, COUNT, seed=7 + episodes, null=True):
        false[verdict(case.paired.difference, significance(case.paired).p_value)] += 1
    assert false["better"] <= 0.05 * COUNT and false["better"] + false["worse"] <= 0.065 * COUNT
    found = [other_repositories(case.paired) for case in draw(null, episodes, COUNT, seed=7 + episodes)]
    assert sum(verdict_of(interval) == "better" for interval in found) <= 0.05 * COUNT
