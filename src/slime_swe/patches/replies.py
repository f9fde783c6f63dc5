"""A whole answer in one reply of a model: search/replace blocks, or a unified diff."""

from __future__ import annotations

import re

from slime_swe.patches.apply import Files, apply_patch
from slime_swe.patches.blocks import Answer, read_blocks
from slime_swe.patches.edits import apply_edits, paths_of_edits, placed_edits
from slime_swe.patches.model import PatchError
from slime_swe.patches.paths import paths_of

_DIFF = re.compile(r"^(diff --git |--- .*\n\+\+\+ )", re.MULTILINE)


def paths_in_reply(reply: str) -> list[str]:
    """The files that a reply's edits name, sorted. Raises `PatchError` where it holds none, or a malformed one."""
    answer = _blocks(reply)
    return paths_of_edits(answer.edits) if answer.edits else list(paths_of(reply))


def apply_reply(files: Files, reply: str) -> dict[str, bytes]:
    """The files as a reply changes them. Raises `PatchError` where any part of it is malformed or does not fit.

    A unified diff whose line numbers are wrong is placed by its text, which must then occur once.
    """
    answer = _blocks(reply)
    if answer.edits:
        return apply_edits(files, answer.edits)
    try:
        return apply_patch(files, reply)
    except PatchError:
        return apply_edits(files, placed_edits(reply))


def _blocks(reply: str) -> Answer:
    """Without edits where the reply holds a unified diff in their place."""
    answer = read_blocks(reply)
    if answer.faults:
        raise PatchError("; ".join(answer.faults))
    if not answer.edits and not _DIFF.search(reply):
        raise PatchError("the reply holds no search/replace block and no unified diff")
    return answer
