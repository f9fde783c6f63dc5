from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rollout.support import said

from slime_swe.rollout.session import Node, Session


def test_a_chain_is_one_segment_with_the_policy_s_tokens_masked_in():
    session = Session()
    session.add_context([1, 2, 3])
    session.add_sampled(said([4, 5], [-0.1, -0.2], weight_version="7", routed_experts="first"))
    session.add_context([6])
    session.add_sampled(said([7], [-0.3], weight_version="8", routed_experts="whole"))
    (segment,) = session.segments()
    assert segment.tokens == [1, 2, 3, 4, 5, 6, 7]
    assert segment.loss_mask == [0, 0, 0, 1, 1, 0, 1]
    assert segment.log_probs == [0, 0, 0, -0.1, -0.2, 0, -0.3]
    assert segment.prompt_length == 3
    assert segment.weight_versions == ("7", "8")
    assert segment.routed_experts == "whole"


def test_a_rewritten_history_forks_and_trains_each_token_once():
    session = Session()
    session.add_context([1])
    first = session.add_sampled(said([2], [-0.1]))
    session.add_context([3])
    session.add_sampled(said([4], [-0.2]))
    session.fork(first)
    session.add_context([5])
    session.add_sampled(said([6], [-0.3]))
    one, two = session.segments()
    assert (one.tokens, one.loss_mask) == ([1, 2, 3, 4], [0, 1, 0, 1])
    assert (two.tokens, two.loss_mask) == ([1, 2, 5, 6], [0, 0, 0, 1])
    assert two.log_probs == [0, 0, 0, -0.3]
    assert one.prompt_length == two.prompt_length == 1


def test_what_was_never_sampled_makes_no_segment():
    session = Session()
    assert session.segments() == ()
    session.add_context([1, 2])
    assert session.segments() == ()


def test_sampling_needs_a_prompt_and_a_log_probability_for_each_token():
    session = Session()
    with pytest.raises(ValueError, match="need a prompt"):
        session.add_sampled(said([1], [-0.1]))
    session.add_context([1])
    with pytest.raises(ValueError, match="2 sampled tokens came with 1"):
        session.add_sampled(said([1, 2], [-0.1]))


STEPS = st.lists(st.tuples(st.sampled_from(["context", "sample", "fork"]), st.integers(0, 9), st.integers(1, 3)))


@settings(deadline=None)
@given(STEPS)
def test_every_sampled_token_is_trained_exactly_once(steps):
    session, fresh, nodes, sampled = Session(), count(1), [], []
    nodes.append(session.add_context([0]))
    for kind, where, length in steps:
        tokens = [next(fresh) for _ in range(length)]
        if kind == "fork":
            session.fork(nodes[where % len(nodes)])
        elif kind == "context":
            nodes.append(session.add_context(tokens))
        else:
            nodes.append(session.add_sampled(said(tokens, [-float(token) for token in tokens])))
            sampled += tokens
    trained = []
    for segment in session.segments():
        lengths = {len(segment.tokens), len(segment.loss_mask), len(segment.log_probs)}
        assert len(lengths) == 1
        assert not any(segment.loss_mask[: segment.prompt_length])
        for token, mask, log_prob in zip(segment.tokens, segment.loss_mask, segment.log_probs, strict=True):
            assert log_prob == (-token if mask else 0)
            trained += [token] * mask
    assert sorted(trained) == sorted(sampled)


@settings(deadline=None)
@given(STEPS)
def test_every_segment_is_a_path_from_a_root(steps):
    session = Session()
    nodes: list[Node] = [session.add_context([0])]
    for number, (kind, where, _) in enumerate(steps, 1):
        if kind == "fork":
            session.fork(nodes[where % len(nodes)])
        else:
            nodes.append(session.add_sampled(said([number], [-1.0])))
    paths = [[token for node in node.path() for token in node.tokens] for node in nodes]
    assert all(segment.tokens in paths for segment in session.segments())


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_the_encoded_path_of_every_node_is_its_tokens_as_json(steps):
    session = Session()
    nodes = [session.add_context([7])]
    for number, (kind, at, size) in enumerate(steps):
        if kind == "fork":
            session.fork(nodes[at % len(nodes)])
        nodes.append(session.add_context([number] * (size - 1)))
        if kind == "sample":  # asked for now and then, in whatever order
            assert _joined(nodes[at % len(nodes)]) == _tokens(nodes[at % len(nodes)])
    assert [_joined(node) for node in nodes] == [_tokens(node) for node in nodes]


def _joined(node: Node) -> str:
    return b"".join(node.encoded_path()).decode()


def _tokens(node: Node) -> str:
    return "".join(f"{token}," for each in node.path() for token in each.tokens)
