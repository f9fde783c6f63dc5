"""The connections of an agent to its run's engine."""

from __future__ import annotations

import asyncio

import aiohttp

from slime_swe.errors import InfrastructureError, UserError
from slime_swe.rollout.chat.tokenizer import vocabulary_size
from slime_swe.rollout.client import EngineClient
from slime_swe.rollout.gate import Gate
from slime_swe.rollout.loop_scope import gate_of_loop
from slime_swe.rollout.settings import RolloutSettings

_ABORT_SECONDS = 30.0
_ROUTING_REPLAY_BODY = 512 << 20  # bytes: tables of tokens x layers x top-k come with each reply


async def engine_client(settings: RolloutSettings) -> EngineClient:
    """The connections of a run's agent to its engine, to be entered.

    One request may take half as long as an episode's time budget; one that takes longer is the engine's failure.
    """
    vocabulary = await asyncio.to_thread(vocabulary_size, settings.checkpoint)
    experts_per_token = settings.layers * settings.experts_per_token if settings.routing_replay else 0
    if settings.routing_replay and not experts_per_token:
        raise UserError("routing replay needs the sizes of its tables: args.num_layers and args.moe_router_topk")
    return EngineClient(
        settings.engine_url,
        timeout=settings.time_budget / 2,
        vocabulary=vocabulary,
        experts_per_token=experts_per_token,
        gate=Gate() if settings.evaluation else await gate_of_loop(),
        **({"max_body": _ROUTING_REPLAY_BODY} if settings.routing_replay else {}),
    )


async def abort_all(url: str) -> None:
    """Have the engines at this address drop what they sample: a router's workers, or the server itself.

    Raises `InfrastructureError` where one does not answer.
    """
    timeout = aiohttp.ClientTimeout(total=_ABORT_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout, raise_for_status=False) as http:
            async with http.get(f"{url}/workers") as response:
                workers = (await response.json())["workers"] if response.status == 200 else [{"url": url}]
            for worker in workers:
                async with http.post(f"{worker['url']}/abort_request", json={"abort_all": True}) as response:
                    response.raise_for_status()
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        raise InfrastructureError(f"the engines at {url} can't be asked to pause: {error!r}") from error
