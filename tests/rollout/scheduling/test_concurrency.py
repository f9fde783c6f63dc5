"""The number of sandboxes, on a machine that bears a given number of them."""

from __future__ import annotations

import pytest

from slime_swe.rollout.scheduling.concurrency import HIGH, Concurrency


def settle(bears: int, least: int = 4, most: int = 256, rounds: int = 300) -> list[int]:
    concurrency = Concurrency(least, most)
    limits = []
    for _ in range(rounds):
        over = concurrency.limit / bears
        opening = 0.1 if over <= 1 else 0.1 * 8 * over
        limits.append(
            concurrency.observe(
                in_use=concurrency.limit, cpu_pressure=HIGH * over * 1.01, memory_pressure=0.0, opening=opening
            )
        )
    return limits


def test_it_finds_what_the_machine_bears():
    limits = settle(bears=100)
    assert max(limits[-100:]) <= 110 and min(limits[-100:]) >= 78
    assert max(limits[:10]) >= 100, "soon"


def test_it_stays_between_its_bounds():
    assert set(settle(bears=4)[-100:]) <= {4, 5}
    assert settle(bears=10_000)[-1] == 256


def full() -> Concurrency:
    concurrency = Concurrency(4, 64)
    while concurrency.limit < 64:
        concurrency.observe(in_use=concurrency.limit, cpu_pressure=0.0, memory_pressure=0.0, opening=0.1)
    return concurrency


def test_busy_processors_alone_are_no_reason_to_shrink():
    concurrency = full()
    for _ in range(50):
        concurrency.observe(in_use=64, cpu_pressure=0.9, memory_pressure=0.0, opening=0.1)
    assert concurrency.limit == 64


def test_memory_is():
    assert full().observe(in_use=64, cpu_pressure=0.0, memory_pressure=0.2, opening=None) == 51


def test_an_idle_pool_does_not_grow():
    concurrency = Concurrency(4, 64)
    concurrency.observe(in_use=2, cpu_pressure=0.0, memory_pressure=0.0, opening=0.1)
    assert concurrency.limit == 4


def test_bounds_that_cross_are_refused():
    with pytest.raises(ValueError, match="1 <= least <= most"):
        Concurrency(5, 4)
