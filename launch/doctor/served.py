"""Probes of whether a router or an engine passes on each field that training needs: one a field, by real requests.

`probe` answers with a result for each; the doctor's check `fields` makes it of the servers that a recipe names. The
probes ask the policy for some hundred tokens, and compare what is said with what is said again: no probe knows the
model. A field may be dropped, renamed, or be that of another token.
"""

from __future__ import annotations

import asyncio
import base64
import random
import uuid
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import aiohttp

from slime_swe.errors import UserError
from slime_swe.launch.doctor import Finding, Machine, failure, ok, skipped
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.client import SESSION, EngineClient
from slime_swe.rollout.engine import require_grammar, workers_at
from slime_swe.rollout.grammar import Grammar, Kind

ANSWER_SECONDS = 120.0
PROMPT, SAID = 96, 24  # tokens
ROOM = 2048  # tokens of a reply that is aborted, at most
ABORTS_EVERY = 0.02  # seconds
ASKED_AGAIN = 6  # times, the same prompt
CLOSE = 0.1  # between two log-probabilities of one token, in half precision
CUTS = (24, 48, 72)  # places in a prompt
SAME = 0.8  # of the rows of routed experts: rounding changes some
_GREEDY = {"temperature": 0.0, "ignore_eos": True}


class Wrong(Exception):
    """A probe has found that a field is refused, missing or wrong; the message says what it saw."""


@dataclass(frozen=True)
class Result:
    """The result of one probe. name: the field. message: what was seen."""

    name: str
    ok: bool
    message: str


@dataclass
class Server:
    """The router or engine that is probed. vocabulary: its number of token ids. room: how many tokens it may say to one
    prompt, some hundred or more. experts_per_token: in all layers together; 0 for none. ranks: GPUs of an engine that
    each keep the cache of their own requests."""

    url: str
    http: aiohttp.ClientSession
    vocabulary: int
    room: int
    experts_per_token: int
    ranks: int = 1
    prompt: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = self.new_prompt()

    def new_prompt(self) -> list[int]:
        """Draw a prompt that nobody has asked before."""
        return [random.SystemRandom().randrange(self.vocabulary // 2) for _ in range(PROMPT)]

    async def ask(
        self, ids: list[int], length: int = SAID, headers: Mapping[str, str] | None = None, **given: Any
    ) -> dict[str, Any]:
        """Return the whole answer to one request; `sampling` changes its parameters. Raises `Wrong` if refused."""
        sampling = {**_GREEDY, "max_new_tokens": length, **given.pop("sampling", {})}
        body = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True, **given}
        async with self.http.post(f"{self.url}/generate", json=body, headers=headers) as response:
            if response.status != 200:
                raise Wrong(
                    f"POST /generate with {listed(given)} is refused: {response.status} {await _said(response)}"
                )
            answer: dict[str, Any] = await response.json(content_type=None)
            return answer


def listed(given: Mapping[str, Any]) -> str:
    return ", ".join(("input_ids", *given))


async def _said(response: aiohttp.ClientResponse) -> str:
    return (await response.text())[:200]


def meta(answer: Mapping[str, Any], name: str) -> Any:
    found = answer.get("meta_info") or {}
    if name not in found:
        raise Wrong(f"the answer's meta_info has no {name}, only {', '.join(found)}")
    return found[name]


def require(true: bool, message: str) -> None:
    if not true:
        raise Wrong(message)


async def input_ids(server: Server) -> str:
    counted = meta(await server.ask(server.prompt, 1), "prompt_tokens")
    require(counted == PROMPT, f"{counted} prompt tokens were counted where input_ids has {PROMPT}")
    return f"{PROMPT} token ids are {PROMPT} prompt tokens"


async def log_probabilities(server: Server) -> str:
    """Check that the log-probability of each token is its own: the tokens up to one of them, asked as a prompt, give
    the next again."""
    answer = await server.ask(server.prompt)
    triples = meta(answer, "output_token_logprobs")
    said = [token for _, token, *_ in triples]
    require(len(said) == SAID, f"{len(said)} log-probabilities came for {SAID} tokens")
    require(said == answer.get("output_ids", said), "they are not those of output_ids")
    for place in (1, SAID // 2, SAID - 1):
        again = await server.ask([*server.prompt, *said[:place]], 1)
        ((value, token, *_),) = meta(again, "output_token_logprobs")
        gap = abs(value - triples[place][0])
        require(token != said[place] or gap <= CLOSE, f"that of token {place} is {gap:.2g} off when asked again")
    return f"{SAID} came for {SAID} tokens, and come again"


async def weight_version(server: Server) -> str:
    found = meta(await server.ask(server.prompt, 1), "weight_version")
    require(isinstance(found, str | int), f"it is {found!r}")
    return f"it is {found!r}"


async def finish_reason(server: Server) -> str:
    """Check that the limit ends one answer, and a stop token another, in which it is there and is named. It is the
    first token that was said, so that nothing else stops before it."""
    answer = await server.ask(server.prompt)
    require(meta(answer, "finish_reason")["type"] == "length", f"it is {meta(answer, 'finish_reason')} at the limit")
    stop = meta(answer, "output_token_logprobs")[0][1]
    stopping = {"stop_token_ids": [stop], "ignore_eos": False, "no_stop_trim": True}
    cut = await server.ask(server.prompt, sampling=stopping)
    reason, ends = meta(cut, "finish_reason"), [token for _, token, *_ in meta(cut, "output_token_logprobs")]
    require(reason.get("type") == "stop", f"it is {reason} where token {stop} should stop")
    require(reason.get("matched") == stop, f"it names {reason.get('matched')!r} where token {stop} stopped")
    require(ends == [stop], f"the answer is {ends} where token {stop} stopped")
    return f"it names the limit, and the token {stop} that stopped"


async def cached_tokens(server: Server) -> str:
    prompt = server.new_prompt()
    found = [meta(await server.ask(prompt, 1), "cached_tokens") for _ in range(ASKED_AGAIN)]
    require(max(found) > 0, f"none of a prompt that was asked {ASKED_AGAIN} times")
    return f"{max(found)} of {PROMPT} when asked again"


async def rid(server: Server) -> str:
    """Check that a request's name comes back with its answer, and that this request alone is aborted by it."""
    name, other = (f"probe-{uuid.uuid4().hex}" for _ in range(2))
    aborted, kept = [asyncio.ensure_future(server.ask(server.prompt, server.room, rid=one)) for one in (name, other)]
    try:
        ended = await _abort(server, name, aborted)
        also = kept.done() and meta(kept.result(), "finish_reason")["type"] == "abort"
        await _abort(server, other, kept)
    finally:
        aborted.cancel()
        kept.cancel()
    require(ended == "abort", f"a request that was aborted by its rid ended by {ended!r}")
    require(not also, "another request was aborted as well")
    require(meta(aborted.result(), "id") == name, f"the answer's id is {meta(aborted.result(), 'id')!r}, not the rid")
    return "it names a request, which alone is aborted"


async def _abort(server: Server, name: str, asked: asyncio.Future[dict[str, Any]]) -> Any:
    """Tell every engine to abort a request until it ends, and return how it does."""
    workers = [worker["url"] for worker in await workers_at(server.http, server.url)]
    while not asked.done():
        for worker in workers:
            async with server.http.post(f"{worker}/abort_request", json={"rid": name}) as response:
                require(response.status == 200, f"POST {worker}/abort_request is refused: {response.status}")
        await asyncio.sleep(ABORTS_EVERY)
    return meta(asked.result(), "finish_reason")["type"]


async def session(server: Server) -> str:
    """Check that the requests of one session go to one engine, which has their prefix cached; where each GPU of an
    engine has a cache of its own, to the GPU that they name."""
    headers, prompt = {SESSION: uuid.uuid4().hex}, server.new_prompt()
    one: dict[str, Any] = {"routed_dp_rank": server.ranks - 1} if server.ranks > 1 else {}
    found = [meta(await server.ask(prompt, 1, headers, **one), "cached_tokens") for _ in range(ASKED_AGAIN)]
    missed = sum(count == 0 for count in found[1:])
    named = "".join(f" and {name}" for name in one)
    require(not missed, f"{missed} of {ASKED_AGAIN - 1} further requests of a session{named} found nothing cached")
    return f"{ASKED_AGAIN} requests with one {SESSION}{named} went to one engine"


async def _routed(server: Server, ids: list[int], length: int) -> list[bytes]:
    """Return the routed experts of each token but the last. That one was never put into the model, so that its row may
    be left out of the answer."""
    answer = await server.ask(ids, length, return_routed_experts=True)
    table = base64.b64decode(meta(answer, "routed_experts") or "")
    row, rows = 4 * server.experts_per_token, len(ids) + length
    require(
        len(table) in (row * rows, row * (rows - 1)),
        f"{len(table)} bytes for {rows} tokens, of {server.experts_per_token} experts of 4 bytes each",
    )
    return [table[place : place + row] for place in range(0, (rows - 1) * row, row)]


async def return_routed_experts(server: Server) -> str:
    rows = await _routed(server, server.prompt, SAID)
    lowest = min(min(array("i", row)) for row in rows)
    require(lowest >= 0, f"an expert has the number {lowest}")
    return f"{len(rows)} rows for {PROMPT + SAID} tokens"


async def routed_experts(server: Server) -> str:
    """Check that each row of experts is its own token's. Of two prompts, the rows differ from the first other token on;
    and what was decoded has the rows that it has as a prompt, when no cache holds those of the decoding."""
    first, other = server.new_prompt(), server.new_prompt()
    rows = await _routed(server, first, 1)
    right = 0
    for place in CUTS:
        mixed = await _routed(server, [*first[:place], *other[place:]], 1)
        right += rows[place - 1] == mixed[place - 1] and rows[place] != mixed[place]
    require(right > len(CUTS) / 2, "two prompts' rows do not begin to differ where the prompts do: they are shifted")
    said = [token for _, token, *_ in meta(await server.ask(first), "output_token_logprobs")]
    decoded = await _routed(server, first, SAID)
    for worker in await workers_at(server.http, server.url):
        async with server.http.post(f"{worker['url']}/flush_cache") as response:
            require(response.status == 200, f"POST {worker['url']}/flush_cache is refused: {response.status}")
    own = share(decoded[PROMPT:], (await _routed(server, [*first, *said], 1))[PROMPT:])
    require(own >= SAME, f"only {own:.0%} of the decoded tokens' rows are those of the same tokens as a prompt")
    return f"{own:.0%} of the decoded tokens' rows come again"


def share(rows: list[bytes], others: list[bytes]) -> float:
    """Return the share of rows that equal the other row at their place."""
    pairs = [*zip(rows, others, strict=False)]
    return sum(row == other for row, other in pairs) / len(pairs)


Probe = Callable[[Server], Awaitable[str]]
PROBES: dict[str, Probe] = {
    "input_ids": input_ids,
    "output_token_logprobs": log_probabilities,
    "weight_version": weight_version,
    "finish_reason": finish_reason,
    "cached_tokens": cached_tokens,
    "rid": rid,
    "session": session,
}
GRAMMAR = "grammar"
PROBES_OF_EXPERTS: dict[str, Probe] = {
    "return_routed_experts": return_routed_experts,
    "routed_experts": routed_experts,
}


async def follows_grammar(grammar: Grammar, server: Server) -> str:
    """Check what is sampled by a grammar, the probability with which it was, and what the policy alone gives to it."""
    try:
        async with EngineClient(server.url, timeout=ANSWER_SECONDS, attempts=1) as client:
            await require_grammar(client, grammar)
    except UserError as error:
        raise Wrong(str(error)) from error
    return f"a reply follows a {grammar.kind}, and its log-probabilities are those of what is left"


async def probed(
    url: str,
    *,
    vocabulary: int,
    room: int = ROOM,
    experts_per_token: int = 0,
    ranks: int = 1,
    grammar: Grammar | None = None,
) -> list[Result]:
    """Make every probe of the server or router at `url`, without a proxy, and return their results."""
    timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        server = Server(url.rstrip("/"), http, vocabulary, min(room, ROOM), experts_per_token, ranks)
        probes = PROBES | (PROBES_OF_EXPERTS if experts_per_token else {})
        if grammar is not None:
            probes = probes | {GRAMMAR: partial(follows_grammar, grammar)}
        return [await _result(name, probe, server) for name, probe in probes.items()]


def probe(url: str, **of: Any) -> list[Result]:
    """Run `probed` for a caller without an event loop."""
    return asyncio.run(probed(url, **of))


async def _result(name: str, made: Probe, server: Server) -> Result:
    try:
        return Result(name, True, await made(server))
    except Wrong as wrong:
        return Result(name, False, str(wrong))
    except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, KeyError) as error:
        return Result(name, False, f"no answer that can be read: {error!r}")


def servers_of(recipe: Recipe) -> dict[str, str]:
    """Return the router or the engines that the recipe names, as it names them, and the URL of each."""
    serving = recipe.serving
    host = f"[{serving.router_ip}]" if ":" in serving.router_ip else serving.router_ip
    named = [f"{host}:{serving.router_port}"] if host else serving.external_engines
    return {address: address if address.startswith("http") else f"http://{address}" for address in named}


def check_fields(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check that the router or the engines that the recipe names pass on what its training needs."""
    shape, room, named = recipe.model.shape, recipe.rollout.max_response, servers_of(recipe)
    replayed = recipe.algorithm.routing_replay == "rollout"
    experts = shape.megatron["num_layers"] * shape.megatron["moe_router_topk"] if replayed else 0
    asked = recipe.rollout
    grammar = Grammar(cast(Kind, asked.grammar_kind), asked.grammar, asked.grammar_tolerance) if asked.grammar else None
    ranks = recipe.serving.gpus_per_engine if recipe.serving.dp_attention else 1
    of = {"vocabulary": shape.vocab, "room": room, "experts_per_token": experts, "ranks": ranks, "grammar": grammar}
    for address, url in named.items():
        results = probe(url, **of)
        for result in results:
            if not result.ok:
                fix = f"use a router and an engine that pass on {result.name}, as those of SLiME's image do"
                yield failure("fields", f"{address}: {result.name}: {result.message}", fix)
        if all(result.ok for result in results):
            yield ok("fields", f"{address} passes on {', '.join(result.name for result in results)}")
    if not named:
        yield skipped("fields", "the run starts its router and engines by itself")
