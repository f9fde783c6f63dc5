from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from slime_swe.rollout.replies import joined, part_of

SPANS = st.lists(st.tuples(st.sampled_from([None, "1", "2"]), st.integers(0, 4)))


def by_token(spans) -> list[str | None]:
    return [version for version, count in spans for _ in range(count)]


@given(SPANS)
def test_joined_spans_say_the_same_and_no_two_in_a_row_are_alike(spans):
    whole = joined(spans)
    assert by_token(whole) == by_token(spans)
    assert all(count for _, count in whole)
    assert all(one[0] != two[0] for one, two in pairwise(whole))


@given(SPANS, st.integers(0, 20), st.integers(0, 20))
def test_a_part_of_spans_is_that_of_the_tokens(spans, start, end):
    assert by_token(part_of(spans, start, end)) == by_token(spans)[start:end]
