"""The turns of an episode's record: each says who spoke, what, when, and where its tokens are in the sample."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_swe.rollout import slime_plugin
from slime_swe.rollout.episode import UNNAMED, Call, Episode, Session, StopReason, Turn, of_episode
from slime_swe.rollout.journals import append_records, packed, read_records, unpacked
from slime_swe.rollout.proxy.conversation import Message
from slime_swe.rollout.records import to_samples
from slime_swe.sample import Sample
from tests.rollout.proxy.test_sessions import ASKED, OPENING, ask, opened, templates  # noqa: F401 - fixtures
from tests.rollout.support import END, FIX, PARAMS, SUBMIT, VIEW, call, make_sample
from tests.rollout.test_session import STEPS, said

LOOK = "I look.\n" + VIEW
TWO = call("bash", command="echo one") + "\n" + call("bash", command="echo two") + "\n<tool_call>{</tool_call>" + END


def check_turns(tokens: list[int], mask: list[int], turns: list[Turn], decode) -> None:
    """Turns stand in order and apart; the text of each is in its tokens; what is sampled is in one assistant's."""
    at = 0
    for turn in turns:
        assert at <= turn.start <= turn.end <= len(tokens) and turn.began <= turn.ended
        at = turn.end
        text = decode(tokens[turn.start : turn.end])
        if turn.end == len(tokens) == turn.start:
            continue  # the policy has not seen it
        assert (
            turn.text in text
            and turn.reasoning in text
            and all(one.name in (*text.split('"'), UNNAMED) for one in turn.calls)
        )
        if turn.role != "assistant" and turn.text:
            fewer = decode(tokens[turn.start + 1 : turn.end]), decode(tokens[turn.start : turn.end - 1])
            assert not any(turn.text in one for one in fewer), "no fewer tokens hold the text"
    for place, sampled in enumerate(mask):
        assert sampled <= sum(turn.role == "assistant" and turn.start <= place < turn.end for turn in turns) <= 1


async def test_the_native_agent_s_turns(run_with, tokenizer):
    async with run_with(LOOK, TWO, FIX, SUBMIT) as (args, _):
        sample = await slime_plugin.generate(args, make_sample(), PARAMS)
    slime_plugin.log_rollout(0, args, [sample], None, 1.0)
    (record,) = read_records(Path(args.swe_run_dir) / "episodes.jsonl")
    turns = record.turns
    mask = [0] * (len(record.tokens) - record.response_length) + record.loss_mask
    check_turns(record.tokens, mask, turns, tokenizer.decode)
    roles = "system user assistant tool assistant tool tool tool assistant tool assistant tool"
    assert [turn.role for turn in turns] == roles.split()
    assert (turns[0].text, turns[2].text) == ("Be brief.", "I look.")
    assert turns[2].calls == [Call("call_1_0", "view", '{"path":"calc.py"}')]
    assert [(turn.text, turn.call_id) for turn in turns[5:7]] == [("one", "call_2_0"), ("two", "call_2_1")]
    assert turns[7].text.startswith("Error: ") and turns[7].call_id == turns[4].calls[2].id
    assert turns[11].start == turns[11].end == len(record.tokens), "nobody has sampled anything after it"
    assert all(earlier.ended <= later.ended for earlier, later in pairwise(turns))
    assert turns[5].ended <= turns[6].began, "one call after the other"
    total = record.episode.timings.total
    assert 0 < turns[-1].ended <= total and record.episode.timings.started > 1.7e9


async def test_a_turn_that_ends_the_episode_keeps_its_results(run_with):
    async with run_with(call("bash", command="echo last") + END) as (args, _):
        args.swe_max_turns = 1
        sample = await slime_plugin.generate(args, make_sample(), PARAMS)
    *_, result = sample.metadata["turns"]
    assert (result["text"], result["start"]) == ("last", len(sample.tokens))


async def test_the_turns_of_an_agent_behind_the_proxy(opened, tokenizer):  # noqa: F811
    said_first = "I look.\n" + call("bash", command="ls", lines=3) + "\n" + call("bash", command="pwd") + END
    async with opened(said_first, "Done." + END) as (session, _):
        first = await ask(session)
        results = [Message("tool", f"out of {one.id}", call_id=one.id) for one in first.calls]
        echo = Message("assistant", first.text, first.calls)
        await ask(session, replace(ASKED, messages=(*OPENING, echo, *results)))
        (segment,) = session.session.segments()
        history = session.history()["segments"][0]
    check_turns(segment.tokens, segment.loss_mask, [*segment.turns], tokenizer.decode)
    assert [turn.role for turn in segment.turns] == ["system", "user", "assistant", "tool", "tool", "assistant"]
    assert [turn.call_id for turn in segment.turns[3:5]] == [one.id for one in segment.turns[2].calls]
    assert segment.turns[3].text == f"out of {segment.turns[2].calls[0].id}"
    assert segment.turns[3].began == segment.turns[2].ended
    assert segment.tools == ASKED.tools
    assert history["turns"][5]["text"] == "Done."


async def test_forked_histories_have_turns_of_their_own_and_the_episode_has_each_once(opened, tokenizer):  # noqa: F811
    async with opened("One." + END, "Two." + END) as (session, _):
        one = await ask(session)
        asked = (*OPENING, Message("assistant", one.text), Message("user", "Go on."))
        two = await ask(session, replace(ASKED, messages=asked))
        compacted = (Message("system", "Be brief."), Message("user", "Shortened."))
        await ask(
            session, replace(ASKED, messages=(*compacted, Message("assistant", two.text), Message("user", "And?")))
        )
        segments = session.session.segments()
    assert len(segments) == 2
    for segment in segments:
        check_turns(segment.tokens, segment.loss_mask, [*segment.turns], tokenizer.decode)
    assert [[turn.text for turn in segment.turns] for segment in segments] == [
        ["Be brief.", "Fix the bug.", "One.", "Go on.", "Two."],
        ["Be brief.", "Shortened.", "Two.", "And?", "Two."],
    ]
    spoken = of_episode([segment.turns for segment in segments])
    assert [turn.text for turn in spoken if turn.role == "assistant"] == ["One.", "Two.", "Two."]


@settings(deadline=None)
@given(STEPS)
def test_every_sampled_token_of_any_tree_is_in_one_assistant_s_turn(steps):
    session, nodes = Session(), []
    nodes.append(session.add_context([0]))
    for number, (kind, where, length) in enumerate(steps):
        if kind == "fork":
            session.fork(nodes[where % len(nodes)])
        elif kind == "context":
            nodes.append(session.add_context([number] * length))
        else:
            nodes.append(session.add_sampled(said([number] * length, [-1.0] * length)))
    for segment in session.segments():
        check_turns(segment.tokens, segment.loss_mask, [*segment.turns], lambda tokens: "")


TEXTS = st.text(alphabet="ab\né🙂", max_size=60)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=6), TEXTS)
def test_what_is_packed_is_unpacked(texts, between):
    turns = [{"role": "user", "text": text, "reasoning": thought} for text, thought in texts]
    response = between.join(thought + text for text, thought in texts)
    short = packed(turns, response)
    assert unpacked(short, response) == turns
    assert all(isinstance(one["text"], list) for one in short if len(one["text"]) >= 24 and one["text"] in response)


def test_half_a_surrogate_pair_moves_no_text(tmp_path):
    """A policy can write one; JSON can't hold it, so that it is escaped in the journal."""
    texts = ["a" * 30, "b" * 30]
    turns = [{"role": "assistant", "text": text, "start": 0, "end": 0} for text in texts]
    sample = Sample(index=0, response="\ud800" + "".join(texts), metadata={"turns": turns})
    append_records(tmp_path / "episodes.jsonl", [sample])
    assert b'"text":[' in (tmp_path / "episodes.jsonl").read_bytes(), "or the test shows nothing"
    (record,) = read_records(tmp_path / "episodes.jsonl")
    assert [turn.text for turn in record.turns] == texts


@pytest.mark.parametrize("length", [0, 3, 4, 9])
def test_a_sample_s_turns_end_where_it_does(length):
    """Context after the last sampled token is cut off. A turn that nobody has read gets the text of its tokens."""
    session = Session()
    session.add_context([1, 2])
    session.add_sampled(said([3, 4], [-0.5, -0.5]))
    session.add_context([5] * length, [Turn("tool", "shown", 0, length)] if length else ())
    (segment,) = session.segments()
    episode = Episode("calc-1", (segment,), "", StopReason.SUBMITTED)
    (sample,) = to_samples(object(), make_sample(), episode, lambda tokens: f"{tokens}", placeholder=0)
    turns = [(turn["text"], turn["start"], turn["end"]) for turn in sample.metadata["turns"]]
    assert turns == [("[1, 2]", 0, 2), ("[3, 4]", 2, 4), *([("shown", 4, 4)] if length else [])]
