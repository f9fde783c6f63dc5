"""Make the patch between two sets of files, in time that grows with their size and no faster.

Lines are matched as in `git diff --patience`: those that occur once on either side are anchors, and what lies between
is matched in the same way. Where there is no anchor, the fewest edits are sought, if they are `_EDITS` at most. Files
that would take more than `_WORK` together are matched as far as that goes, and what is left of each is one replacement.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from slime_swe.patches.apply import Files, encoded
from slime_swe.patches.model import Binary, Change, Hunk, split_lines, write_patch

MAX_PATCH_BYTES = 1 << 20
OVERSIZED = f"The patch has more than {MAX_PATCH_BYTES} bytes and is left out.\n"  # as a patch it changes nothing

_CONTEXT = 3  # lines
_EDITS = 500  # between two anchors
_WORK = 6_000_000  # lines compared for one patch: some three seconds

Pair = tuple[int, int]
Edit = tuple[int, int, int, int]  # old lines from, to; new lines from, to


@dataclass
class _Work:
    left: int = _WORK


def make_patch(before: Files, after: Files) -> str:
    """The patch from `before` to `after`; empty where they are equal.

    A file that is not UTF-8 text, before or after, is only named, by git's line `Binary files … differ`.
    """
    return "".join(_file_patches(before, after))


def bounded_patch(before: Files, after: Files) -> str:
    """The same, but `OVERSIZED` in place of a patch of more than `MAX_PATCH_BYTES`."""
    pieces: list[str] = []
    size = 0
    for piece in _file_patches(before, after):
        size += len(piece.encode())
        if size > MAX_PATCH_BYTES:
            return OVERSIZED
        pieces.append(piece)
    return "".join(pieces)


def _file_patches(before: Files, after: Files) -> Iterator[str]:
    old, new = encoded(before), encoded(after)
    work = _Work()
    for path in sorted({*old, *new}):
        if old.get(path) != new.get(path):
            yield write_patch([_change(path, old.get(path), new.get(path), work)])


def _change(path: str, before: bytes | None, after: bytes | None, work: _Work) -> Change:
    change = Change(None if before is None else path, None if after is None else path)
    old, new = _text(before or b""), _text(after or b"")
    if old is None or new is None:
        change.binary = Binary()
    else:
        change.hunks = list(_hunks(split_lines(old), split_lines(new), work))
    return change


def _text(content: bytes) -> str | None:
    """None where the content is not text."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _hunks(old: list[str], new: list[str], work: _Work) -> Iterator[Hunk]:
    for group in _groups(_edits(old, new, work)):
        old_from, new_from = max(group[0][0] - _CONTEXT, 0), max(group[0][2] - _CONTEXT, 0)
        old_to, new_to = min(group[-1][1] + _CONTEXT, len(old)), min(group[-1][3] + _CONTEXT, len(new))
        hunk = Hunk(old_from + (old_to > old_from), new_from + (new_to > new_from))
        at = old_from
        for old_start, old_end, new_start, new_end in group:
            hunk.lines += [f" {line}" for line in old[at:old_start]]
            hunk.lines += [f"-{line}" for line in old[old_start:old_end]]
            hunk.lines += [f"+{line}" for line in new[new_start:new_end]]
            at = old_end
        hunk.lines += [f" {line}" for line in old[at:old_to]]
        yield hunk


def _groups(edits: Sequence[Edit]) -> list[list[Edit]]:
    """Edits whose context meets stand in one hunk."""
    groups: list[list[Edit]] = []
    for edit in edits:
        if groups and edit[0] - groups[-1][-1][1] <= 2 * _CONTEXT:
            groups[-1].append(edit)
        else:
            groups.append([edit])
    return groups


def _edits(old: list[str], new: list[str], work: _Work) -> list[Edit]:
    """What lies between the lines that both have in common."""
    edits, old_at, new_at = [], 0, 0
    for old_next, new_next in [*sorted(_common(old, new, work)), (len(old), len(new))]:
        if old_next > old_at or new_next > new_at:
            edits.append((old_at, old_next, new_at, new_next))
        old_at, new_at = old_next + 1, new_next + 1
    return edits


def _common(old: list[str], new: list[str], work: _Work) -> Iterator[Pair]:
    """Pairs of equal lines (index in old, index in new), of which each follows the one before on both sides."""
    parts = [(0, len(old), 0, len(new))]
    while parts:
        a, a_end, b, b_end = parts.pop()
        while a < a_end and b < b_end and old[a] == new[b]:
            yield a, b
            a, b = a + 1, b + 1
        while a < a_end and b < b_end and old[a_end - 1] == new[b_end - 1]:
            a_end, b_end = a_end - 1, b_end - 1
            yield a_end, b_end
        work.left -= a_end - a + b_end - b
        if a == a_end or b == b_end or work.left < 0:
            continue
        if anchors := _anchors(old[a:a_end], new[b:b_end]):
            bounds = [(-1, -1), *anchors, (a_end - a, b_end - b)]
            yield from ((a + x, b + y) for x, y in anchors)
            parts += [(a + x + 1, a + next_x, b + y + 1, b + next_y) for (x, y), (next_x, next_y) in pairwise(bounds)]
        else:
            yield from ((a + x, b + y) for x, y in _shortest_edit(old[a:a_end], new[b:b_end], work))


def _anchors(old: list[str], new: list[str]) -> list[Pair]:
    """Of the lines that occur once on both sides, the longest run that is in the same order."""
    old_counts, new_counts = Counter(old), Counter(new)
    places = {line: number for number, line in enumerate(new) if new_counts[line] == 1}
    pairs = [(x, places[line]) for x, line in enumerate(old) if old_counts[line] == 1 and line in places]
    return _longest_rising(pairs)


def _longest_rising(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest subsequence whose second numbers rise, by patience sorting."""
    tops: list[int] = []  # of each pile, the second number on top
    piles: list[int] = []  # of each pile, the pair on top
    before: list[int] = []  # of each pair, the one on top of the pile to the left
    for number, (_, y) in enumerate(pairs):
        pile = bisect_left(tops, y)
        tops[pile : pile + 1] = [y]
        piles[pile : pile + 1] = [number]
        before.append(piles[pile - 1] if pile else -1)
    chosen, at = [], piles[-1] if piles else -1
    while at >= 0:
        chosen.append(pairs[at])
        at = before[at]
    return chosen[::-1]


def _shortest_edit(old: list[str], new: list[str], work: _Work) -> list[Pair]:
    """The pairs that the fewest edits leave; none where they are too many, or no work is left.

    Myers, "An O(ND) difference algorithm and its variations" (1986): on each diagonal k = x - y, how far d edits reach.
    """
    reach = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(_EDITS):
        trace.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
            x = start = reach[k + 1] if down else reach[k - 1] + 1
            while x < len(old) and x - k < len(new) and old[x] == new[x - k]:
                x += 1
            reach[k] = x
            work.left -= x - start + 2
            if x >= len(old) and x - k >= len(new):
                return _way_back(trace, len(old), len(new))
        if work.left < 0:
            break
    return []


def _way_back(trace: list[dict[int, int]], x: int, y: int) -> list[Pair]:
    pairs: list[Pair] = []
    for edits in range(len(trace) - 1, -1, -1):
        reach, k = trace[edits], x - y
        down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
        before_x = reach[k + 1] if down else reach[k - 1]
        before_y = before_x - (k + 1 if down else k - 1)
        while x > max(before_x, 0) and y > max(before_y, 0):
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = before_x, before_y
    return pairs
