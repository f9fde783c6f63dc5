"""What the trainer is given: SLiME's conversion of samples into training data, as plain lists."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from slime_swe.errors import UserError
from slime_swe.rollout.records import loss_mask_of
from slime_swe.rollout.warm_start import is_supervised
from slime_swe.sample import Sample

PostProcess = Callable[[Namespace, list[Sample]], tuple[list[float], list[float]]]


class TrainDataError(UserError):
    """A sample's fields contradict each other; the message names the sample and the fields."""


@dataclass(frozen=True)
class TrainData:
    """S samples in order of rollout and index; lists of a sample have its response length R, `tokens` its whole length.

    `loss_masks` are all zero where the sample is removed; `mask_sums` holds the trained tokens of the sample's whole
    rollout, siblings included. `stale` are the samples that began under older weights than those that are trained.
    `indices` are the samples' own.
    """

    tokens: list[list[int]]
    loss_masks: list[list[int]]
    rollout_log_probs: list[list[float]]
    advantages: list[float]
    rollout_ids: list[int]
    mask_sums: list[int]
    stale: frozenset[int] = frozenset()
    indices: Sequence[int | None] = ()

    def __len__(self) -> int:
        return len(self.tokens)


def to_train_data(
    args: Namespace, samples: Sequence[Sample], post_process: PostProcess, stale_groups: Collection[int | None] = ()
) -> TrainData:
    """Score the group advantages with the post-process hook and arrange the samples, sorted by rollout and index.

    stale_groups: numbers of the groups that began under older weights than those that are trained.
    """
    ordered = sorted(samples, key=_place)
    raw, advantages = post_process(args, ordered)
    if not len(raw) == len(advantages) == len(ordered):
        raise TrainDataError(
            f"the post-process hook returned {len(raw)} raw and {len(advantages)} normalized rewards "
            f"for {len(ordered)} samples"
        )
    for sample in ordered:
        _check(sample, is_sampled=not is_supervised(args))
    masks = [[0] * sample.response_length if sample.remove_sample else list(loss_mask_of(sample)) for sample in ordered]
    rollout_ids = fill_rollout_ids([sample.rollout_id for sample in ordered])
    trained: Counter[int] = Counter()
    for rollout_id, mask in zip(rollout_ids, masks, strict=True):
        trained[rollout_id] += sum(mask)
    return TrainData(
        tokens=[list(sample.tokens) for sample in ordered],
        loss_masks=masks,
        rollout_log_probs=[list(sample.rollout_log_probs or [0.0] * sample.response_length) for sample in ordered],
        advantages=[float(value) for value in advantages],
        rollout_ids=rollout_ids,
        mask_sums=[trained[rollout_id] for rollout_id in rollout_ids],
        stale=frozenset(place for place, sample in enumerate(ordered) if sample.group_index in stale_groups),
        indices=[sample.index for sample in ordered],
    )


def fill_rollout_ids(given: Sequence[int | None]) -> list[int]:
    """Give each sample that has no rollout id one of its own: the smallest number that is still free."""
    used = {value for value in given if value is not None}
    filled: list[int] = []
    candidate = 0
    for value in given:
        if value is None:
            while candidate in used:
                candidate += 1
            value = candidate
            used.add(value)
        filled.append(value)
    return filled


def _place(sample: Sample) -> tuple[int, int]:
    """Siblings beside each other, whatever the indices that the generate hook gave them."""
    index = sample.index if sample.index is not None else -1
    return (sample.rollout_id if sample.rollout_id is not None else index), index


def _check(sample: Sample, *, is_sampled: bool) -> None:
    """is_sampled: the tokens are the policy's own, with the log-probabilities that they had."""
    mask = loss_mask_of(sample)
    facts: list[tuple[bool, str, Any]] = [
        (len(mask) == sample.response_length, "loss_mask length", len(mask)),
        (len(sample.tokens) >= sample.response_length, "number of tokens", len(sample.tokens)),
    ]
    if any(mask) and not sample.remove_sample:
        log_probs = sample.rollout_log_probs
        count = len(log_probs) if log_probs is not None else None
        facts.append((count == sample.response_length or not is_sampled, "number of rollout_log_probs", count))
        facts.append(
            (len(sample.tokens) > sample.response_length, "number of tokens, prompt included,", len(sample.tokens))
        )
    for holds, what, value in facts:
        if not holds:
            raise TrainDataError(
                f"sample {sample.index}: {what} is {value}, which does not fit response_length {sample.response_length}"
            )
