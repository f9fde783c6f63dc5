"""Conversations whose tokens nobody here knows: their messages are recorded, each with no token of its own.

The templates stand where those of a model's tokenizer stand elsewhere, and give no tokens. So the agents and the proxy
record an endpoint's turns as they record others, and what is recorded of a conversation is what the endpoint is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime_swe.rollout.chat.template import Content, Message, Rendered, SampledTurn
from slime_swe.rollout.openai_chat import chat_message, read_arguments
from slime_swe.rollout.session import Node
from slime_swe.rollout.turns import Call, Turn

_CHARACTERS_OF_TOKEN = 3  # of code and test logs, with some to spare


@dataclass(frozen=True)
class Estimated(Rendered):
    """Messages without tokens; its length is about how many they would have."""

    def __len__(self) -> int:
        return sum(len(content.text) for content in self.contents) // _CHARACTERS_OF_TOKEN


class Untokenised:
    """In place of a `ChatTemplate` and of `Templates`."""

    stop_token_ids: Sequence[int] = ()

    def render_first(self, messages: Sequence[Message]) -> Rendered:
        return _rendered(messages)

    def render_delta(self, messages: Sequence[Message], after: Sequence[int]) -> Rendered:
        return _rendered(messages)

    def is_proven(self, opening: Sequence[Message] | None, blocks: Iterable[Sequence[str]]) -> bool:
        return True

    def of(self, tools: Sequence[Mapping[str, Any]]) -> Untokenised:
        return self

    def known(self, tools: Sequence[Mapping[str, Any]]) -> Untokenised:
        return self

    def turn(self, said: object) -> list[int]:
        return []

    def read(self, tokens: Sequence[int]) -> SampledTurn:
        return SampledTurn("", "", 0, kept=True)

    def decode(self, tokens: Sequence[int]) -> str:
        return ""


def messages_to(node: Node) -> list[dict[str, Any]]:
    """A conversation up to a place, as chat completions take it."""
    return [_sent(turn) for each in node.path() for turn in each.turns]


def _sent(turn: Turn) -> dict[str, Any]:
    message = chat_message(turn)
    if turn.calls:
        message["content"] = turn.text or None
        for call, given in zip(turn.calls, message["tool_calls"], strict=True):
            given["function"]["arguments"] = _readable(call)
    return message


def _readable(call: Call) -> str:
    """The arguments; an empty object for malformed ones: servers read a history's, and refuse what they can't."""
    return "{}" if read_arguments(call) is None else call.arguments


def _rendered(messages: Sequence[Message]) -> Rendered:
    return Estimated([], tuple(Content(message["content"], 0, 0) for message in messages))
