"""Episodes that say nearly the same: MinHash over what the policy wrote (Broder 1997), by datasketch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from slime_swe.rollout.turns import Turn

if TYPE_CHECKING:
    from datasketch import MinHash

WORDS = 5  # of a shingle
PERMUTATIONS = 128  # the error of an estimate is about 1 / sqrt(PERMUTATIONS)
_WORD = re.compile(r"\w+|[^\w\s]")


def sketch(turns: Iterable[Turn]) -> MinHash:
    """Of the sequences of `WORDS` words and signs in what the policy wrote, its calls among it."""
    from datasketch import MinHash

    words = _WORD.findall("\n".join(part for turn in turns if turn.role == "assistant" for part in _written(turn)))
    found = MinHash(num_perm=PERMUTATIONS)
    starts = range(max(1, len(words) - WORDS + 1))
    found.update_batch({" ".join(words[start : start + WORDS]).encode("utf-8", "replace") for start in starts})
    return found


def _written(turn: Turn) -> list[str]:
    return [turn.reasoning, turn.text, *(f"{call.name} {call.arguments}" for call in turn.calls)]


class Seen:
    """What has been taken so far. `share`: of shingles in common, from which on two are similar."""

    def __init__(self, share: float) -> None:
        from datasketch import MinHashLSH

        self._share = share
        # It proposes rather more than are similar, and the sketches decide.
        self._index = MinHashLSH(threshold=min(share, 0.9), num_perm=PERMUTATIONS, weights=(0.1, 0.9))
        self._sketches: dict[str, MinHash] = {}

    def add(self, found: MinHash) -> bool:
        """Take it, unless a similar one is there: then False."""
        near = self._index.query(found)
        if any(self._sketches[name].jaccard(found) >= self._share for name in near):
            return False
        name = str(len(self._sketches))
        self._sketches[name] = found
        self._index.insert(name, found)
        return True
