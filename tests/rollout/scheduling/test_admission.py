"""How many episodes play at once: as many as the engines' caches hold by the plan, then by what they keep and lose."""

from __future__ import annotations

import pytest

from slime_swe.rollout.scheduling.admission import Admission, Bounds, bounds


def ends(admission: Admission, episodes: int, lost: float) -> list[int]:
    """The limit after each of so many episodes, of which engines lost that share of their earlier turns."""
    limits = []
    for _ in range(episodes):
        admission.end(in_use=admission.limit, known=1000, lost=round(1000 * lost))
        limits.append(admission.limit)
    return limits


@pytest.mark.parametrize(
    ("an_engine", "cached", "engines", "expected"),
    [
        (100, 24.9, 4, Bounds(50, 99, 400)),  # the caches are what is short
        (16, 24.9, 4, Bounds(32, 64, 64)),  # a stated concurrency is a cap
        (128, 0.0, 2, Bounds(256, 256, 256)),  # nothing is known of a cache
        (4, 0.3, 1, Bounds(1, 1, 4)),  # one episode runs in any case
    ],
)
def test_a_run_begins_with_what_the_caches_hold_and_a_stated_number_is_a_cap(an_engine, cached, engines, expected):
    assert bounds(an_engine, cached, engines) == expected


def test_lost_prefixes_lower_it_to_half_and_no_further():
    limits = ends(Admission(Bounds(50, 100, 400)), 200, lost=0.4)
    assert limits[:24] == [100] * 24, "a quarter of the limit ends first"
    assert limits[24] == 80 and limits[24 + 20] == 64, "a fifth at a time"
    assert limits[-1] == min(limits) == 50


def test_room_raises_it_to_the_most_and_no_further():
    limits = ends(Admission(Bounds(50, 100, 400)), 3000, lost=0.0)
    assert limits[24] == 106 and limits == sorted(limits) and limits[-1] == 400


def test_it_comes_to_rest_beside_what_the_caches_hold():
    """Of engines whose caches hold 130 episodes, and lose in proportion to what is too much."""
    admission, limits = Admission(Bounds(50, 100, 400)), []
    for _ in range(4000):
        limits += ends(admission, 1, lost=max(0.0, 1 - 130 / admission.limit))
    assert min(limits[1000:]) >= 100 and max(limits[1000:]) <= 170
    again = Admission(Bounds(50, 100, 400))
    assert [limit for _ in limits for limit in ends(again, 1, max(0.0, 1 - 130 / again.limit))] == limits


def test_between_the_two_and_where_nothing_is_known_it_stays():
    assert {*ends(Admission(Bounds(50, 100, 400)), 200, lost=0.1)} == {100}
    first_turns = Admission(Bounds(5, 10, 40))
    for _ in range(100):
        first_turns.end(in_use=10, known=0, lost=0)
    assert first_turns.limit == 10


def test_it_does_not_grow_while_some_are_not_in_use():
    admission = Admission(Bounds(50, 100, 400))
    for _ in range(100):
        admission.end(in_use=60, known=1000, lost=0)
    assert admission.limit == 100


def test_what_was_played_beside_more_than_are_admitted_now_lowers_it_no_further():
    admission = Admission(Bounds(20, 100, 400))
    for _ in range(25):
        admission.end(in_use=100, known=1000, lost=900)
    assert admission.limit == 80
    for _ in range(90):
        admission.end(in_use=100, known=1000, lost=900)
    assert admission.limit == 80
    for _ in range(20):
        admission.end(in_use=80, known=1000, lost=900)
    assert admission.limit == 64


def test_a_fixed_number_stays_whatever_is_lost():
    assert {*ends(Admission(bounds(128, 0.0, 1)), 500, lost=0.9)} == {128}
