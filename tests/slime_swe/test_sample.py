from __future__ import annotations

import base64
import dataclasses
from argparse import Namespace
from array import array

import pytest

from slime_swe.sample import OwnSample, Sample

STOP = {"finish_reason": {"type": "stop"}, "weight_version": "2", "cached_tokens": 3, "prompt_tokens": 4}


def test_appending_keeps_the_lists_aligned():
    sample = OwnSample(tokens=[1, 2])
    sample.append_response_tokens(tokens=[3, 4], log_probs=[-0.1, -0.2], text="ab", meta_info=STOP)
    sample.append_response_tokens(tokens=[5], trainable=False)
    sample.append_response_tokens(tokens=[6], log_probs=[-0.3], meta_info={"finish_reason": {"type": "length"}})
    assert (sample.tokens, sample.response, sample.response_length) == ([1, 2, 3, 4, 5, 6], "ab", 4)
    assert sample.loss_mask == [1, 1, 0, 1]
    assert sample.rollout_log_probs == [-0.1, -0.2, 0.0, -0.3]
    assert (sample.status, sample.weight_versions) == (OwnSample.Status.TRUNCATED, ["2"])
    assert sample.prefix_cache_info.prefix_cache_hit_rate == 0.75
    assert sample.effective_response_length == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": [1]}, "need log-probabilities"),
        ({"tokens": [1], "log_probs": [-1.0], "trainable": False}, "must not have"),
        ({"tokens": [1, 2], "log_probs": [-1.0]}, "2 tokens came with 1"),
    ],
)
def test_appending_refuses_what_does_not_go_together(arguments, message):
    with pytest.raises(ValueError, match=message):
        OwnSample().append_response_tokens(**arguments)


def test_a_response_without_log_probabilities_can_t_be_trained_further():
    sample = OwnSample(tokens=[1, 2], response_length=1)
    with pytest.raises(ValueError, match="can't follow"):
        sample.append_response_tokens(tokens=[3], log_probs=[-1.0])
    sample.append_response_tokens(tokens=[3], trainable=False)
    assert (sample.loss_mask, sample.rollout_log_probs) == ([1, 0], [0.0, 0.0])


def test_routed_experts_are_tables_of_layers_by_top_k():
    args = Namespace(num_layers=2, moe_router_topk=2)
    encoded = base64.b64encode(array("i", range(8)).tobytes()).decode()
    sample = OwnSample(tokens=[1, 2, 3])
    sample.append_response_tokens(args, meta_info={"routed_experts": encoded})
    assert sample.rollout_routed_experts == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    sample.tokens.append(4)
    with pytest.raises(ValueError, match="8 routed experts for 3 tokens"):
        sample.append_response_tokens(args, meta_info={"routed_experts": encoded})


def test_top_p_replay_is_refused():
    with pytest.raises(NotImplementedError, match="top-p"):
        OwnSample().append_response_tokens(meta_info={"top_p_token_ids": "AAAA"})


def test_to_dict_and_back_keeps_also_what_was_set_later():
    sample = Sample(index=3, tokens=[1], status=Sample.Status.ABORTED, metadata={"a": 1})
    sample.something = "new"
    again = Sample.from_dict(sample.to_dict())
    assert again == sample
    assert again.something == "new"


def test_the_reward_may_be_one_of_several():
    assert Sample(reward=0.5).get_reward_value(Namespace(reward_key=None)) == 0.5
    assert Sample(reward={"a": 1.0}).get_reward_value(Namespace(reward_key="a")) == 1.0


def test_the_stand_in_has_slime_s_fields_and_statuses():
    theirs = pytest.importorskip("slime.utils.types", reason="SLiME is not installed").Sample
    assert Sample is theirs
    assert [f.name for f in dataclasses.fields(theirs)] == [f.name for f in dataclasses.fields(OwnSample)]
    assert {s.name: s.value for s in theirs.Status} == {s.name: s.value for s in OwnSample.Status}
    for nested in ("SpecInfo", "PrefixCacheInfo"):
        assert getattr(theirs, nested)().to_dict() == getattr(OwnSample, nested)().to_dict()


def test_the_stand_in_appends_as_slime_does():
    theirs = pytest.importorskip("slime.utils.types", reason="SLiME is not installed").Sample
    args = Namespace(num_layers=1, moe_router_topk=1)
    samples = [theirs(tokens=[1]), OwnSample(tokens=[1])]
    for sample in samples:
        sample.append_response_tokens(args, tokens=[2, 3], log_probs=[-1, -2], text="x", meta_info=STOP)
        sample.append_response_tokens(args, tokens=[4], trainable=False)
        sample.append_response_tokens(args, tokens=[5], log_probs=[-3], meta_info={"finish_reason": {"type": "abort"}})
    one, two = (sample.to_dict() for sample in samples)
    assert one == two
