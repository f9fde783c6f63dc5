"""The samples of a rehearsal: their masks, rewards, end tokens, experts, weight versions and log-probabilities."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping

from torch import Tensor, cat, tensor

from slime_swe.launch.rehearse.checks import Measured, NotMadeError, worst
from slime_swe.launch.rehearse.evidence import Evidence, Rolled, vocabulary_of
from slime_swe.recipes.rules import at_once, staleness
from slime_swe.rewards.advantages import Row, segment_advantages
from slime_swe.rewards.compose import Composition, composed
from slime_swe.rollout.records import Record, Score, trajectories


def masks(evidence: Evidence) -> Measured:
    """Count tokens that are trained though the policy did not sample them, or not trained though it did: by the
    episode's record, by the server's weight versions, and in what the trainer has."""
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


# Rewards and advantages as they follow from the episodes' records.
CLOSE = 1e-6


def rewards(evidence: Evidence) -> Measured:
    """Find the largest gap between a sample's reward and what its episode's record is worth; a sample without one
    counts as a gap of 1, and so do rewards that differ in no group, which train nothing."""
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
    """Find the largest gap between what trained a token and its episode's advantage, over all samples and steps."""
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
    """Map (rollout, index) to the episode's line in the run's journal."""
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
    """Return what one episode is worth, by its outcome and its length."""
    record = parts[0]
    if record.broken or record.episode is None:
        return 0.0
    base = 1.0 if record.solved else -1.0 if evidence.recipe.reward.mode == "plus_minus" else 0.0
    return composed(Score(record.solved, base), parts, record.episode, settings).value


def denominators(evidence: Evidence) -> Measured:
    """Count samples that the trainer lacks, whose denominator is not their episode's number of trained tokens, or that
    are in no micro-batch or in several, and how far the divisors of steps are from their numbers of episodes."""
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


# Tokens: what ends a turn, and how many the model has.
def ends(evidence: Evidence) -> Measured:
    """Count stop tokens of the chat template that the checkpoint's files do not name, and replies that neither end in
    one nor are as long as they may be."""
    named = set[int]()
    for file in ("config.json", "generation_config.json"):
        given = json.loads((evidence.toy / file).read_text(encoding="utf-8")).get("eos_token_id")
        named |= set(given if isinstance(given, list) else [given])
    wrong = len(set(evidence.ends) - named)
    for samples in evidence.rollouts:
        wrong += sum(_unended(evidence, sample) for sample in samples)
    return Measured(wrong, 0)


def vocabulary(evidence: Evidence) -> Measured:
    """Count the rows that Megatron pads the vocabulary with, and tokens beyond it."""
    rows, parallel = vocabulary_of(evidence.config), evidence.recipe.parallel
    asked = int(evidence.asked["vocab_size"])
    unit = int(evidence.asked["make_vocab_size_divisible_by"]) * parallel.tp
    padding = -asked % unit
    held = evidence.layout.arguments.get("padded_vocab_size")
    if held is not None:
        padding = max(padding, int(held) - rows)
    beyond = sum(token >= rows for samples in evidence.rollouts for sample in samples for token in sample.tokens)
    return Measured(abs(asked - rows) + padding + beyond, 0)


def _unended(evidence: Evidence, sample: Rolled) -> int:
    start, wrong, length = len(sample.tokens) - sample.length, 0, 0
    for at, version in enumerate(sample.versions_R()):
        length = length + 1 if version is not None else 0
        following = sample.versions_R()[at + 1] if at + 1 < sample.length else None
        if version is not None and following is None:
            ended = sample.tokens[start + at] in evidence.ends or length % evidence.recipe.rollout.max_response == 0
            wrong += not ended and len(sample.tokens) < evidence.recipe.rollout.max_context
    return wrong


# Experts: the trainer must send tokens to those that they went to in the rollout.
def tables(evidence: Evidence) -> Measured:
    """Return the share of tokens and layers whose experts are those that Transformers' router chooses with the weights
    that sampled. Experts of context that an older version has read are its own, and are left out. It is 0 where a
    version is none of the run's."""
    _require(evidence)
    if evidence.unknown_versions:
        return Measured(0.0, evidence.limits.experts, at_least=True)
    equal = total = 0
    for (rollout, place, version), forward in evidence.forwards.items():
        sample = evidence.rollouts[rollout][place]
        rows = len(sample.tokens) - 1
        if {name for name in sample.versions_R() if name} != {str(version)}:
            continue
        if sample.experts is None or sample.experts.shape[0] != rows:
            return Measured(0.0, evidence.limits.experts, at_least=True)
        for layer, chosen in forward.experts.items():
            ours, theirs = sample.experts[:, layer].sort(-1)[0], chosen[:rows].sort(-1)[0]
            equal += int((ours == theirs).all(-1).sum())
            total += rows
    return Measured(equal / max(total, 1), evidence.limits.experts, at_least=True)


def replayed(evidence: Evidence) -> Measured:
    """Count samples without a table of experts, and 1 for a trainer whose log does not say that it replays them."""
    _require(evidence)
    missing = sum(sample.experts is None for samples in evidence.rollouts for sample in samples)
    missing += evidence.layout.arguments.get("use_rollout_routing_replay") != "True"
    return Measured(missing, 0)


def _require(evidence: Evidence) -> None:
    if evidence.recipe.algorithm.routing_replay != "rollout":
        raise NotMadeError("the recipe does not replay the server's routing")


# Versions of the weights that sampled.
def versions(evidence: Evidence) -> Measured:
    """Count sampled tokens whose weights are newer than those that train them, or older than the schedule allows; and
    those of no version, or of one that is no number. SLiME calls the weights that have seen n steps n + 1."""
    recipe = evidence.recipe
    bound = staleness(recipe) if recipe.rollout.schedule in ("carry", "continuous") else int(at_once(recipe))
    wrong = 0
    for number, samples in enumerate(evidence.rollouts):
        for sample in samples:
            for bit, version in zip(sample.mask_R, sample.versions_R(), strict=True):
                if bit and not (version and version.isdecimal() and 0 <= number + 1 - int(version) <= bound):
                    wrong += 1
    return Measured(wrong, 0)


# A token's probability by the server, by the trainer and by Transformers.
def before_updates(evidence: Evidence) -> Measured:
    """Find the gap between trainer and server over sampled tokens, where both have the same weights: in the first
    rollout, and in each one where sampling waits for the update. Where nothing serves, Transformers is the server."""
    figures = []
    for number, step in evidence.layout.steps.items():
        if number and (at_once(evidence.recipe) or evidence.skipped):
            continue
        if len(evidence.rollouts[number]) != len(step.samples):
            figures.append(float("inf"))
            continue
        pairs = zip(evidence.rollouts[number], step.samples, strict=True)
        gaps = [(trained.log_probs_R - tensor(rolled.log_probs_R))[rolled.sampled] for rolled, trained in pairs]
        figures.append(evidence.limits.over(cat(gaps)))
    return Measured(worst(figures), evidence.limits.log_probability)


def after_updates(evidence: Evidence) -> Measured:
    """Find the gap between the server and Transformers, which has the weights that SLiME exported for the version that
    the server names. It is infinite where the server names a version that was not exported."""
    if evidence.unknown_versions:
        return Measured(float("inf"), evidence.limits.log_probability)
    gaps = defaultdict[int, list[Tensor]](list)
    for (rollout, place, version), forward in evidence.forwards.items():
        sample = evidence.rollouts[rollout][place]
        start = len(sample.tokens) - sample.length
        places = [at for at, name in enumerate(sample.versions_R()) if name == str(version)]
        gaps[version].append((forward.log_probs_T[start - 1 :] - tensor(sample.log_probs_R))[places])
    figures = [evidence.limits.over(cat(found)) for found in gaps.values()]
    return Measured(worst(figures), evidence.limits.log_probability)
