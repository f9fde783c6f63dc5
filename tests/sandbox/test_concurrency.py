"""The number of sandboxes, on a machine that bears a given number of them."""

from __future__ import annotations

import pytest

from slime_swe.sandbox.pool import Concurrency


def settle(bears: int, least: int = 4, most: int = 256, rounds: int = 300) -> list[int]:
    concurrency = Concurrency(least, most)
    concurrency.opened("image", 0.5)
    limits = []
    for _ in range(rounds):
        in_use = concurrency.limit
        concurrency.opened("image", 0.5 if in_use <= bears else 8.0)
        limits.append(concurrency.observe(in_use=in_use, cpu_pressure=in_use / bears, memory_pressure=0.0))
    return limits


def test_it_finds_what_the_machine_bears():
    limits = settle(bears=100)
    assert max(limits[-100:]) <= 110 and min(limits[-100:]) >= 78
    assert limits[10] <= 110, "soon"


def test_it_stays_between_its_bounds():
    assert set(settle(bears=3)[-100:]) == {4}
    assert set(settle(bears=10_000)) == {256}


@pytest.mark.parametrize(
    ("cpu", "memory", "seconds", "limit"),
    [
        (0.9, 0.0, 0.1, 64),  # busy processors alone are no reason
        (0.0, 0.0, 9.0, 64),  # nor is a slow disk
        (0.9, 0.0, 0.2, 64),  # nor are sandboxes that open in no time, however quick others were
        (0.9, 0.0, 9.0, 51),
        (0.0, 0.2, 0.1, 51),  # memory is
    ],
)
def test_what_is_a_reason_to_shrink(cpu: float, memory: float, seconds: float, limit: int):
    concurrency = Concurrency(4, 64)
    for taken in (0.01, seconds, seconds):
        concurrency.opened("image", taken)
    assert concurrency.observe(in_use=64, cpu_pressure=cpu, memory_pressure=memory) == limit


def test_an_image_is_compared_with_itself():
    concurrency = Concurrency(4, 64)
    for kind, seconds in (("light", 0.1), ("new", 60.0), ("with a setup", 9.0), ("with a setup", 9.0)):
        concurrency.opened(kind, seconds)
    assert concurrency.observe(in_use=64, cpu_pressure=0.9, memory_pressure=0.0) == 64


def test_it_shrinks_again_when_so_few_are_in_use():
    concurrency = Concurrency(4, 64)
    found = [
        concurrency.observe(in_use=in_use, cpu_pressure=0.0, memory_pressure=0.5)
        for in_use in (64, 64, 64, 60, 52, 51, 51)
    ]
    assert found == [51, 51, 51, 51, 51, 40, 40]


def test_it_shrinks_from_what_is_in_use_and_grows_only_if_all_are():
    concurrency = Concurrency(4, 64)
    assert concurrency.observe(in_use=30, cpu_pressure=0.0, memory_pressure=0.5) == 24
    assert concurrency.observe(in_use=10, cpu_pressure=0.0, memory_pressure=0.0) == 24
    assert concurrency.observe(in_use=24, cpu_pressure=0.0, memory_pressure=0.0) == 25


def test_while_processors_are_short_it_grows_only_if_sandboxes_open_quickly():
    concurrency = Concurrency(4, 64)
    concurrency.observe(in_use=64, cpu_pressure=0.0, memory_pressure=0.5)

    def observe() -> int:
        return concurrency.observe(in_use=51, cpu_pressure=0.9, memory_pressure=0.0)

    assert observe() == 51
    concurrency.opened("image", 0.1)
    assert observe() == 54


def test_bounds_that_cross_are_refused():
    with pytest.raises(ValueError, match="1 <= least <= limit <= most"):
        Concurrency(5, 4)
