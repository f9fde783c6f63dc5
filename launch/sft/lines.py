"""A chosen episode as lines of the file: messages for any trainer of chat, and tokens for our own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slime_swe.launch.export.episodes import ExportedEpisode
from slime_swe.launch.export.messages import up_to_last_reply
from slime_swe.launch.sft.errors import failed_turns, mask_without
from slime_swe.rollout.openai_chat import chat_message
from slime_swe.rollout.records import Record
from slime_swe.rollout.turns import Turn

FLAG = "step_loss_mask"  # of an assistant's message: 0 is context alone (slime/utils/mask_utils.py)


@dataclass(frozen=True)
class TrainedSample:
    """A sample of an episode as it is trained. mask: of its response, empty where tokens were not recorded. turns: up
    to the last that was sampled. flags: of each of them, whether it is trained. failed: turns that ended in an error.
    """

    record: Record
    tools: list[dict[str, Any]]
    mask: list[int]
    turns: list[Turn]
    flags: list[bool]
    failed: int

    @property
    def tokens(self) -> int:
        """That are trained."""
        return sum(self.mask)

    def line(self, name: str, vocabulary: str) -> dict[str, Any]:
        """Of JSON's types. `name`: the episode's."""
        tokens = {"tokens": self.record.tokens, "loss_mask": self.mask, "vocabulary": vocabulary} if self.mask else {}
        return {
            "episode": name,
            "task": self.record.task or "",
            "solved": self.record.solved,
            "reward": self.record.reward,
            "messages": [_message(turn, flag) for turn, flag in zip(self.turns, self.flags, strict=True)],
            "tools": self.tools,
            **tokens,
        }


def trained_samples(episode: ExportedEpisode, errors: re.Pattern[str] | None) -> list[TrainedSample]:
    """The episode's samples that have something to train. errors: how a result that is one begins; None trains turns
    that ended in an error too.

    A turn that several samples show is trained in the first of them alone, as its tokens are.
    """
    found, known = [], set[tuple[Any, ...]]()
    for record, tools in zip(episode.records, episode.tools, strict=True):
        failed = failed_turns(record.turns or [], errors) if errors else []
        mask = mask_without(record, failed) if record.tokens else []
        turns = up_to_last_reply(record)
        flags = [_is_trained(turn, record, mask, failed, known) for turn in turns]
        known |= {_name(turn) for turn in turns}
        if any(flags):
            found.append(TrainedSample(record, tools, mask, turns, flags, len(failed)))
    return found


def _is_trained(
    turn: Turn, record: Record, mask: Sequence[int], failed: Sequence[Turn], known: set[tuple[Any, ...]]
) -> bool:
    if turn.role != "assistant" or any(turn is one for one in failed):
        return False
    if not record.tokens:
        return _name(turn) not in known
    before = len(record.tokens) - len(mask)
    return any(mask[max(0, turn.start - before) : max(0, turn.end - before)])


def _name(turn: Turn) -> tuple[Any, ...]:
    """What two samples of an episode show is the same turn where this is."""
    return turn.role, turn.began, turn.ended, turn.text, turn.reasoning


def _message(turn: Turn, trained: bool) -> dict[str, Any]:
    return chat_message(turn) | ({FLAG: int(trained)} if turn.role == "assistant" else {})
