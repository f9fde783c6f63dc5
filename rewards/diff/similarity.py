"""How alike two texts are: difflib's ratio, in bounded time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from slime_swe.errors import UserError
from slime_swe.patches.model import split_lines

MAX_CHARACTERS = 20_000  # of either text; longer ones are compared by lines
MAX_LINES = 20_000  # of either text; what follows counts as different
MAX_WORK = 400_000_000  # comparisons of two characters or lines: a second or two
_LOOK_UP = 400  # comparisons that take as long as finding where an element stands, at worst


@dataclass
class Work:
    """What is left of the comparisons that one answer may take."""

    left: int = MAX_WORK


def similarity(a: str, b: str, work: Work | None = None) -> float:
    """`difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()`, 0 to 1: twice what matches over what there is.

    Of characters; of whole lines, each of which counts by its characters, where a text has more than `MAX_CHARACTERS`,
    or where characters would take more than half of `work`. What lines would take beyond it counts as different. The
    same everywhere, as no clock decides. Raises `UserError` where cydifflib is not installed.
    """
    work = work or Work()
    if a == b:
        return 1.0
    if max(len(a), len(b)) <= MAX_CHARACTERS:
        matched, whole = _matched(a, b, [1] * len(a), Work(work.left // 2))
        if whole:
            return 2.0 * matched / (len(a) + len(b))
    numbers: dict[str, int] = {}  # small numbers are compared faster than lines
    lines_a, lines_b = (split_lines(text)[:MAX_LINES] for text in (a, b))
    numbers_a, numbers_b = ([numbers.setdefault(line, len(numbers)) for line in lines] for lines in (lines_a, lines_b))
    matched, _ = _matched(numbers_a, numbers_b, [*map(len, lines_a)], work)
    return 2.0 * matched / (len(a) + len(b))


def _matched(
    a: Sequence[str] | Sequence[int], b: Sequence[str] | Sequence[int], sizes: Sequence[int], work: Work
) -> tuple[int, bool]:
    """How much matches, in the sizes of `a`'s elements, and whether that is all: False where no work was left for the
    rest.

    As `SequenceMatcher.get_matching_blocks`: the longest match, then what is left and right of it. A search for one
    compares each element of its part of `a` with all equal ones of `b` that are not behind its part.
    """
    matcher = _matcher()(None, a, b, autojunk=False)
    counts = Counter(b)
    before = [0, *accumulate(counts[element] + _LOOK_UP for element in a)]
    until = [0, *accumulate(sizes)]
    parts, matched = [(0, len(a), 0, len(b))], 0
    while parts:
        a_from, a_to, b_from, b_to = parts.pop()
        work.left -= before[a_to] - before[a_from] + _LOOK_UP
        if work.left < 0:
            return matched, False
        i, j, size = matcher.find_longest_match(a_from, a_to, b_from, b_to)
        if not size:
            continue
        matched += until[i + size] - until[i]
        if a_from < i and b_from < j:
            parts.append((a_from, i, b_from, j))
        if i + size < a_to and j + size < b_to:
            parts.append((i + size, a_to, j + size, b_to))
    return matched, True


def require_cydifflib() -> None:
    """Raises `UserError` where what compares texts is not installed."""
    _matcher()


def _matcher() -> Any:
    try:
        from cydifflib import SequenceMatcher
    except ImportError as error:
        raise UserError("texts are compared by cydifflib: pip install 'slime-swe[diff]'") from error
    return SequenceMatcher
