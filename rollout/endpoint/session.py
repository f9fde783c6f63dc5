"""`EndpointSession`: one episode of a real agent whose model is at an endpoint, as the proxy sees it."""

from __future__ import annotations

from typing import Any, cast

from slime_swe.rollout.endpoint.client import EndpointClient
from slime_swe.rollout.endpoint.replies import ChatReply, ContextFull
from slime_swe.rollout.endpoint.untokenised import Untokenised, messages_to
from slime_swe.rollout.openai_chat import read_arguments
from slime_swe.rollout.proxy.conversation import Message, MessageCall, ProxyError, Request
from slime_swe.rollout.proxy.sessions import Finish, Policy, ProxySession, Spoken
from slime_swe.rollout.proxy.tree import Prompt
from slime_swe.rollout.settings import RolloutSettings


def endpoint_policy(settings: RolloutSettings, client: EndpointClient) -> Policy:
    """What samples, for `EndpointSession`s alone: there is no engine that takes tokens."""
    return Policy(
        client=cast(Any, client),
        templates=cast(Any, Untokenised()),
        tool_format="",
        max_context=settings.max_context,
        max_turns=settings.max_turns,
    )


class EndpointSession(ProxySession):
    """The proxy's placing, limits and record; what the policy says is the endpoint's reply to the recorded messages.

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


def _finish(reply: ChatReply, well_formed: list[MessageCall]) -> Finish:
    if reply.finish_reason == "length" and len(well_formed) == len(reply.calls):
        return "length"
    return "tool_calls" if reply.calls else "stop"
