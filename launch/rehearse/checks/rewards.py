"""Rewards and advantages as they follow from the episodes' records."""

from __future__ import annotations

from collections.abc import Mapping

from slime_swe.launch.rehearse.checks import Measured, worst
from slime_swe.launch.rehearse.evidence import Evidence
from slime_swe.rewards.advantages import Row, segment_advantages
from slime_swe.rewards.compose import Composition, composed
from slime_swe.rollout.records import Record, Score, trajectories

CLOSE = 1e-6


def rewards(evidence: Evidence) -> Measured:
    """The largest gap between a sample's reward and what its episode's record is worth; a sample without one counts
    as a gap of 1, and so do rewards that differ in no group, which train nothing."""
    found = records_of(evidence)
    settings = composition(evidence)
    gaps, seen = list[float](), set[tuple[int, float]]()
    for number, samples in enumerate(evidence.rollouts):
        worth = {name: _worth(evidence, parts, settings) for name, parts in by_episode(found, number).items()}
        for sample in samples:
            record = found.get((number, sample.index))
            if record is None or record.tokens != sample.tokens:
                gaps.append(1.0)
                continue
            gaps.append(abs(sample.reward - worth[sample.trajectory]))
            seen.add((sample.group, sample.reward))
    return Measured(worst(gaps) if len(seen) > len({group for group, _ in seen}) else 1.0, CLOSE)


def advantages(evidence: Evidence) -> Measured:
    """The largest gap between what trained a token and its episode's advantage, over all samples and steps."""
    found, gaps = records_of(evidence), list[float]()
    settings, divide = composition(evidence), evidence.recipe.algorithm.std_normalization
    for number, step in evidence.layout.steps.items():
        samples = evidence.rollouts[number]
        worth = {name: _worth(evidence, parts, settings) for name, parts in by_episode(found, number).items()}
        broken = {record.trajectory for record in found.values() if record.rollout_id == number and record.broken}
        rows = [
            Row(found[number, one.index].group_index, one.trajectory, worth[one.trajectory], one.trajectory in broken)
            for one in samples
        ]
        expected = segment_advantages(rows, normalize_std=divide)
        if len(expected) != len(step.samples):
            gaps.append(float("inf"))
            continue
        for value, trained in zip(expected, step.samples, strict=True):
            gaps.append(float((trained.advantages_R - value).abs().max()))
    return Measured(worst(gaps), CLOSE)


def records_of(evidence: Evidence) -> Mapping[tuple[int, int], Record]:
    """(rollout, index) -> the episode's line in the run's journal."""
    return {(record.rollout_id or 0, record.index or 0): record for record in evidence.records}


def by_episode(found: Mapping[tuple[int, int], Record], rollout: int) -> dict[int, list[Record]]:
    groups = trajectories([record for (number, _), record in found.items() if number == rollout])
    return {parts[0].trajectory or 0: parts for parts in groups}


def composition(evidence: Evidence) -> Composition:
    reward, rollout = evidence.recipe.reward, evidence.recipe.rollout
    return Composition(
        max_context=rollout.max_context,
        max_turns=rollout.max_turns,
        overlong_tokens=reward.overlong_tokens,
        overlong_turns=reward.overlong_turns,
        overlong_penalty=reward.overlong_penalty,
        mode=reward.mode,
    )


def _worth(evidence: Evidence, parts: list[Record], settings: Composition) -> float:
    """Of one episode, by its outcome and its length."""
    record = parts[0]
    if record.broken or record.episode is None:
        return 0.0
    base = 1.0 if record.solved else -1.0 if evidence.recipe.reward.mode == "plus_minus" else 0.0
    return composed(Score(record.solved, base), parts, record.episode, settings).value
