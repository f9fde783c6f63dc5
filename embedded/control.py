"""The control experiment: a run whose rewards say nothing. What it still gains is not learned from the reward."""

from __future__ import annotations

import copy
import random
from argparse import Namespace

from slime_swe.rewards.slime_plugin import post_process
from slime_swe.rollout.records import is_broken, trajectories
from slime_swe.sample import Sample


def shuffled_post_process(args: Namespace, samples: list[Sample]) -> tuple[list[float], list[float]]:
    """Rewards permuted over the batch's trajectories before the group advantage (`--custom-reward-post-process-path`).

    The permutation depends on the seed and the batch alone. What infrastructure broke keeps out of it; the raw
    rewards that are returned and logged stay the true ones.
    """
    sound = [segments for segments in trajectories(samples) if not is_broken(segments)]
    rewards = [segments[0].reward for segments in sound]
    first = min((sample.index for sample in samples if sample.index is not None), default=0)
    random.Random(f"shuffled rewards {args.seed} {first}").shuffle(rewards)
    given = {id(segment): reward for segments, reward in zip(sound, rewards, strict=True) for segment in segments}
    stand_ins = []
    for sample in samples:
        stand_in = copy.copy(sample)
        stand_in.reward = given.get(id(sample), sample.reward)
        stand_ins.append(stand_in)
    raw, _ = post_process(args, samples)
    return raw, post_process(args, stand_ins)[1]
