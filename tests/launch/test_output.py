"""Sparklines, durations and rates."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from slime_swe.launch.output import BLOCKS, duration, rate, sparkline


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.integers(1, 50))
def test_a_sparkline_is_no_wider_than_asked(values, width):
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    assert set(line) <= set(BLOCKS)


def test_a_sparkline_rises_with_its_values():
    assert sparkline(range(8), 8) == BLOCKS
    assert sparkline([1, 1, 1], 8) == BLOCKS[0] * 3
    assert sparkline([0, 0, 10, 10], 2) == BLOCKS[0] + BLOCKS[-1]


def test_a_sparkline_leaves_out_what_is_no_number():
    assert sparkline([0.0, math.nan, 1.0, math.inf], 9) == BLOCKS[0] + BLOCKS[-1]
    assert sparkline([], 9) == ""


def test_durations():
    assert [duration(seconds) for seconds in (0, 59.9, 60, 3605, 3661)] == ["0 s", "59 s", "1:00", "1:00:05", "1:01:01"]


def test_rates():
    assert rate(0.8123, (0.74, 0.869)) == "81.2 % (74.0–86.9)"
    assert rate(1.0) == "100.0 %"
    assert rate(None) == "–"
