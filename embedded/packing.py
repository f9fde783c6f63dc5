"""Which samples go into which optimizer step and which micro-batch: pure functions of ids and tokens."""

from __future__ import annotations

from collections.abc import Sequence

from slime_swe.embedded.prefix_tree import PrefixTree, build_tree
from slime_swe.errors import UserError


class PackingError(UserError):
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


def pack(sequences: Sequence[Sequence[int]], max_tokens: int) -> list[PrefixTree]:
    """Put token sequences into micro-batches of at most `max_tokens` rows, shared prefixes counted once.

    Invariants: every non-empty sequence is in exactly one micro-batch; none has more than `max_tokens` rows;
    micro-batches follow the lexicographic order of the sequences, and no micro-batch could take in the first sequence
    of the next; the result depends on nothing but the arguments.
    Raises `PackingError` for a sequence that is longer than `max_tokens`.
    """
    longest = max(map(len, sequences), default=0)
    if longest > max_tokens:
        raise PackingError(
            f"a sample of {longest} tokens exceeds max_tokens_per_gpu={max_tokens}: "
            "raise it to at least rollout_max_context_len"
        )
    order = sorted(
        (place for place, tokens in enumerate(sequences) if tokens), key=lambda place: (sequences[place], place)
    )
    trees: list[PrefixTree] = []
    while order:
        tree = _largest_tree(sequences, order, max_tokens)
        trees.append(tree)
        order = order[len(tree.members) :]
    return trees


def _largest_tree(sequences: Sequence[Sequence[int]], order: list[int], max_tokens: int) -> PrefixTree:
    """The tree of the longest head of `order` that fits, by bisection: one more sequence never takes fewer rows."""
    best = build_tree(sequences, order[:1])
    low, high = 1, len(order)
    while low < high:
        middle = high if low == 1 and high == len(order) else (low + high + 1) // 2
        tree = build_tree(sequences, order[:middle])
        if len(tree.tokens) <= max_tokens:
            best, low = tree, middle
        else:
            high = middle - 1
    return best
