"""Recorded scores under another `reward.mode` or other components."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

import msgspec

from slime_swe.fields import read_arguments
from slime_swe.recipes.base import Reward
from slime_swe.rewards.compose import OVERLONG, Composition, composed, weights_in_use
from slime_swe.rewards.grade import value_of
from slime_swe.rollout.records import Record, Score


def rescored(segments: Sequence[Record], args: Namespace, own: Reward, other: Reward) -> list[Record]:
    """An episode's records with the reward that it would have had; the recorded one where it has no score."""
    score, episode = segments[0].score, segments[0].episode
    if score is None or episode is None or own == other:
        return [*segments]
    new = composed(_bare(score, own, other), segments, episode, read_arguments(Composition, args))
    return [msgspec.structs.replace(segment, score=new, reward=new.value) for segment in segments]


def _bare(score: Score, own: Reward, other: Reward) -> Score:
    """The outcome's score, without the components that the run had."""
    windows = {name: getattr(own, name) for name in OVERLONG}
    names = weights_in_use(own.weights, windows, own.overlong_penalty)
    components = {name: part for name, part in score.components.items() if name not in names}
    if own.mode != other.mode:
        value = value_of(other.mode, score.solved)
    elif own.mode == "fraction" and "quality" in score.evidence:
        value = score.evidence["quality"]
    else:  # rounded, so that what was equal before components were added is equal again
        value = round(score.value - sum(score.components.get(name, 0.0) for name in names), 12)
    return msgspec.structs.replace(score, value=value, components=components)
