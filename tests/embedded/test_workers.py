"""Pieces of work on several threads: in order, and never many more results than workers."""

from __future__ import annotations

import threading
import time

import pytest

from slime_swe.embedded.workers import ordered_map


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(workers):
    assert list(ordered_map(lambda x: x * x, range(20), workers)) == [x * x for x in range(20)]


def test_results_do_not_pile_up_behind_a_slow_piece():
    slow, begun = threading.Event(), []

    def work(item: int) -> int:
        begun.append(item)
        if item == 0:
            slow.wait(10)
        return item

    results = ordered_map(work, range(50), 2)
    threading.Timer(0.3, slow.set).start()
    assert next(results) == 0
    time.sleep(0.1)
    assert len(begun) <= 2 + 2
    assert list(results) == list(range(1, 50))


def test_an_error_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        list(ordered_map(lambda x: 1 // x, [1, 0, 2], 2))
