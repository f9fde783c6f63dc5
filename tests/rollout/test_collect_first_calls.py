"""How many episodes without a call end a run, and in which order they count."""

from __future__ import annotations

import random

import pytest

from slime_swe.rollout.collect import FirstCalls


@pytest.mark.parametrize(("groups", "without_calls"), [(24, False), (25, True)])
def test_a_hundred_episodes_without_a_call_are_enough(groups, without_calls):
    first = FirstCalls()
    for group in range(groups):
        first.end(group, [(0, 1)] * 4)
    assert first.without_calls([]) is without_calls
    assert first.malformed == 4 * groups


def test_one_call_settles_it_for_good():
    first = FirstCalls()
    first.end(0, [(0, 0)] * 99 + [(1, 0)])
    for group in range(1, 100):
        first.end(group, [(0, 0)] * 8)
    assert first.called and not first.without_calls([])


def test_groups_count_in_the_order_in_which_they_began_whichever_ends_first():
    """A run goes on whose caller is slow: what ends before it does not count."""
    dice = random.Random(1)
    for _ in range(50):
        first, running = FirstCalls(enough=40), list(range(30))
        while running:
            group = dice.choice(running)
            running.remove(group)
            first.end(group, [(0, 0)] * 4)
            before = min(running, default=30)
            assert first.seen(running) == 4 * before
            assert first.without_calls(running) is (before >= 10)


def test_episodes_that_are_left_out_of_a_group_do_not_count():
    first = FirstCalls(enough=4)
    first.end(0, [])
    first.end(1, [(0, 0)] * 3)
    assert not first.without_calls([])
