"""Open the native agent for a run: its tokenizer, its proven chat template and its connections to the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollout.agents.native import NativeAgent
from rollout.chat.template import ChatTemplate
from rollout.chat.tokenizer import load_tokenizer, vocabulary_size
from rollout.client import EngineClient
from rollout.settings import RolloutSettings
from rollout.tools import TOOLS

_ROUTING_REPLAY_BODY = 512 << 20  # bytes: tables of tokens x layers x top-k come with each reply


@asynccontextmanager
async def open_native(settings: RolloutSettings) -> AsyncIterator[NativeAgent]:
    """Raises `TemplateError` where the checkpoint's chat template can't be used token-exactly.

    One model call may take half as long as an episode's time budget; one that takes longer is the engine's failure.
    """
    template = await asyncio.to_thread(load_template, settings.checkpoint)
    vocabulary = await asyncio.to_thread(vocabulary_size, settings.checkpoint)
    body = {"max_body": _ROUTING_REPLAY_BODY} if settings.routing_replay else {}
    async with EngineClient(
        settings.engine_url, timeout=settings.time_budget / 2, vocabulary=vocabulary, **body
    ) as client:
        yield NativeAgent(settings, client, template)


def load_template(checkpoint: str) -> ChatTemplate:
    """The checkpoint's template with the native agent's tools, proven."""
    template = ChatTemplate(load_tokenizer(checkpoint), [tool.spec.schema() for tool in TOOLS])
    template.prove()
    return template
