"""The invariants that `slime_swe.embedded.train_data` states."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_swe.embedded.train_data import PackingError, build_tree, pack, split_steps

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=40), max_size=30)


@given(SEQUENCES, st.integers(40, 120), st.integers(1, 8))
def test_pack(sequences, max_tokens, min_shared):
    with patch("slime_swe.embedded.train_data.MIN_SHARED", min_shared):
        trees = pack(sequences, max_tokens)
        assert pack(sequences, max_tokens) == trees
    order = [member for tree in trees for member in tree.members]
    assert sorted(order) == [place for place, tokens in enumerate(sequences) if tokens]
    assert [sequences[member] for member in order] == sorted(tokens for tokens in sequences if tokens)
    for tree, following in zip(trees, [*trees[1:], None], strict=False):
        assert len(tree.tokens) <= min(max_tokens, sum(len(sequences[member]) for member in tree.members))
        if following is not None:
            with patch("slime_swe.embedded.train_data.MIN_SHARED", min_shared):
                wider = build_tree(sequences, [*tree.members, following.members[0]])
            assert len(wider.tokens) > max_tokens
        check_tree(tree, sequences, min_shared)


def check_tree(tree, sequences, min_shared):
    """A row's path through the spans holds exactly its sequence's tokens."""
    owner = [index for index, span in enumerate(tree.spans) for _ in range(span.length)]
    assert len(owner) == len(tree.tokens)
    for member, rows in zip(tree.members, tree.rows, strict=True):
        assert [tree.tokens[row] for row in rows] == sequences[member]
        last = owner[rows[-1]]
        path = [*tree.ancestors(last), last]
        covered = [row for i in path for row in range(tree.spans[i].start, tree.spans[i].start + tree.spans[i].length)]
        assert covered == rows
        assert [tree.spans[i].position for i in path] == [rows.index(tree.spans[i].start) for i in path]
    for index, span in enumerate(tree.spans):
        assert span.parent is None or span.parent < index
        users = sum(span.start in rows for rows in tree.rows)
        assert users == 1 or span.length >= min_shared


def test_a_shared_prefix_takes_its_rows_once():
    system, task = list(range(100, 130)), list(range(200, 230))
    sequences = [[*system, *task, 1, 2], [*system, 7], [*system, *task, 1, 3, 4], [*system, *task, 1, 2]]
    (tree,) = pack(sequences, 1000)
    assert len(tree.tokens) == 30 + 31 + 1 + 1 + 2 + 1  # the first token after the task is common too
    assert [span.parent for span in tree.spans] == [None, 0, 0, 2, 2, 2]


def test_pack_refuses_a_sample_that_fits_nowhere():
    with pytest.raises(PackingError, match=r"51 tokens exceeds max_tokens_per_gpu=50"):
        pack([[1] * 10, [1] * 51], 50)


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
