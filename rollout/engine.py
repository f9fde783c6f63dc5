"""A run's engine: an agent's connections to it, the workers behind a router, and whether it follows a grammar."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from contextlib import nullcontext
from urllib.parse import urlsplit

import aiohttp

from slime_swe.errors import InfrastructureError, UserError
from slime_swe.rollout.chat.tokenizer import vocabulary_size
from slime_swe.rollout.client import EngineClient, Gate, Generation
from slime_swe.rollout.grammar import Grammar
from slime_swe.rollout.loop_scope import gate_of_loop, opened_once
from slime_swe.rollout.replies import EngineError, Transient
from slime_swe.rollout.settings import RolloutSettings

_ANSWER_SECONDS = 30.0
_CONNECTION_SECONDS = 5.0
UNANSWERED = (aiohttp.ClientError, TimeoutError, ValueError, KeyError)
ADAPTER = "miles_lora"  # miles' own name of it: miles/utils/lora.py
_RANK = re.compile(r"@\d+\Z")
_ROUTING_REPLAY_BODY = 512 << 20  # bytes: tables of tokens x layers x top-k come with each reply

_log = logging.getLogger(__name__)


async def engine_client(settings: RolloutSettings) -> EngineClient:
    """Return the connections of a run's agent to its engine, to be entered.

    One request may take half as long as an episode's time budget; one that takes longer is the engine's failure. Raises
    `UserError` where routing replay lacks the sizes of its tables.
    """
    vocabulary = await asyncio.to_thread(vocabulary_size, settings.checkpoint)
    experts_per_token = settings.layers * settings.experts_per_token if settings.routing_replay else 0
    if settings.routing_replay and not experts_per_token:
        raise UserError("routing replay needs the sizes of its tables: args.num_layers and args.moe_router_topk")
    url = settings.engine_url
    workers = await opened_once(("workers", url), lambda: nullcontext(Workers(url)))
    return EngineClient(
        url,
        timeout=settings.time_budget / 2,
        vocabulary=vocabulary,
        experts_per_token=experts_per_token,
        adapter=ADAPTER if settings.lora_rank else "",
        ranks=settings.ranks,
        on_failure=workers.remove_dead,
        gate=Gate() if settings.evaluation else await gate_of_loop(),
        **({"max_body": _ROUTING_REPLAY_BODY} if settings.routing_replay else {}),
    )


class Workers:
    """The engines at one address: a router's workers, or the server itself, which `remove_dead` leaves alone.

    SLiME starts its router without health checks and without circuit breakers. So it goes on sending to a worker that
    is gone what it once sent there, until somebody removes the worker.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._removing: asyncio.Task[list[str]] | None = None

    async def remove_dead(self) -> list[str]:
        """Have the router forget the workers that take no connections; returns their URLs. While no worker takes any,
        all stay. Calls that come while one is under way share it.

        Not covered: a worker that takes connections and answers none.
        """
        if self._removing is None or self._removing.done():
            self._removing = asyncio.create_task(self._remove_dead())
        return await asyncio.shield(self._removing)

    async def _remove_dead(self) -> list[str]:
        removed = []
        try:
            async with _session() as http:
                workers = await workers_at(http, self.url)
                answers = await asyncio.gather(*(_takes_connections(worker["url"]) for worker in workers))
                for worker, answer in zip(workers, answers, strict=True):
                    if any(answers) and not answer and "id" in worker:
                        async with http.delete(f"{self.url}/workers/{worker['id']}") as response:
                            response.raise_for_status()
                        removed.append(worker["url"])
        except UNANSWERED as error:
            _log.warning("the router at %s can't be asked for its workers: %r", self.url, error)
        for url in removed:
            _log.warning("the engine at %s takes no connections: the router at %s sends it no more", url, self.url)
        return removed


async def abort_all(url: str) -> None:
    """Have the engines at this address drop what they sample. One that takes no connections samples nothing.

    Raises `InfrastructureError` where one does not answer.
    """
    try:
        async with _session() as http:
            for worker in await workers_at(http, url):
                if not await _takes_connections(worker["url"]):
                    continue
                async with http.post(f"{worker['url']}/abort_request", json={"abort_all": True}) as response:
                    response.raise_for_status()
    except UNANSWERED as error:
        raise InfrastructureError(f"the engines at {url} can't be asked to pause: {error!r}") from error


async def engine_urls(url: str) -> list[str]:
    """Return the URLs of the engines at this address, each once. Raises `InfrastructureError` where a router names none
    or does not answer.
    """
    try:
        async with _session() as http:
            found = [*dict.fromkeys(worker["url"] for worker in await workers_at(http, url))]
    except UNANSWERED as error:
        raise InfrastructureError(f"the router at {url} can't be asked for its engines: {error!r}") from error
    if not found:
        raise InfrastructureError(f"the router at {url} has no engine")
    return found


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS))


async def workers_at(http: aiohttp.ClientSession, url: str) -> list[dict[str, str]]:
    """Return a router's workers, or the server itself. A router that tells the GPUs of an engine apart has one for
    each, which it names `URL@RANK`: they get the URL of their engine."""
    async with http.get(f"{url}/workers") as response:
        if response.status != 200:  # no router
            return [{"url": url}]
        workers: list[dict[str, str]] = (await response.json())["workers"]
        return [{**worker, "url": _RANK.sub("", worker["url"])} for worker in workers]


async def _takes_connections(url: str) -> bool:
    address = urlsplit(url)
    try:
        async with asyncio.timeout(_CONNECTION_SECONDS):
            _, writer = await asyncio.open_connection(address.hostname, address.port or 80)
    except OSError:  # a `TimeoutError` too
        return False
    writer.close()
    return True


# `require_grammar` finds out whether an engine samples by a grammar, and says with what probability it did.
_PROMPT = [0]  # any token will do
_APART = ("A", "B")  # two grammars that share no text


async def require_grammar(client: EngineClient, grammar: Grammar) -> None:
    """Raise `UserError` where the engine can't sample by this grammar, or does not say with what probability it did.

    Of two grammars that share no text, the forced first tokens differ, and have probability 1 each as they were
    sampled. As the policy's own, the two sum to 1 at most, whatever the model.
    """
    try:
        one, other = [await _forced(client, letter) for letter in _APART]
        params = {"temperature": 1.0, "max_new_tokens": 1, "stop_token_ids": [], **grammar.params}
        await client.generate(_PROMPT, params, tolerance=grammar.tolerance)
    except Transient:
        raise
    except EngineError as error:
        raise UserError(
            f"rollout.grammar: the engine can't sample by it as grammar_kind={grammar.kind}, or not say what the "
            f"policy alone would do (SGLang does, with --grammar-backend xgrammar or, on a CPU, llguidance): {error}"
        ) from error
    if one.tokens == other.tokens:
        raise UserError(
            "rollout.grammar: the engine samples the same where two grammars share no text: it follows none"
        )
    shares = [math.exp(said.log_probs[0]) for said in (one, other)]
    if sum(shares) < 1.5:
        raise UserError(
            f"rollout.grammar: the engine returns the policy's own log-probabilities of what a grammar forced (of "
            f"{' and '.join(_APART)}: {shares[0]:.2g} and {shares[1]:.2g}), and not those that it sampled with: which "
            "tokens the grammar changed can't be told. SGLang returns the latter"
        )


async def _forced(client: EngineClient, letter: str) -> Generation:
    """Sample the first token of a text that has to be this letter."""
    params = {"temperature": 1.0, "max_new_tokens": 1, "stop_token_ids": [], "regex": letter}
    return await client.generate(_PROMPT, params)
