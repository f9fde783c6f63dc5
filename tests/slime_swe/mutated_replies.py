"""Replies with faults, made at random from honest ones: what a policy may write by mistake or on purpose."""

from __future__ import annotations

import random
from collections.abc import Iterator

from slime_swe.patches import PatchError, edits_of, make_patch, write_blocks
from slime_swe.patches.unified import NO_NEWLINE
from tests.slime_swe.random_edits import LINES, before_and_after

ODD = [
    *LINES,
    "<<<<<<< SEARCH",
    "<<<<<<<SEARCH",
    "<<<<<<<<<<<< SEARCH",
    "========",
    ">>>>>>> REPLACE",
    ">>>>>>>>",
    "### a.py",
    "### ../a.py",
    "### .git/config",
    "### a.py -> b.py",
    "### a.py -> /dev/null",
    "### /etc/passwd",
    '### "\\777"',
    '\\"""',
    "\\'''\\",
    "```",
    "### " + " " * 5_000,
    "### " + "a/" * 5_000,
    "### " + '"' * 5_000,
    "### " + "x -> " * 2_000,
    "#" * 5_000,
    "`" * 5_000,
    "<" * 5_000,
    "=" * 5_000,
    ">" * 5_000,
    "\n" * 2_000,
    " " * 20_000,
    "a\n" * 5_000,
    "\\" * 5_000,
    NO_NEWLINE,
    "\ud800",
    "\0",
    "\udcff",
    "### a.py\n<<<<<<< SEARCH\n=======\nx\n>>>>>>> REPLACE\n" * 400,
    "<<<<<<< SEARCH\n" * 2_000,
    "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n",
]


def honest(dice: random.Random) -> tuple[dict[str, str], str]:
    """Files, and a reply that edits them."""
    while True:
        before, after = before_and_after(dice)
        patch = make_patch(before, after)
        try:
            return before, patch if dice.random() < 0.2 else write_blocks(edits_of(before, patch))
        except PatchError:
            continue


def mutated(dice: random.Random) -> Iterator[tuple[dict[str, str], str]]:
    """Files and a reply, without end; of each honest reply several."""
    while True:
        files, reply = honest(dice)
        for _ in range(8):
            lines = reply.split("\n")
            for _ in range(dice.randint(1, 3)):
                at = dice.randrange(len(lines) + 1)
                how = dice.randrange(5)
                if how == 0:
                    del lines[at : at + dice.randint(1, 3)]
                elif how == 1:
                    lines[at:at] = lines[at : at + dice.randint(1, 6)] * dice.choice([1, 2, 50])
                elif how == 2 and lines:
                    other = dice.randrange(len(lines))
                    lines[other : other + 1] = [lines[other][: dice.randrange(9)]]
                else:
                    lines.insert(at, dice.choice(ODD))
            yield files, "\n".join(lines)
