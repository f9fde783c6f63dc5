"""Replies that a policy wrote to do harm: no error but `PatchError`, and little time."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter

import pytest

from slime_swe.patches import PatchError, apply_reply, make_patch, paths_in_reply, read_blocks
from tests.slime_swe.mutated_replies import mutated
from tests.slowness import slowness

SHARES = [0, *(pytest.param(n, marks=pytest.mark.matrix("mutated replies")) for n in range(1, 100))]


@pytest.mark.parametrize("share", SHARES)
def test_a_mutated_reply_raises_its_own_error_only_and_takes_little(share: int):
    """1,000 of the 100,000. Of a reply 50 ms are the 99th percentile at most, 2 s what the longest takes."""
    seconds, applied = list[float](), Counter[bool]()
    for _, (files, reply) in zip(range(1_000), mutated(random.Random(share)), strict=False):
        started = time.thread_time()
        read_blocks(reply)
        failed = True
        with contextlib.suppress(PatchError):
            paths_in_reply(reply)
            make_patch(files, apply_reply(files, reply))
            failed = False
        applied[failed] += 1
        seconds.append(time.thread_time() - started)
    assert min(applied.values()) > 80, applied
    assert sorted(seconds)[-len(seconds) // 100] < 0.05 and max(seconds) < 2


LONG = {
    "a long line": "### a.py\n<<<<<<< SEARCH\n" + "a" * 500_000 + "\n=======\nx\n>>>>>>> REPLACE\n",
    "many blocks": ("### a.py\n<<<<<<< SEARCH\n" + "a\n" * 200 + "b\n=======\nx\n>>>>>>> REPLACE\n") * 900,
    "many first markers": "### a.py\n" + "<<<<<<< SEARCH\n" * 100_000,
    "many arrows": "### " + " -> ".join("a" * 100_000),
    "many dividers": ("=" * 9 + "\n") * 100_000,
    "a long divider": "### a.py\n<<<<<<< SEARCH\na\n" + "=" * 1_000_000,
    "many empty lines": "\n" * 1_000_000 + "<<<<<<< SEARCH\n",
}


@pytest.mark.parametrize("name", LONG)
def test_a_reply_that_is_made_to_take_long_does_not(name):
    started = time.thread_time()
    with contextlib.suppress(PatchError):
        apply_reply({"a.py": "a\n" * 100_000}, LONG[name])
    assert time.thread_time() - started < 2 * slowness()
