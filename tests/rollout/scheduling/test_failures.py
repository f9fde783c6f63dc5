"""Tasks that are set aside, and outages."""

from __future__ import annotations

from slime_swe.rollout.scheduling.failures import Failures


def test_a_task_whose_groups_break_is_set_aside():
    failures = Failures(most_of_a_task=3)
    assert [failures.group("poison", broken=True) for _ in range(3)] == [True, True, False]
    assert failures.set_aside == {"poison"}


def test_a_sound_group_between_clears_a_task():
    failures = Failures(most_of_a_task=2)
    for _ in range(5):
        assert failures.group("odd", broken=True)
        assert not failures.group("odd", broken=False)
    assert not failures.set_aside


def test_an_outage_is_no_task_s_fault_and_ends_with_a_sound_episode():
    failures = Failures(most_of_a_task=2, most_in_a_row=4)
    for number in range(4):
        assert not failures.outage
        failures.episode(broken=True)
        assert number < 3 or failures.outage
    assert all(failures.group("innocent", broken=True) for _ in range(10))
    failures.episode(broken=False)
    assert not failures.outage and not failures.set_aside


def test_poison_tasks_cost_few_tries():
    """Three of forty: each is tried as often as it takes to tell, and never again."""
    failures, tries = Failures(most_of_a_task=3), 0
    for _ in range(20):
        for task in range(40):
            if str(task) in failures.set_aside:
                continue
            poison = task < 3
            tries += poison
            while failures.group(str(task), broken=poison) and poison:
                tries += 1
    assert tries == 9
