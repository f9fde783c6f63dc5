"""When infrastructure is said to be out, how often it is tried meanwhile, and when a run ends for it."""

from __future__ import annotations

import pytest

from slime_swe.errors import InfrastructureError
from slime_swe.rollout.scheduling.outage import CALM, LONGEST, Outage, pause


def broken(outage: Outage, tries: int, *, groups: int = 2, now: float = 10.0, begun: float = 9.0) -> None:
    for number in range(tries):
        outage.broken(number % groups, begun, now, "sandbox_error: refused")


@pytest.mark.parametrize(("tries", "groups", "is_on"), [(7, 2, False), (8, 2, True), (100, 1, False)])
def test_an_outage_takes_many_tries_and_more_than_one_group(tries, groups, is_on):
    outage = Outage()
    broken(outage, tries, groups=groups)
    assert outage.is_on(10.0) is is_on


def test_it_ends_with_a_sound_episode_that_began_later():
    outage = Outage()
    broken(outage, 20)
    outage.sound(9.9)
    assert outage.is_on(11.0), "its sandbox was open before"
    outage.sound(10.5)
    assert not outage.is_on(11.0)


def test_a_try_that_lasts_ends_it_and_one_that_breaks_late_makes_the_next_wait_longer():
    outage = Outage()
    broken(outage, 20)
    outage.begin(20.0)
    assert outage.is_on(19.9 + CALM) and not outage.is_on(20.0 + CALM)
    outage.end(20.0)
    outage.broken(0, 20.0, 120.0, "engine_error: no connection")
    outage.begin(130.0)
    assert outage.is_on(130.0 + CALM) and not outage.is_on(130.0 + 2 * 100.0)


def test_tries_of_an_outage_begin_one_by_one_and_rarely():
    outage, now, begun = Outage(), 10.0, 0
    broken(outage, 20)
    while now < 10.0 + 1200.0:
        seconds = outage.wait(now)
        begun += not seconds
        now += seconds
    assert 1200 / LONGEST <= begun <= 2 * 1200 / LONGEST + 7


def test_pauses_double_up_to_a_minute_and_differ():
    for failures in (1, 2, 5, 10_000):
        most = min(LONGEST, 2.0 ** min(failures - 1, 10))
        drawn = [pause(failures) for _ in range(50)]
        assert len(set(drawn)) > 1 and all(most / 2 <= each <= most for each in drawn)


def test_a_run_ends_after_a_time_and_not_after_a_number_of_tries():
    outage = Outage(limit=600.0)
    broken(outage, 5000)
    outage.broken(0, 11.0, 609.0, "sandbox_error: refused")
    with pytest.raises(InfrastructureError, match=r"5002 in 600 seconds, the last by sandbox_error: refused"):
        outage.broken(0, 11.0, 610.0, "sandbox_error: refused")


def test_the_time_in_which_other_episodes_last_does_not_count():
    """Two tasks that can't be played break for hours, while the others' episodes are long."""
    outage, now = Outage(limit=600.0), 10.0
    while now < 7200.0:
        outage.begin(now)
        now += 300.0
        broken(outage, 4, now=now, begun=now - 1.0)
    assert not outage.is_on(now)
