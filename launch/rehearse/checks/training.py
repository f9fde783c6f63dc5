"""What the trainer made of the samples: its arguments, memory and loss, the recipe's layout of ranks beside one rank on
the same rollouts, and what it writes and reads again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slime_swe.launch.plan.training import layout_of, shard
from slime_swe.launch.rehearse.checks import Measured, NotMadeError, worst
from slime_swe.launch.rehearse.evidence import Evidence, Step, Trained, read_weights, same

# The arguments that SLiME and Megatron hold, compared with those that the recipe asked for.
SERVERS = "sglang_"  # how names of attributes begin that are there where a server is
IMPLIED = ("use_routing_replay",)  # SLiME sets it with --use-rollout-routing-replay


def arguments(evidence: Evidence) -> Measured:
    """Count attributes that have another value in the trainer than the recipe gave them, or none."""
    held = evidence.layout.arguments
    if not held:
        raise LookupError("the trainer's log holds no table of its arguments")
    wrong = sum(
        value is not None
        and name not in IMPLIED
        and not (evidence.skipped and name.startswith(SERVERS))
        and not _says(held.get(name), value)
        for name, value in evidence.asked.items()
    )
    return Measured(wrong, 0)


def _says(text: str | None, value: Any) -> bool:
    """Say whether a text of Megatron's table is this value of an attribute."""
    if text is None:
        return False
    if isinstance(value, bool):
        return text == str(value)
    if isinstance(value, int | float):
        try:
            return float(text) == float(value)
        except ValueError:
            return text == f"[{value}]"
    if isinstance(value, list | tuple):
        return "".join(text.split()).strip("[]").replace("'", "") == ",".join(map(str, value)).strip("[]")
    return text.rpartition(".")[2] == str(value) or text == str(value)


# The parameters that a rank holds, compared with the planner's count.
def memory(evidence: Evidence) -> Measured:
    """Find the largest share by which the parameters of a rank, as Megatron counts them, differ from the planner's.

    Weights, gradients and optimizer states are multiples of these. Each rank of tensor and pipeline parallelism is
    looked at.
    """
    counted = evidence.layout.parameters
    ways = evidence.recipe.parallel
    if missing := {*product(range(ways.tp), range(ways.pp))} - counted.keys():
        raise LookupError(f"the trainer's log does not say how many parameters ranks {sorted(missing)} have")
    layout = layout_of(evidence.recipe)
    planned = {stage: shard(evidence.recipe.model.shape, layout, stage).parameters for _, stage in counted}
    return Measured(worst(abs(found / planned[stage] - 1) for (_, stage), found in counted.items()), 0.0)


# The loss that SLiME reports, computed anew from what the trainer had of each sample.
PG_LOSS, GAPS = "train/pg_loss", "train/train_rollout_logprob_abs_diff"
SMALL = 1e-9  # shares of what is 0 are taken of this


def loss(evidence: Evidence) -> Measured:
    """Find a step's largest difference, where a rollout is one optimizer step and the ratio to the old policy is 1.

    It is that of the loss, as a share of the sum of its terms' sizes, or that of the mean gap between trainer and
    server, as a share of itself. SLiME weighs the tokens of both alike, and gaps do not cancel: a loss by episodes is
    all but 0, so that a factor shows in the gap alone.
    """
    algorithm = evidence.recipe.algorithm
    if algorithm.steps_per_rollout > 1 or algorithm.rollout_logprobs or algorithm.keep_old_actor:
        raise NotMadeError("the ratio to the old policy is not 1 throughout")
    shares = list[float]()
    for number, step in evidence.layout.steps.items():
        reduction, terms = algorithm.reduction, loss_terms(evidence, number)
        gaps = [(one.log_probs_R - one.rollout_log_probs_R).abs() * torch.tensor(one.mask_R) for one in step.samples]
        by_episode = "trajectory" if reduction == "constant" else reduction  # ours, for the loss alone
        for tag, expected in ((PG_LOSS, terms), (GAPS, _reduced(evidence, number, gaps, by_episode))):
            reported = evidence.layout.figures.get(tag, {}).get(number, math.nan)
            shares.append(abs(reported - float(expected.sum())) / size(expected))
    return Measured(worst(shares), evidence.limits.loss)


def loss_terms(evidence: Evidence, number: int) -> Tensor:
    """Return what each token adds to the policy-gradient loss of a rollout's step."""
    parts = [_weighted(evidence, one) for one in evidence.layout.steps[number].samples]
    return _reduced(evidence, number, parts, evidence.recipe.algorithm.reduction)


def size(terms: Tensor) -> float:
    """Return the size of a sum whose terms cancel: the sum of their absolute values, `SMALL` at least."""
    return max(float(terms.abs().sum()), SMALL)


def _reduced(evidence: Evidence, number: int, parts: Sequence[Tensor], reduction: str) -> Tensor:
    """Divide each token's value as the reduction says: the sum of these is the figure of the step."""
    tokens = [int(sum(one.mask_R)) for one in evidence.layout.steps[number].samples]
    if reduction == "token":
        return torch.cat(list(parts)).double() / max(1, sum(max(1, count) for count in tokens))
    episodes = defaultdict[int, list[int]](list)
    for place, sample in enumerate(evidence.rollouts[number]):
        episodes[sample.trajectory].append(place)
    terms = list[Tensor]()
    for places in episodes.values():
        whole = sum(tokens[place] for place in places)
        count = evidence.recipe.rollout.max_context if reduction == "constant" else whole
        terms += [parts[place].double() / max(1, count) / len(episodes) for place in places]
    return torch.cat(terms)


def _weighted(evidence: Evidence, one: Trained) -> Tensor:
    """Return each trained token's term: its advantage, weighed for the difference between server and trainer."""
    algorithm = evidence.recipe.algorithm
    mask = torch.tensor(one.mask_R, dtype=torch.float32)
    ratio = torch.exp(one.log_probs_R - one.rollout_log_probs_R)
    low, high = algorithm.mismatch_low, algorithm.mismatch_high
    weight = {"none": torch.ones_like(ratio), "truncate": ratio.clamp(low, high)}.get(
        algorithm.mismatch, torch.where((ratio >= low) & (ratio <= high), ratio, torch.zeros_like(ratio))
    )
    return -one.advantages_R * weight * mask


# The recipe's layout of ranks compared with one rank, on the same rollouts.
LOSS, NORM = "train/loss", "train/grad_norm"
UNTRAINED = ("e_score_correction_bias",)  # which SLiME leaves as they are


def layout_log_probabilities(evidence: Evidence) -> Measured:
    """Find the gap between the two layouts over trained tokens, in the step where it is largest."""
    return Measured(worst(gaps(evidence)), evidence.limits.updated)


def layout_loss(evidence: Evidence) -> Measured:
    """Find the largest difference of a step's loss, as a share of the sum of its terms' sizes, in its rollout."""
    steps = evidence.recipe.algorithm.steps_per_rollout
    sizes = {number: size(loss_terms(evidence, number)) for number in evidence.layout.steps}
    shares = (gap / sizes[step // steps] for step, gap in _differences(evidence, LOSS))
    return Measured(worst(shares), evidence.limits.loss)


def layout_gradient_norm(evidence: Evidence) -> Measured:
    norms = evidence.layout.figures.get(NORM, {})
    shares = (gap / max(abs(norms.get(step, 0.0)), SMALL) for step, gap in _differences(evidence, NORM))
    return Measured(worst(shares), evidence.limits.norm)


def layout_weights(evidence: Evidence) -> Measured:
    """Find the difference of a tensor's weights after the first step, as a share of the learning rate, in the tensor
    where it is largest."""
    ours, theirs = (trainer.exports[0] for trainer in (evidence.layout, evidence.alone))
    return Measured(worst(apart(evidence, ours, theirs).values()), evidence.limits.weight)


def moved(evidence: Evidence) -> Measured:
    """Count tensors that all tokens pass through and no step has changed, or that hold NaN after the last."""
    before, after = read_weights(evidence.toy), read_weights(evidence.layout.exports[evidence.last])
    if not before.keys() <= after.keys():
        return Measured(float("inf"), 0)
    trained = [name for name in before if ".experts." not in name and not name.endswith(UNTRAINED)]
    kept = (same(before[name], after[name]) or not bool(after[name].isfinite().all()) for name in trained)
    return Measured(sum(kept), 0)


def apart(evidence: Evidence, one: Path, other: Path) -> dict[str, float]:
    """Map each tensor to the difference of its weights in two folders, as a share of the learning rate."""
    ours, theirs, rate = read_weights(one), read_weights(other), evidence.recipe.optimizer.lr
    return {
        name: evidence.limits.over(ours[name].float() - theirs[name].float()) / rate
        if name in ours and name in theirs
        else float("inf")
        for name in ours.keys() | theirs.keys()
    }


def gaps(evidence: Evidence) -> Iterator[float]:
    """Yield the gap of each step's log-probabilities, over its trained tokens."""
    one, other = evidence.layout, evidence.alone
    if not one.steps or one.steps.keys() != other.steps.keys():
        yield float("inf")
    for number in one.steps.keys() & other.steps.keys():
        yield step_gap(evidence, one.steps[number], other.steps[number])


def step_gap(evidence: Evidence, one: Step, other: Step) -> float:
    if len(one.samples) != len(other.samples):
        return float("inf")
    found = []
    for ours, theirs in zip(one.samples, other.samples, strict=True):
        if ours.tokens != theirs.tokens:
            return float("inf")
        found.append((ours.log_probs_R - theirs.log_probs_R)[torch.tensor(ours.mask_R).bool()])
    return evidence.limits.over(torch.cat(found))


def _differences(evidence: Evidence, tag: str) -> Iterator[tuple[int, float]]:
    """Yield each optimizer step and the difference of a figure, infinite where only one trainer has made the step."""
    ours, theirs = (trainer.figures.get(tag, {}) for trainer in (evidence.layout, evidence.alone))
    for step in sorted(ours.keys() | theirs.keys()):
        yield step, abs(ours.get(step, math.inf) - theirs.get(step, -math.inf))


# Weights that are written and read again: by the converters, as exports, and by a run that is resumed.
def conversion(evidence: Evidence) -> Measured:
    """Count tensors of the toy that are others, or gone, after its way to Megatron's format and back."""
    return Measured(different(evidence.toy, evidence.converted), 0)


def export(evidence: Evidence) -> Measured:
    """Count tensors that differ between the last export and the last checkpoint, converted."""
    return Measured(different(evidence.layout.exports[evidence.last], evidence.saved), 0)


def resumed_log_probabilities(evidence: Evidence) -> Measured:
    """Find the gap of the last step's log-probabilities to those of the run that was not interrupted."""
    resumed, last, limit = evidence.resumed, evidence.last, evidence.limits.repeated
    if last not in resumed.steps:
        return Measured(float("inf"), limit)
    return Measured(step_gap(evidence, resumed.steps[last], evidence.layout.steps[last]), limit)


def resumed_weights(evidence: Evidence) -> Measured:
    """Find the difference of a tensor's weights after the last step to the run that was not interrupted, as a share of
    the learning rate, in the tensor where it is largest."""
    limit = evidence.limits.repeated_weight
    exports = [trainer.exports.get(evidence.last) for trainer in (evidence.resumed, evidence.layout)]
    if exports[0] is None or exports[1] is None:
        return Measured(float("inf"), limit)
    return Measured(worst(apart(evidence, exports[0], exports[1]).values()), limit)


def resumed_steps(evidence: Evidence) -> Measured:
    """Count rollouts that the resumed run trained on beside the one that was left, and that one where it did not; and
    the same of optimizer steps, which SLiME numbers through the whole run."""
    resumed, last = evidence.resumed, evidence.last
    steps = evidence.recipe.algorithm.steps_per_rollout
    made = set(resumed.figures.get(LOSS, {}))
    return Measured(len(set(resumed.steps) ^ {last}) + len(made ^ {*range(last * steps, (last + 1) * steps)}), 0)


def different(one: Path, other: Path) -> int:
    ours, theirs = read_weights(one), read_weights(other)
    missing = len(ours.keys() ^ theirs.keys())
    return missing + sum(not same(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())
