"""The number is difflib's, and takes little time whatever is compared."""

from __future__ import annotations

import difflib
import random
from itertools import pairwise

import pytest

from slime_swe.patches import make_patch
from tests.effort import TRIES, WIDE, processor_seconds
from tests.slime_swe.random_edits import before_and_after

pytest.importorskip("cydifflib")
from cydifflib import SequenceMatcher

from slime_swe.rewards.diff import MAX_CHARACTERS, MAX_WORK, Work, similarity


def by_difflib(a: object, b: object) -> float:
    return difflib.SequenceMatcher(None, a, b, autojunk=False).ratio()


def test_of_a_thousand_diffs_it_is_what_difflib_says():
    dice = random.Random(0)
    diffs = [make_patch(*before_and_after(dice))[:300] for _ in range(1001)]
    values = [similarity(a, b) for a, b in pairwise(diffs)]
    assert values == [by_difflib(a, b) for a, b in pairwise(diffs)]
    assert len({*values}) > 500


def by_lines(a: str, b: str) -> float:
    """Of characters, in the whole lines that difflib matches."""
    lines = a.splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, lines, b.splitlines(keepends=True), autojunk=False)
    same = "".join(line for i, _, size in matcher.get_matching_blocks() for line in lines[i : i + size])
    return 2 * len(same) / (len(a) + len(b))


def test_longer_texts_are_compared_by_lines_that_count_by_their_characters():
    a = "".join(f"line {number}\n" for number in range(4000))
    b = a.replace("line 77\n", "other\n").replace("line 9\n", "")
    assert len(a) > MAX_CHARACTERS
    assert similarity(a, b) == by_lines(a, b) != by_difflib(a[:100], b[:100])
    assert similarity(a[:1000], a[:1000] + "x" * MAX_CHARACTERS) < 0.1
    assert similarity("", "") == similarity(a, a) == 1.0
    assert similarity("", "x") == 0.0


N = MAX_CHARACTERS
LONG = {
    "one character": ("a" * N, "a" * (N - 1) + "b"),
    "one character in common": tuple("".join(f"a{chr(n + i)}" for i in range(N // 2)) for n in (1000, 30000)),
    "every other character": tuple("".join(chr(1000 + i + i % 2 * n) for i in range(N)) for n in (0, 30000)),
    "blanks in code": ("    return x\n" * 1500, "x " * (N // 2)),
    "empty lines": ("\n" * 500_000, "x\n" + "\n" * 300_000),
    "every other line": tuple("".join(f"{i + i % 2 * n}\n" for i in range(100_000)) for n in (0, 1_000_000)),
    "two lines": ("a\nb\n" * 50_000, "b\nb\na\n" * 30_000),
}  # fmt: skip
FEW = 4  # searches


SOME = ("one character", "blanks in code", "every other line")


@pytest.mark.parametrize(
    "name", [*SOME, *(pytest.param(name, marks=pytest.mark.extended("texts")) for name in LONG if name not in SOME)]
)
def test_texts_that_are_made_to_take_long_take_no_more_than_their_work(name):
    """As long as the comparisons that they may take, of which a search in texts of one character takes a known number;
    it is let pass four times. And the same work each time."""
    work = Work()
    value = similarity(*LONG[name], work)
    assert 0 <= value < 1
    matcher = SequenceMatcher(None, "a" * 4_000, "a" * 3_999 + "b", autojunk=False)
    known, seen = 4_000 * 4_000 * FEW, list[float]()
    while not seen or (seen[-1] >= WIDE and len(seen) < TRIES):
        again, values = Work(), list[float]()
        rate = known / processor_seconds(lambda: [matcher.find_longest_match(0, 4_000, 0, 4_000) for _ in range(FEW)])
        took = processor_seconds(lambda left=again, values=values: values.append(similarity(*LONG[name], left)))
        assert values == [value] and again == work
        seen.append(took * rate / MAX_WORK)
    assert min(seen) < WIDE, f"{min(seen):.1f} times as long as its work"
