"""`Templates`: a checkpoint's chat template for whatever tools clients bring, proven once and not for each of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from slime_swe.rollout.chat.hermes import CLOSE, OPEN
from slime_swe.rollout.chat.template import ChatTemplate
from slime_swe.rollout.chat.tokenizer import Encoder, Slot
from slime_swe.rollout.chat.tool_formats import ToolCall
from slime_swe.rollout.chat.tool_formats import tool_format as tool_format_of
from slime_swe.rollout.proxy.conversation import Message, MessageCall

_REMEMBERED = 32  # lists of tools
_TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}

Tools = Sequence[Mapping[str, Any]]


class Templates:
    """The templates of one tokenizer, by lists of tools. Shared by all sessions: what is proven is remembered."""

    def __init__(self, tokenizer: Any, tool_format: str) -> None:
        """Raises `TemplateError` where the chat template can't be used token-exactly."""
        self._tokenizer = tokenizer
        self._encoder = Encoder(tokenizer)
        self._render = tool_format_of(tool_format).render
        self._usual = ChatTemplate(tokenizer, [_TOOL], self._encoder)
        self._usual.prove()
        self._known: OrderedDict[bytes, ToolTemplate] = OrderedDict()

    def of(self, tools: Tools) -> ToolTemplate:
        """Raises `TemplateError`."""
        key = orjson.dumps(tools)
        if key not in self._known:
            opening = ChatTemplate(self._tokenizer, tools, self._encoder)
            opening.require_deltas_of(self._usual)
            self._known[key] = ToolTemplate(opening, self._usual, self._encoder, self._render)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    @property
    def stop_token_ids(self) -> list[int]:
        return self._usual.stop_token_ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of a sampled turn, without its stop token."""
        return self._usual.decode(tokens)


class ToolTemplate:
    """Token ids of conversations with one list of tools, which only the opening holds."""

    def __init__(
        self,
        opening: ChatTemplate,
        usual: ChatTemplate,
        encoder: Encoder,
        render: Callable[[ToolCall], str],
    ) -> None:
        self._opening = opening
        self._usual = usual
        self._encoder = encoder
        self._render = render

    @property
    def stop_token_ids(self) -> list[int]:
        return self._usual.stop_token_ids

    def first_prompt(self, messages: Sequence[Message]) -> list[int]:
        return self._opening.first_prompt(_plain(messages))

    def delta(self, messages: Sequence[Message], *, closed: bool) -> list[int]:
        return self._usual.delta(_plain(messages), closed=closed)

    def turn(self, said: Message) -> list[int]:
        """Tokens of an assistant's message that the policy did not sample, stop token included."""
        pieces: list[str | Slot] = [Slot(0)] if said.text else []
        for number, _ in enumerate(said.calls, 1):
            pieces += ["\n"] if pieces else []
            pieces += [f"{OPEN}\n", Slot(number), f"\n{CLOSE}"]
        contents = [said.text, *(self._render(_tool_call(call)) for call in said.calls)]
        return [*self._encoder.compile(pieces).fill(contents), self.stop_token_ids[0]]


def _plain(messages: Sequence[Message]) -> list[Mapping[str, str]]:
    return [{"role": message.role, "content": message.text} for message in messages]


def _tool_call(call: MessageCall) -> ToolCall:
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        arguments = None
    return ToolCall(call.name, arguments if isinstance(arguments, dict) else {"input": call.arguments})
