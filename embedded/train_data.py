"""Make what the trainer is given: SLiME's conversion of samples into training data, as plain lists."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

from slime_swe.errors import UserError
from slime_swe.rollout.hooks import is_supervised
from slime_swe.rollout.records import loss_mask_of
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
    """Return a sort key that puts siblings beside each other, whatever the indices that the generate hook gave them."""
    index = sample.index if sample.index is not None else -1
    return (sample.rollout_id if sample.rollout_id is not None else index), index


def _check(sample: Sample, *, is_sampled: bool) -> None:
    """Raise `TrainDataError` where fields contradict each other. With `is_sampled`, tokens are the policy's own, with
    the log-probabilities that they had."""
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


# Which samples go into which optimizer step and which micro-batch: pure functions of ids and tokens.
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
    """Bisect for the tree of the longest head of `order` that fits: one more sequence never takes fewer rows."""
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


# Arrange token sequences as a tree of shared prefixes, so that what they have in common is computed once.
#
# Episodes of one step share the system prompt; those of one task also its statement, and often whole first turns. In a
# causal model the hidden states of a shared prefix are equal, so a training step needs them once.
MIN_SHARED = 24  # tokens: shorter pieces cost more as an attention call of their own than they save


@dataclass(frozen=True)
class Span:
    """Rows [start, start + length) of the layout: a run of tokens that follows all of its parent's path."""

    start: int
    length: int
    position: int  # of its first token in its sequences
    parent: int | None  # an earlier span


@dataclass(frozen=True)
class PrefixTree:
    """`tokens` of all spans, end to end; `rows[s][i]` is the row that holds token i of sequence `members[s]`.

    Invariants: `tokens[rows[s][i]]` is token i of that sequence; a row's span path holds exactly the tokens before it;
    a parent comes before its children; there are never more rows than tokens.
    """

    members: list[int]
    tokens: list[int]
    spans: list[Span]
    rows: list[list[int]]

    def ancestors(self, span: int) -> list[int]:
        """Return the path from the root to the span, itself left out."""
        parent = self.spans[span].parent
        return [] if parent is None else [*self.ancestors(parent), parent]


def build_tree(sequences: Sequence[Sequence[int]], members: Sequence[int]) -> PrefixTree:
    """Build the tree of `sequences[m] for m in members`, which must be non-empty and in lexicographic order."""
    builder = _Builder(sequences)
    builder.grow(list(members), 0, None, [])
    return PrefixTree(list(members), builder.tokens, builder.spans, [builder.rows[member] for member in members])


class _Builder:
    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.sequences = sequences
        self.tokens: list[int] = []
        self.spans: list[Span] = []
        self.rows: dict[int, list[int]] = {}

    def grow(self, members: list[int], depth: int, parent: int | None, path: list[int]) -> None:
        """Add what follows the first `depth` tokens, which all members share and whose rows are `path`."""
        common = self._common(members, depth)
        if len(members) == 1 or common - depth >= MIN_SHARED:
            parent, path = self._add(members[0], depth, common, parent, path)
            depth = common
        for has_more, same in groupby(members, key=lambda member: len(self.sequences[member]) > common):
            if has_more:
                for _, branch in groupby(same, key=lambda member: self.sequences[member][common]):
                    self.grow(list(branch), depth, parent, path)
            else:
                for member in same:
                    self.rows[member] = path if depth == common else self._add(member, depth, common, parent, path)[1]

    def _common(self, members: list[int], depth: int) -> int:
        """Return how many first tokens all members share: those that the first and last share, as they are sorted."""
        first, last = (self.sequences[member] for member in (members[0], members[-1]))
        if len(members) == 1:
            return len(first)
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(first[depth:], last[depth:], strict=False))
        return depth + sum(1 for _ in equal)

    def _add(self, member: int, begin: int, end: int, parent: int | None, path: list[int]) -> tuple[int, list[int]]:
        start = len(self.tokens)
        self.tokens += self.sequences[member][begin:end]
        self.spans.append(Span(start, end - begin, begin, parent))
        return len(self.spans) - 1, [*path, *range(start, len(self.tokens))]


# The weight of a trained token in its step's loss: `algorithm.reduction`. Pure functions of the training data.
def token_weights(
    data: TrainData, samples: Sequence[int], reduction: str = "trajectory", *, max_context: int = 0
) -> dict[int, float]:
    """Return what a trained token weighs, by sample, for the samples of one optimizer step that have any.

    `trajectory` is GRPO's mean over rollouts of each one's mean over its tokens; `token` is DAPO's (arXiv:2503.14476,
    eq. 8), where SLiME counts a sample without a trained token as one token; `constant` is Dr. GRPO's
    (arXiv:2503.20783), over `max_context`.
    """
    rollouts = len({data.rollout_ids[sample] for sample in samples})
    trained = {sample: sum(data.loss_masks[sample]) for sample in samples}
    if reduction == "token":
        total = sum(max(1, tokens) for tokens in trained.values())
        return {sample: 1 / total for sample, tokens in trained.items() if tokens}
    if reduction == "constant":
        return {sample: 1 / (max_context * rollouts) for sample, tokens in trained.items() if tokens}
    return {sample: 1 / (data.mask_sums[sample] * rollouts) for sample, tokens in trained.items() if tokens}
