"""A run that kept what the docs promise passes, and each planted breach is found by its promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slime_swe.launch.rehearse.faults import Drill
from slime_swe.launch.rehearse.faults.outcome import PROMISES, Episode, Left, Seen, compare, judge

ROLLOUTS, GROUPS, EPISODES = 3, 2, 2


def journal(rollouts, attempt: str) -> tuple[Episode, ...]:
    size = GROUPS * EPISODES
    return tuple(
        Episode(rollout, index // EPISODES, index, broken=False, removed=False, record=f"{attempt}{index}")
        for rollout in rollouts
        for index in range(rollout * size, (rollout + 1) * size)
    )


@pytest.fixture
def seen():
    """Killed in the save after the second rollout's step, and resumed from the first one's checkpoint."""
    failed = Left(journal((0, 1), "first"), {0: 10, 1: 20}, 0)
    last = Left(journal((0,), "first") + journal((1, 2), "second"), {0: 10, 1: 30, 2: 40}, 2)
    return Seen(Drill("rank", "save"), ROLLOUTS, GROUPS, EPISODES, 1, 1, 4.0, (), failed, failed, 0, last)


def found(seen: Seen) -> set[str]:
    return {check.name for check in compare(seen) if not check.ok}


def test_what_is_promised_is_kept(seen):
    assert found(seen) == set()
    outcome = judge(seen, "a_recipe", "2026-01-01")
    assert outcome.ok
    assert (outcome.ending, outcome.lost_steps, outcome.lost_episodes) == ("ends with code 1", 1, GROUPS * EPISODES)
    assert outcome.resumed_from == "the checkpoint of rollout 0"


def test_a_run_that_goes_on_loses_nothing(seen):
    went_on = replace(seen, code=0, resumed=None, at_end=seen.finally_)
    outcome = judge(went_on, "a_recipe", "2026-01-01")
    assert (outcome.ending, outcome.lost_steps, outcome.lost_episodes, outcome.broken) == ("goes on", 0, 0, [])


def finally_(seen: Seen, **changed) -> Seen:
    return replace(seen, finally_=replace(seen.finally_, **changed))


def without(seen: Seen, *indices: int) -> tuple[Episode, ...]:
    return tuple(episode for episode in seen.finally_.episodes if episode.trajectory not in indices)


def a_record_of_a_saved_rollout_is_another(seen):
    changed = [replace(one, record="other") if one.trajectory == 0 else one for one in seen.finally_.episodes]
    return finally_(seen, episodes=tuple(changed))


def two_steps_are_made_again(seen):
    return finally_(seen, steps={0: 25, 1: 30, 2: 40})


def two_rollouts_are_played_again(seen):
    return finally_(seen, episodes=journal((0, 1, 2), "second"))


def an_episode_is_in_two_rollouts(seen):
    more = replace(seen.finally_.episodes[-1], rollout=1, record="copy")
    return finally_(seen, episodes=(*seen.finally_.episodes, more))


def a_record_stands_there_twice(seen):
    return finally_(seen, episodes=(*seen.finally_.episodes, seen.finally_.episodes[-1]))


def a_task_is_skipped(seen):
    moved = [replace(one, group=one.group + 1) if one.group >= 2 else one for one in seen.finally_.episodes]
    return finally_(seen, episodes=tuple(moved))


def a_failure_is_trained(seen):
    first, *rest = seen.finally_.episodes
    return finally_(seen, episodes=(*rest, replace(first, broken=True)))


BREACHES = {
    "resumed": lambda seen: replace(seen, resumed=2),
    "lost_records": a_record_of_a_saved_rollout_is_another,
    "repeated_steps": two_steps_are_made_again,
    "repeated_episodes": two_rollouts_are_played_again,
    "twice": an_episode_is_in_two_rollouts,
    "missing_episodes": lambda seen: finally_(seen, episodes=without(seen, 11)),
    "skipped_groups": a_task_is_skipped,
    "missing_steps": lambda seen: finally_(seen, steps={0: 10, 1: 30}),
    "trained_failures": a_failure_is_trained,
    "processes": lambda seen: replace(seen, processes=("sglang::scheduler",)),
}


def test_every_promise_has_a_breach():
    assert BREACHES.keys() == PROMISES.keys()


@pytest.mark.parametrize("name", BREACHES)
def test_a_breach_is_found(seen, name):
    assert name in found(BREACHES[name](seen))


def test_a_checkpoint_that_the_fault_takes_with_it_is_found(seen):
    at_end = replace(seen.at_end, checkpoint=-1)
    everything = Left(journal((0, 1, 2), "second"), {0: 25, 1: 30, 2: 40}, 2)
    lost = found(replace(seen, at_end=at_end, finally_=everything))
    assert lost == {"lost_records", "repeated_steps", "repeated_episodes"}


def test_a_record_that_stands_there_twice_is_counted(seen):
    assert found(a_record_stands_there_twice(seen)) == {"twice"}
