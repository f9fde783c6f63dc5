"""Which tokens are trained, and what their sums are divided by."""

from __future__ import annotations

from collections import Counter

from slime_swe.launch.rehearse.checks import Measured
from slime_swe.launch.rehearse.checks.rewards import records_of
from slime_swe.launch.rehearse.evidence import Evidence


def masks(evidence: Evidence) -> Measured:
    """Tokens that are trained though the policy did not sample them, or not trained though it did: by the episode's
    record, by the server's weight versions, and in what the trainer has."""
    found, wrong = records_of(evidence), 0
    for number, samples in enumerate(evidence.rollouts):
        step = evidence.layout.steps.get(number)
        for place, sample in enumerate(samples):
            record = found.get((number, sample.index))
            sampled = [int(version is not None) for version in sample.versions_R()]
            kept = [0] * sample.length if sample.removed else sampled
            wrong += _apart(sample.mask_R, sampled) + _apart(record.loss_mask if record else None, sampled)
            if step is not None:
                wrong += _apart(step.samples[place].mask_R if place < len(step.samples) else None, kept)
    return Measured(wrong, 0)


def denominators(evidence: Evidence) -> Measured:
    """Samples that the trainer lacks, whose denominator is not their episode's number of trained tokens, or that are in
    no micro-batch or in several, and steps that are divided by another number of episodes than they have."""
    wrong = 0
    for number, step in evidence.layout.steps.items():
        samples = evidence.rollouts[number]
        sums = Counter[int]()
        for sample in samples:
            sums[sample.trajectory] += 0 if sample.removed else sum(sample.mask_R)
        wrong += abs(len(samples) - len(step.samples))
        pairs = zip(samples, step.samples, strict=False)
        wrong += sum(abs(trained.mask_sum - sums[sample.trajectory]) > 0.5 for sample, trained in pairs)
        placed = Counter(
            shard.places[inner] for shard in step.shards for batch in shard.micro_batches for inner in batch
        )
        wrong += sum(placed[place] != 1 for place in range(len(samples)))
        wrong += abs(sum(step.batch_sizes) - len(sums))
    return Measured(wrong, 0)


def _apart(one: list[int] | None, other: list[int]) -> int:
    if one is None or len(one) != len(other):
        return len(other)
    return sum(a != b for a, b in zip(one, other, strict=True))
