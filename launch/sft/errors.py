"""Which of the policy's turns ended in an error: they stay as context, and are not trained (swe-lego.github.io)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from slime_swe.rollout.openai_chat import read_arguments
from slime_swe.rollout.records import Record
from slime_swe.rollout.turns import UNNAMED, Turn

ERROR = r"\s*(Error\b|<tool_use_error>)"  # how the tools of this package and of Claude Code begin to say so


def failed_turns(turns: Sequence[Turn], pattern: re.Pattern[str]) -> list[Turn]:
    """Assistant turns with a malformed call, or one of whose calls did nothing: its result is marked as failed, or
    begins as the pattern says. A test or a program that fails is no error: to see that, the agent ran it."""
    failed: list[Turn] = []
    said: Turn | None = None
    for turn in turns:
        if turn.role == "assistant":
            said = turn
            wrong = _is_malformed(turn)
        else:
            wrong = turn.failed or (turn.role == "tool" and pattern.match(turn.text) is not None)
        if wrong and said is not None and (not failed or failed[-1] is not said):
            failed.append(said)
    return failed


def _is_malformed(turn: Turn) -> bool:
    return any(call.name == UNNAMED or read_arguments(call) is None for call in turn.calls)


def mask_without(record: Record, turns: Iterable[Turn]) -> list[int]:
    """The record's loss mask, without the tokens of these turns."""
    mask = list(record.loss_mask or ())
    before = len(record.tokens) - len(mask)
    for turn in turns:
        for place in range(max(0, turn.start - before), max(0, turn.end - before)):
            mask[place] = 0
    return mask
