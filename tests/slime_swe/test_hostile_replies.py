"""Replies that a policy wrote to do harm: no error but `PatchError`, and time that grows with them and no faster."""

from __future__ import annotations

import contextlib
import random
from collections import Counter

import pytest

from slime_swe.patches import PatchError, apply_reply, make_patch, paths_in_reply, read_blocks
from tests.effort import FACTOR, assert_linear
from tests.slime_swe.mutated_replies import mutated

SHARES = [0, *(pytest.param(n, marks=pytest.mark.extended("mutated replies")) for n in range(1, 100))]


@pytest.mark.parametrize("share", SHARES)
def test_a_mutated_reply_raises_its_own_error_only(share: int):
    """1,000 of the 100,000."""
    applied = Counter[bool]()
    for _, (files, reply) in zip(range(1_000), mutated(random.Random(share)), strict=False):
        read_blocks(reply)
        failed = True
        with contextlib.suppress(PatchError):
            paths_in_reply(reply)
            make_patch(files, apply_reply(files, reply))
            failed = False
        applied[failed] += 1
    assert min(applied.values()) > 80, applied


LONG = {
    "a long line": lambda n: "### a.py\n<<<<<<< SEARCH\n" + "a" * n + "\n=======\nx\n>>>>>>> REPLACE\n",
    "many blocks": lambda n: (
        ("### a.py\n<<<<<<< SEARCH\n" + "a\n" * 200 + "b\n=======\nx\n>>>>>>> REPLACE\n") * (n // 500)
    ),
    "many first markers": lambda n: "### a.py\n" + "<<<<<<< SEARCH\n" * (n // 15),
    "many arrows": lambda n: "### " + " -> ".join("a" * (n // 5)),
    "many dividers": lambda n: ("=" * 9 + "\n") * (n // 10),
    "a long divider": lambda n: "### a.py\n<<<<<<< SEARCH\na\n" + "=" * n,
    "many empty lines": lambda n: "\n" * n + "<<<<<<< SEARCH\n",
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_a_reply_is_applied_in_time_that_grows_with_it_and_with_the_file(name):
    size = 50_000
    replies = {length: LONG[name](length) for length in (size, FACTOR * size)}
    assert_linear(lambda length: applied("a\n" * 2 * size, replies[length]), size, name)
    assert_linear(lambda length: applied("a\n" * 2 * length, replies[size]), size, name)


def applied(text: str, reply: str) -> None:
    with contextlib.suppress(PatchError):
        apply_reply({"a.py": text}, reply)
