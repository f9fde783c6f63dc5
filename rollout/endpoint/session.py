"""`EndpointSession`: one episode of a real agent whose model is at an endpoint, as the proxy sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from slime_swe.rollout.chat.template import Content, Rendered, SampledTurn
from slime_swe.rollout.chat.template import Message as TemplateMessage
from slime_swe.rollout.endpoint.client import EndpointClient
from slime_swe.rollout.endpoint.replies import ChatReply, ContextFull
from slime_swe.rollout.episode import Call, Node, Turn
from slime_swe.rollout.proxy.conversation import Message, MessageCall, ProxyError, Request, chat_message, read_arguments
from slime_swe.rollout.proxy.sessions import Finish, Policy, ProxySession, Spoken
from slime_swe.rollout.proxy.tree import Prompt
from slime_swe.rollout.settings import RolloutSettings


def endpoint_policy(settings: RolloutSettings, client: EndpointClient) -> Policy:
    """Make the policy for `EndpointSession`s, and for these alone: it has no engine that takes tokens."""
    return Policy(
        client=cast(Any, client),
        templates=cast(Any, Untokenised()),
        tool_format="",
        max_context=settings.max_context,
        max_turns=settings.max_turns,
    )


class EndpointSession(ProxySession):
    """A session with the proxy's placing, limits and record; what the policy says is the endpoint's reply to the
    recorded messages.

    Whatever protocol the agent speaks, the endpoint is asked for chat completions with the run's sampling parameters.
    """

    async def _spoken(self, request: Request, prompt: Prompt) -> Spoken:
        client, params = cast(EndpointClient, self.policy.client), self._params(request, prompt)
        try:
            with self.statistics.engine_time():
                reply = await client.complete(messages_to(prompt.node), request.tools, params)
        except ContextFull as error:
            self._note_too_long()
            raise ProxyError("context_length", str(error)) from error
        self.failure, self.full = None, False
        self.statistics.add(reply)
        well_formed = [call for call in reply.calls if read_arguments(call) is not None]
        self._count(well_formed)
        self.statistics.malformed_calls += len(reply.calls) - len(well_formed)
        said = Message("assistant", reply.text, reply.calls, reasoning=reply.reasoning)
        return Spoken(said, _finish(reply, well_formed), reply, reply.prompt_tokens, reply.reasoning_tokens)


# Conversations whose tokens nobody here knows: their messages are recorded, each with no token of its own.
#
# The templates stand where those of a model's tokenizer stand elsewhere, and give no tokens. So the agents and the
# proxy record an endpoint's turns as they record others, and what is recorded of a conversation is what the endpoint is
# sent.
_CHARACTERS_OF_TOKEN = 3  # of code and test logs, with some to spare


@dataclass(frozen=True)
class Estimated(Rendered):
    """Messages without tokens; its length is about how many they would have."""

    def __len__(self) -> int:
        return sum(len(content.text) for content in self.contents) // _CHARACTERS_OF_TOKEN


class Untokenised:
    """A stand-in for `ChatTemplate` and for `Templates` that gives no tokens."""

    stop_token_ids: Sequence[int] = ()

    def render_first(self, messages: Sequence[TemplateMessage]) -> Rendered:
        return _rendered(messages)

    def render_delta(self, messages: Sequence[TemplateMessage], after: Sequence[int]) -> Rendered:
        return _rendered(messages)

    def is_proven(self, opening: Sequence[TemplateMessage] | None, blocks: Iterable[Sequence[str]]) -> bool:
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
    """Return a conversation up to a place, as chat completions take it."""
    return [_sent(turn) for each in node.path() for turn in each.turns]


def _sent(turn: Turn) -> dict[str, Any]:
    message = chat_message(turn)
    if turn.calls:
        message["content"] = turn.text or None
        for call, given in zip(turn.calls, message["tool_calls"], strict=True):
            given["function"]["arguments"] = _readable(call)
    return message


def _readable(call: Call) -> str:
    """Return the arguments, `{}` for malformed ones: servers read a history's, and refuse what they can't read."""
    return "{}" if read_arguments(call) is None else call.arguments


def _rendered(messages: Sequence[TemplateMessage]) -> Rendered:
    return Estimated([], tuple(Content(message["content"], 0, 0) for message in messages))


def _finish(reply: ChatReply, well_formed: list[MessageCall]) -> Finish:
    if reply.finish_reason == "length" and len(well_formed) == len(reply.calls):
        return "length"
    return "tool_calls" if reply.calls else "stop"
