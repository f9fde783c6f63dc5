"""Which samples go into which optimizer step and which micro-batch: pure functions of ids and lengths."""

from __future__ import annotations

from collections.abc import Sequence


class PackingError(ValueError):
    """The batch can't be split as asked; the message holds the numbers."""


def split_steps(rollout_ids: Sequence[int], steps: int) -> list[list[int]]:
    """Split samples into `steps` global batches; returns each one's sample positions.

    Invariants: every position appears exactly once and in its given order; samples of one rollout are in one batch;
    batches hold equal numbers of rollouts, the first ones one more where that doesn't divide; a rollout's place
    depends only on the order in which rollouts first appear.
    """
    distinct = list(dict.fromkeys(rollout_ids))
    if not 1 <= steps <= len(distinct):
        raise PackingError(
            f"{len(distinct)} rollouts can't be split into {steps} optimizer steps: "
            "num_steps_per_rollout must lie between 1 and the number of rollouts"
        )
    step_of = {rollout: place * steps // len(distinct) for place, rollout in enumerate(distinct)}
    batches: list[list[int]] = [[] for _ in range(steps)]
    for position, rollout in enumerate(rollout_ids):
        batches[step_of[rollout]].append(position)
    return batches


def pack(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group sequences, longest first, into micro-batches of at most `max_tokens` tokens; returns their positions.

    Invariants: every position appears exactly once; no micro-batch exceeds `max_tokens`; no two neighbouring
    micro-batches would fit into one; lengths within one are neighbours in sorted order (so that padding is small);
    the result depends on nothing but the arguments.
    Raises `PackingError` for a sequence that is longer than `max_tokens`.
    """
    batches: list[list[int]] = []
    room = 0
    for position in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        length = lengths[position]
        if length > max_tokens:
            raise PackingError(
                f"a sample of {length} tokens exceeds max_tokens_per_gpu={max_tokens}: "
                "raise it to at least rollout_max_context_len"
            )
        if not batches or length > room:
            batches.append([])
            room = max_tokens
        batches[-1].append(position)
        room -= length
    return batches
