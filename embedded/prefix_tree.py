"""Arrange token sequences as a tree of shared prefixes, so that what they have in common is computed once.

Episodes of one step share the system prompt; those of one task also its statement, and often whole first turns. In a
causal model the hidden states of a shared prefix are equal, so a training step needs them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

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
        """The path from the root to the span, itself left out."""
        parent = self.spans[span].parent
        return [] if parent is None else [*self.ancestors(parent), parent]


def build_tree(sequences: Sequence[Sequence[int]], members: Sequence[int]) -> PrefixTree:
    """The tree of `sequences[m] for m in members`, which must be non-empty and in lexicographic order."""
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
        """How many first tokens all members share: in sorted order, those that the first and last one share."""
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
