"""`Turn`: one message of an episode, as it was said and shown: by whom, when, and where its tokens are in a sample."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import orjson
from msgspec.structs import replace

from slime_swe.rollout.chat.tool_formats import MalformedCall, ToolCall

UNNAMED = "unnamed_tool"

Role = Literal["system", "user", "assistant", "tool"]


class Call(msgspec.Struct, frozen=True):
    """A tool call of an assistant's turn. `arguments` is JSON text; of a malformed call, what the policy wrote."""

    id: str
    name: str
    arguments: str


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. `tokens[start:end]` of its sample are the turn's.

    Of an assistant, these are all that the policy sampled, its stop token included; `text` is what was said beside the
    reasoning and the calls. Of others, they are the fewest that hold the text, so that those of the chat template
    around it are in no turn. A turn after the last sampled token has none: `start` and `end` are the sample's length.

    began, ended: seconds since the episode began. A reply begins when the engine is asked for it. A tool's result of
    the native agent begins with the call; one of another agent, when it had the reply with the call, and it ends when
    the agent sends it. A message that was there at once ends as it begins. call_id: the call that a tool's turn
    answers; empty where the agent does not say. failed: it tells the policy that what it wrote did nothing: a call
    that is malformed, can't be carried out or was cut off. Only the native agent says so.
    """

    role: Role
    text: str
    start: int
    end: int
    began: float = 0.0
    ended: float = 0.0
    reasoning: str = ""
    calls: list[Call] = []
    call_id: str = ""
    failed: bool = False

    @property
    def is_blank(self) -> bool:
        return not (self.text or self.reasoning or self.calls)


def call_of(call: ToolCall | MalformedCall, id: str) -> Call:
    """Make the `Call` of what the policy wrote. One without a name is named `UNNAMED`: no client has such a tool, and
    some drop a call that has no name.
    """
    name = call.name.encode("utf-8", "replace").decode() or UNNAMED  # JSON can spell half a surrogate pair
    written = call.arguments
    return Call(id, name, written if isinstance(written, str) else _json(written))


def moved(turns: Iterable[Turn], by: int) -> list[Turn]:
    """Return the turns, with so many tokens before them."""
    return [replace(turn, start=turn.start + by, end=turn.end + by) for turn in turns]


def up_to(turns: Iterable[Turn], length: int) -> list[Turn]:
    """Return the turns of a sample that is cut to so many tokens."""
    return [replace(turn, start=min(turn.start, length), end=min(turn.end, length)) for turn in turns]


def read_blank(turns: Iterable[Turn], tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[Turn]:
    """Return the turns, where those that nobody has read get the text of their tokens."""
    return [
        replace(turn, text=decode(tokens[turn.start : turn.end])) if turn.is_blank and turn.end > turn.start else turn
        for turn in turns
    ]


def of_episode(segments: Iterable[Sequence[Turn]]) -> list[Turn]:
    """Return the turns of an episode's samples in the order in which they ended, those that samples share once.

    Their token spans are those of the first sample that has them.
    """
    once = {
        (turn.role, turn.began, turn.ended, turn.text, turn.reasoning, tuple(turn.calls), turn.call_id): turn
        for turns in reversed([*segments])
        for turn in turns
    }
    first_seen = {id(turn): place for place, turn in enumerate(once.values())}
    return sorted(once.values(), key=lambda turn: (turn.ended, first_seen[id(turn)]))


def _json(arguments: Mapping[str, Any]) -> str:
    try:
        return orjson.dumps(arguments).decode()
    except (orjson.JSONEncodeError, RecursionError):  # numbers beyond 64 bits
        return json.dumps(arguments)
