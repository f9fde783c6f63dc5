"""`Templates`: a checkpoint's chat template for whatever tools clients bring, proven once and not for each list of
tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from slime_swe.rollout.chat.template import ChatTemplate, SampledTurn
from slime_swe.rollout.chat.tokenizer import Piece, TemplateError
from slime_swe.rollout.chat.tool_formats import ToolCall
from slime_swe.rollout.chat.tool_formats import tool_format as tool_format_of
from slime_swe.rollout.proxy.conversation import Message, MessageCall

_REMEMBERED = 16  # lists of tools, of at most so many bytes of JSON
_REMEMBERED_BYTES = 128 << 10
_TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


class Templates:
    """The templates of one tokenizer, by lists of tools. All sessions share them: what is proven is remembered."""

    def __init__(self, tokenizer: Any, tool_format: str, eos_ids: Iterable[int] = ()) -> None:
        """Prove the chat template. eos_ids: as `ChatTemplate` takes them. Raises `TemplateError` where the chat
        template can't be used token-exactly.
        """
        render = tool_format_of(tool_format).render
        if render is None:
            raise TemplateError(
                f"model.tool_format={tool_format}: calls can be read but not written, for agents' histories"
            )
        self._render = render
        self._usual = ChatTemplate(tokenizer, [_TOOL], eos_ids=eos_ids)
        self._usual.prove()
        self._known: dict[bytes, ChatTemplate] = {}

    def of(self, tools: Sequence[Mapping[str, Any]]) -> ChatTemplate:
        """Return the template with these tools. Several threads may ask. Raises `TemplateError`."""
        key = orjson.dumps(tools)
        template = self._known.get(key)
        if template is None:
            template = self._usual.with_tools(tools)
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            if len(key) <= _REMEMBERED_BYTES:
                self._known[key] = template
        return template

    def known(self, tools: Sequence[Mapping[str, Any]]) -> ChatTemplate | None:
        """Return the template with these tools where it is at hand, else None."""
        return self._known.get(orjson.dumps(tools))

    @property
    def stop_token_ids(self) -> list[int]:
        return self._usual.stop_token_ids

    def read(self, tokens: Sequence[int]) -> SampledTurn:
        """Read what a sampled turn says."""
        return self._usual.read(tokens)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of a sampled turn, without its stop token."""
        return self._usual.decode(tokens)

    def turn(self, said: Message) -> list[int]:
        """Return the tokens of an assistant's message that the policy did not sample, without a stop token."""
        pieces: list[Piece] = [0] if said.text else []
        contents = [said.text]
        if said.calls:
            pieces += ["\n"] if pieces else []
            for number, text in enumerate(self._render([_tool_call(call) for call in said.calls])):
                pieces.append(text if number % 2 == 0 else len(contents))
                contents += [text] if number % 2 else []
        return self._usual.unsampled(pieces, contents)


def _tool_call(call: MessageCall) -> ToolCall:
    try:
        arguments = orjson.loads(call.arguments)
    except orjson.JSONDecodeError:
        arguments = None
    return ToolCall(call.name, arguments if isinstance(arguments, dict) else {"input": call.arguments})
