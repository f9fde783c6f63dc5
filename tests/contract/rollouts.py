"""Rollouts as our plug-ins hand them over, made up."""

from __future__ import annotations

from slime_swe.rollout.episode import Episode, Segment, StopReason
from slime_swe.rollout.records import to_samples

GROUP = 4


def segment(length, prompt=3):
    sampled = [0] * prompt + [(i + 1) % 2 for i in range(length - prompt)]
    log_probs = [-0.5 * mask for mask in sampled]
    return Segment(list(range(1, length + 1)), sampled, log_probs, prompt, (("1", length),))


def play(index, reason=StopReason.SUBMITTED, segments=1, reward=0.0, masked=()):
    """What `slime_swe.rollout.slime_plugin.generate` returns for such an episode, scored."""
    from slime_swe.sample import Sample

    sample = Sample(group_index=index // GROUP, index=index, rollout_id=index, prompt="p", metadata={"task": {}})
    episode = Episode("t", tuple(segment(8 + number) for number in range(segments)), "", reason)
    made = to_samples(None, sample, episode, str, placeholder=0, masked=masked)
    for part in made:
        if part.reward is None:
            part.reward = reward
    return made[0] if len(made) == 1 else made


def a_rollout():
    """Two groups: one with a fan-out, a truncated and a broken episode; one whose episodes had no turn at all."""
    first = [
        play(0, segments=3, reward=1.0),
        play(1, StopReason.MAX_TURNS, reward=-1.0),
        play(2, StopReason.SANDBOX_ERROR),
        play(3, reward=-1.0),
    ]
    second = [play(index, segments=0 if index == 5 else 1, reward=1.0 if index == 4 else -1.0) for index in range(4, 8)]
    return [first, second]


def flat(groups):
    return [part for group in groups for item in group for part in (item if isinstance(item, list) else [item])]


def a_masked_rollout(masked):
    """A group that holds one solved, one failed and two truncated episodes, one of which in two segments."""
    return [
        play(0, reward=1.0),
        play(1, reward=-1.0),
        play(2, StopReason.MAX_TURNS, segments=2, reward=-1.0, masked=masked),
        play(3, StopReason.TIME_BUDGET, reward=-1.0, masked=masked),
    ]
