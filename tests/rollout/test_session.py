from __future__ import annotations

import tracemalloc
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_swe.rollout import scripted
from slime_swe.rollout.client import EngineClient
from slime_swe.rollout.episode import Node, Session
from slime_swe.rollout.scripted import Request, ScriptedEngine, scripted_engine
from tests.rollout.support import said


def test_a_chain_is_one_segment_with_the_policy_s_tokens_masked_in():
    session = Session()
    session.add_context([1, 2, 3])
    session.add_sampled(said([4, 5], [-0.1, -0.2], version="7", routed_experts=b"0123"))
    session.add_context([6])
    session.add_sampled(said([7], [-0.3], version="8", routed_experts=b"45", experts_from=4))
    (segment,) = session.segments()
    assert segment.tokens == [1, 2, 3, 4, 5, 6, 7]
    assert segment.loss_mask == [0, 0, 0, 1, 1, 0, 1]
    assert segment.log_probs == [0, 0, 0, -0.1, -0.2, 0, -0.3]
    assert segment.prompt_length == 3
    assert segment.weight_versions == ["7", "8"]
    assert segment.version_spans == ((None, 3), ("7", 2), (None, 1), ("8", 1))
    assert b"".join(segment.routed_experts) == b"012345"


def test_what_an_engine_has_computed_is_the_prompt_of_the_last_turn_of_its_weights_on_the_path():
    session = Session()
    root = session.add_context([1, 2, 3])
    assert root.computed_by("7") == 0
    first = session.add_sampled(said([4, 5], [-0.1, -0.2], version="7"))
    assert first.computed_by("7") == 3 and first.computed_by("8") == 0
    context = session.add_context([6, 7])
    assert context.computed_by("7") == 3
    assert session.add_sampled(said([8], [-0.3], version="8")).computed_by("8") == 7
    session.fork(context)
    other = session.add_context([9])
    assert other.computed_by("7") == 3 and other.computed_by("8") == 0, "that is on another branch"


def test_branches_share_the_routed_experts_of_what_they_have_in_common():
    session = Session()
    session.add_context([1, 2])
    first = session.add_sampled(said([3, 4], [-0.1, -0.1], routed_experts=b"012"))
    for tokens, table in (([5], b"345"), ([6, 7], b"3efg")):
        session.fork(first)
        context = session.add_context(tokens)
        assert context.experts_end == first.experts_end == 3
        session.add_sampled(said([8, 9], [-0.1, -0.1], routed_experts=table, experts_from=context.experts_end))
    one, two = session.segments()
    assert (one.routed_experts, two.routed_experts) == ((b"012", b"345"), (b"012", b"3efg"))
    assert one.routed_experts[0] is two.routed_experts[0]


async def test_fifty_turns_hold_no_more_than_their_table_of_routed_experts_needs(tokenizer):
    turns, per_token, added = 50, 48 * 8, 160  # of Qwen3-30B-A3B; tokens that each prompt, and each turn, adds

    def say(engine: ScriptedEngine, asked: Request) -> list[int]:
        return [1] * added

    async with (
        scripted_engine(tokenizer, say, experts=lambda start, end: bytes(4 * per_token * (end - start))) as engine,
        EngineClient(engine.url, max_body=1 << 30, experts_per_token=per_token) as client,
    ):
        engine.remember = False
        tracemalloc.start()
        session = Session()
        for _ in range(turns):
            node = session.add_context([2] * added)
            params = {"max_new_tokens": added, "stop_token_ids": []}
            session.add_sampled(await client.generate(node.encoded_path(), params, experts_from=node.experts_end))
        (segment,) = session.segments()
        taken = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, scripted.__file__)])
        tracemalloc.stop()
    held = sum(trace.size for trace in taken.traces)
    needed = 4 * per_token * (len(segment.tokens) - 1)
    assert len(segment.tokens) == 16_000
    assert sum(map(len, segment.routed_experts)) == needed
    assert held < 1.5 * needed


def test_routed_experts_that_leave_a_gap_are_refused():
    session = Session()
    session.add_context([1, 2, 3])
    with pytest.raises(ValueError, match="from 2 on, and those before 0 are known"):
        session.add_sampled(said([4], [-0.1], routed_experts=b"2", experts_from=2))


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
            nodes.append(session.add_sampled(said(tokens, [-float(token) for token in tokens], str(tokens[0]))))
            sampled += tokens
    trained = []
    for segment in session.segments():
        lengths = {len(segment.tokens), len(segment.loss_mask), len(segment.log_probs)}
        assert len(lengths) == 1
        by_token = [version for version, count in segment.version_spans for _ in range(count)]
        assert [int(version is not None) for version in by_token] == segment.loss_mask
        assert all(version is None or int(version) <= t for version, t in zip(by_token, segment.tokens, strict=True))
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
