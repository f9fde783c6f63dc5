"""The invariants that `embedded.packing` states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded.packing import PackingError, pack, split_steps

LENGTHS = st.lists(st.integers(1, 50), max_size=60)


@given(LENGTHS, st.integers(50, 200))
def test_pack(lengths, max_tokens):
    batches = pack(lengths, max_tokens)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    sizes = [sum(lengths[position] for position in batch) for batch in batches]
    assert all(size <= max_tokens for size in sizes)
    assert all(first + second > max_tokens for first, second in zip(sizes, sizes[1:], strict=False))
    flat = [lengths[position] for batch in batches for position in batch]
    assert flat == sorted(lengths, reverse=True)
    assert pack(lengths, max_tokens) == batches


def test_pack_refuses_a_sample_that_fits_nowhere():
    with pytest.raises(PackingError, match=r"51 tokens exceeds max_tokens_per_gpu=50"):
        pack([10, 51], 50)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(1, 8))
def test_split_steps(rollout_ids, steps):
    distinct = list(dict.fromkeys(rollout_ids))
    if steps > len(distinct):
        with pytest.raises(PackingError):
            split_steps(rollout_ids, steps)
        return
    batches = split_steps(rollout_ids, steps)
    assert sorted(position for batch in batches for position in batch) == list(range(len(rollout_ids)))
    assert all(batch == sorted(batch) for batch in batches)
    owners = [{rollout_ids[position] for position in batch} for batch in batches]
    assert sum(len(owner) for owner in owners) == len(distinct)
    counts = [len(owner) for owner in owners]
    assert max(counts) - min(counts) <= 1


def test_split_steps_follows_the_order_of_first_appearance():
    assert split_steps([7, 7, 3, 9, 3, 1], 2) == [[0, 1, 2, 4], [3, 5]]
