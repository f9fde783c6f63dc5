"""`EngineClient` of SGLang's `POST /generate`: token ids and `Sampling` in, token ids and log-probabilities out."""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, Self, cast
from zlib import crc32

import aiohttp
import orjson

from slime_swe.rollout.grammar import Grammar, changed, follows_grammar
from slime_swe.rollout.replies import (
    TOKEN_IDS,
    EngineAborted,
    EngineError,
    Part,
    Scores,
    Transient,
    VersionSpan,
    experts_between,
    joined,
    parse_reply,
    parse_scores,
)

UNREACHABLE = "unreachable"
SESSION = "X-SMG-Routing-Key"  # header by which its router keeps a session on one engine
ERROR_CODE = "X-SMG-Error-Code"  # header in which SGLang's router names an error
MIN_REPLY = 16  # tokens: with less room than this for a reply, the context counts as full


@dataclass(frozen=True)
class Sampling:
    """The caller's sampling parameters. Never changed in place, since SLiME shares one dict among all samples.

    `seed_key`, if given, makes every call's `sampling_seed` a function of the key and the turn alone.
    """

    params: Mapping[str, Any]
    seed_key: tuple[Any, ...] | None = None
    headers: Mapping[str, str] | None = None  # of each request, for the router
    grammar: Grammar | None = None  # of each reply

    def for_turn(self, turn: int, room: int, stop_token_ids: Sequence[int]) -> dict[str, Any]:
        """Return the parameters of model call number `turn`, which may sample at most `room` tokens."""
        stops = dict.fromkeys([*stop_token_ids, *(self.params.get("stop_token_ids") or ())])
        params = {
            **self.params,
            **(self.grammar.params if self.grammar else {}),
            "max_new_tokens": min(room, self.params["max_new_tokens"]),
            "stop_token_ids": list(stops),
            "no_stop_trim": True,
        }
        if self.seed_key is not None:
            digest = hashlib.blake2b(repr((*self.seed_key, turn)).encode(), digest_size=4).digest()
            params["sampling_seed"] = int.from_bytes(digest, "big") >> 1  # every engine takes 31 bits
        return params


@dataclass(frozen=True)
class Generation:
    """One sampled turn. `log_probs[i]` is that of `tokens[i]`, the stop token included.

    `finish_reason` is `length` where its limit cut the turn: not where the last token allowed was a stop token.
    `version_spans` cover `tokens`: which weights sampled which. The counts of tokens are of the first request for it.
    `retries`: why further requests were made for it -> how many: `unreachable`, `aborted`, or what the router calls it.
    `routed_experts` are int32 in bytes, for the tokens of the sequence from `experts_from` up to the last but one: the
    last one was never put into the model. `unseen_tokens`: how many were sampled that are not given here: an endpoint
    gives none. `untrained`: places of tokens whose distribution was not the policy's own, or is not known to be.
    """

    tokens: list[int]
    log_probs: list[float]
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    version_spans: tuple[VersionSpan, ...] = ()
    routed_experts: bytes | None = None
    experts_from: int = 0
    retries: Mapping[str, int] = field(default_factory=dict)
    unseen_tokens: int = 0
    untrained: frozenset[int] = frozenset()

    @property
    def completion_tokens(self) -> int:
        """The number of tokens that were sampled, `unseen_tokens` included."""
        return len(self.tokens) + self.unseen_tokens


# `Gate` is where model calls wait while the run wants none, with their sandboxes alive.
class Gate:
    """The gate that every request to an engine passes, also one for the rest of a turn that an engine has aborted.

    `drain` pauses a run's episodes at their model calls, which keep what was sampled so far; `open` lets them go on. A
    gate belongs to one event loop.
    """

    def __init__(self) -> None:
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()
        self._is_unwanted: Callable[[], bool] = lambda: False
        self._inside = 0

    @property
    def is_closed(self) -> bool:
        """True while calls wait."""
        return not self._open.is_set()

    @property
    def inside(self) -> int:
        """The number of requests that are with the engines."""
        return self._inside

    def open(self) -> None:
        """Let calls pass."""
        self._open.set()

    def close(self) -> None:
        """Let no further request pass. Those that are with the engines are left to them."""
        self._open.clear()

    def stop_when(self, is_unwanted: Callable[[], bool]) -> None:
        """Refuse calls while this is true, since nobody wants their episodes: for a loop that has the engines abort and
        says so in a flag of its own alone, as SLiME's does.
        """
        self._is_unwanted = is_unwanted

    async def wait(self) -> None:
        """Wait until the gate is open. Raises `EngineAborted` if the episode is unwanted."""
        while self.is_closed:
            await self._open.wait()
        if self._is_unwanted():
            raise EngineAborted("the run wants no more of this episode")

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Pass the gate as `wait` says, and count as inside until the engine has replied."""
        await self.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def empty(self) -> None:
        """Wait until no request is with the engines."""
        await self._empty.wait()

    async def drain(self, abort: Callable[[], Awaitable[object]], *, interval: float = 1.0) -> None:
        """Close, and have the engines abort what they sample until they have nothing left, at most every `interval`
        seconds: a request that was on its way to an engine misses an abort.
        """
        self.close()
        while self._inside:
            await abort()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.empty(), interval)


@dataclass(eq=False)
class EngineClient:
    """One pool of connections; use as an async context manager, in one event loop.

    timeout: seconds of one request. connect_timeout: seconds of it for making a connection. max_body: bytes of one
    reply. vocabulary: number of the model's token ids. experts_per_token: experts that a token is routed to in all
    layers together, for routing replay. adapter: the name of the LoRA adapter that the engine samples with. ranks: GPUs
    of an engine that each keep the cache of their own requests; a session's go to one of them. A turn that the engine
    aborts goes on from what was said of it; one that follows a grammar begins anew. Connection failures, 5xx, and
    aborts before a new token are tried `attempts` times in a row with doubling pauses. A refused (4xx), timed-out or
    invalid reply is not retried. gate: each request waits there before it is made. on_failure: called between a
    connection failure or 5xx and the next try.

    Not covered: of an aborted turn, a stop string across the cut, and a stop token that only the engine knows of.
    """

    engine: str
    _: KW_ONLY
    timeout: float = 600.0
    connect_timeout: float = 10.0
    attempts: int = 5
    pause: float = 0.25
    max_body: int = 8 << 20
    vocabulary: int | None = None
    experts_per_token: int = 0
    adapter: str = ""
    ranks: int = 1
    gate: Gate = field(default_factory=Gate)
    on_failure: Callable[[], Awaitable[object]] | None = None
    _http: aiohttp.ClientSession | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"{self.engine.rstrip('/')}/generate"

    async def __aenter__(self) -> Self:
        # No connection limit: the caller bounds concurrency, and a hidden second queue would only add latency.
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self.timeout, sock_connect=self.connect_timeout),
            headers={"Content-Type": "application/json"},
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._http is not None:
            await self._http.close()

    async def generate(
        self,
        input_ids: Sequence[int] | Sequence[bytes],
        sampling_params: Mapping[str, Any],
        *,
        experts_from: int | None = None,
        headers: Mapping[str, str] | None = None,
        tolerance: float | None = None,
    ) -> Generation:
        """Sample one continuation of `input_ids`; pieces of bytes hold them as JSON, with a comma after each.

        experts_from: the first token whose routed experts are wanted, if any are; those before it are known. tolerance:
        that of the grammar which the parameters name, where its tokens may be trained; the engine is then asked for
        each one's log-probability without it. Raises `EngineError`; cancelling drops the request.
        """
        if experts_from is not None and not self.experts_per_token:
            raise ValueError("routed experts are asked for, and experts_per_token is not given")
        rank = self._rank(headers)
        turn = _Turn(_pieces(input_ids), sampling_params, self.experts_per_token, experts_from, self.adapter, rank)
        failures = 0  # in a row, without a new token
        while True:
            reply = await self._ask(turn.request(), headers, turn.retries)
            if isinstance(reply, EngineError):
                failure = reply
            else:
                part = parse_reply(reply, turn.room, self.vocabulary or TOKEN_IDS)
                progress = turn.add(part)
                if turn.finish_reason is not None:
                    break
                turn.retries["aborted"] += 1
                if progress or self.gate.is_closed:  # then it was the run that had it aborted
                    failures = 0
                    continue
                failure = EngineAborted(f"the engine aborted the request: {part.message or 'no reason given'}")
            failures += 1
            await self._pause(failures, failure)
        if tolerance is not None:
            turn.compare(await self._score(turn, headers), tolerance)
        return turn.generation(turn.finish_reason)

    async def score(self, tokens: Sequence[int], start: int) -> Scores:
        """Return the log-probabilities that the engine's weights give to `tokens[start:]` at temperature 1, whoever
        sampled them. The engine computes the tokens before `start` too, unless it has them cached. Raises
        `EngineError`.
        """
        turn = _Turn(_pieces(tokens[:start]), {"max_new_tokens": 0}, 0, None, self.adapter)
        turn.tokens = [*tokens[start:]]
        return await self._score(turn, None)

    def _rank(self, headers: Mapping[str, str] | None) -> int | None:
        """Return the GPU that has the session's prefix cached; None without a session, or where an engine is one GPU.
        The router's hash of the session chooses the engine alone, and SGLang 0.5.15 would deal its turns out in turn:
        it ignores the name under which a router gives a rank.
        """
        session = (headers or {}).get(SESSION)
        return None if session is None or self.ranks == 1 else crc32(session.encode()) % self.ranks

    async def _score(self, turn: _Turn, headers: Mapping[str, str] | None) -> Scores:
        """Ask for the log-probabilities that the policy alone gives to the tokens of a turn. Raises `EngineError`."""
        failures = 0
        while True:
            reply = await self._ask(turn.scoring_request(), headers, turn.retries)
            if isinstance(reply, EngineError):
                failure = reply
            elif (scores := parse_scores(reply, turn.tokens)) is not None:
                return scores
            else:
                turn.retries["aborted"] += 1
                failure = EngineAborted("the engine aborted the request for log-probabilities")
            failures += 1
            await self._pause(failures, failure)

    async def _ask(self, body: bytes, headers: Mapping[str, str] | None, retries: Counter[str]) -> bytes | EngineError:
        """Return the reply, or a failure that is worth another try. Raises `EngineError` for any other failure."""
        try:
            async with self.gate.passing():
                return await self._post(body, headers)
        except Transient as error:
            retries[error.cause] += 1
            if self.on_failure is not None:
                await self.on_failure()
            return error

    async def _pause(self, failures: int, failure: EngineError) -> None:
        """Wait before another try. Raises the failure where it is the `attempts`th in a row."""
        if failures == self.attempts:
            raise failure
        await asyncio.sleep(self.pause * 2 ** (failures - 1))

    async def _post(self, body: bytes, headers: Mapping[str, str] | None) -> bytes:
        if self._http is None:
            raise RuntimeError("EngineClient is used outside its `async with`")
        try:
            async with self._http.post(self.url, data=body, headers=headers) as response:
                reply = await read_body(response, self.url, self.max_body)
        except aiohttp.ConnectionTimeoutError as error:  # a TimeoutError too, but nothing was asked yet
            why = f"no connection in {self.connect_timeout:g} s"
            raise Transient(UNREACHABLE, f"{self.url} is unreachable: {why}") from error
        except TimeoutError as error:
            raise EngineError(f"{self.url} did not reply within {self.timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Transient(UNREACHABLE, f"{self.url} is unreachable: {error or type(error).__name__}") from error
        if response.status != 200:
            message = f"{self.url} replied HTTP {response.status}: {reply[:200].decode(errors='replace')}"
            if response.status < 500:
                raise EngineError(message)
            code = response.headers.get(ERROR_CODE, "")
            raise Transient(code if code.isidentifier() else f"http_{response.status}", message)
        return reply


async def read_body(response: aiohttp.ClientResponse, url: str, most: int) -> bytes:
    """Read a reply. Raises `EngineError`, which names `url`, for one of more than `most` bytes."""
    reply = bytearray()
    async for chunk in response.content.iter_any():
        reply += chunk
        if len(reply) > most:
            response.close()  # what is still to come must not be read
            raise EngineError(f"{url} replied with more than {most} bytes")
    return bytes(reply)


@dataclass
class _Turn:
    """A turn, as far as the engine has sampled it. `prompt`: its tokens as JSON, in pieces with a comma after each."""

    prompt: Sequence[bytes]
    params: Mapping[str, Any]
    experts_per_token: int
    experts_from: int | None
    adapter: str = ""
    rank: int | None = None
    finish_reason: Literal["stop", "length"] | None = None

    def __post_init__(self) -> None:
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        self.spans: list[VersionSpan] = []
        self.retries = Counter[str]()
        self.first: Part | None = None  # that sampled something
        self.tables: list[bytes] = []
        self.untrained: frozenset[int] = frozenset()
        self.length = sum(piece.count(b",") for piece in self.prompt)  # of the prompt, in tokens
        self.experts_end = self.experts_from

    @property
    def room(self) -> int:
        """The number of tokens that may still be sampled."""
        most: int = self.params["max_new_tokens"]
        return most - len(self.tokens)

    def request(self) -> bytes:
        """Return the request for the rest of the turn, after all that was said of it. A sampling seed stays as it is:
        engines draw by the seed and the token's place in the sequence.
        """
        payload: dict[str, Any] = {"sampling_params": {**self.params, "max_new_tokens": self.room}}
        if self.experts_end is not None:
            payload |= {"return_routed_experts": True, "routed_experts_start_len": self.experts_end}
        return self._body(payload)

    def scoring_request(self) -> bytes:
        """Return the request for the turn's log-probabilities as a part of a prompt. SGLang has the rest cached."""
        params = {"temperature": 1.0, "max_new_tokens": 0}  # at any other, SGLang gives a prompt's at 1 all the same
        return self._body({"sampling_params": params, "logprob_start_len": self.length - 1})

    def _body(self, payload: dict[str, Any]) -> bytes:
        payload["return_logprob"] = True
        if self.adapter:
            payload["lora_path"] = self.adapter
        if self.rank is not None:
            payload["routed_dp_rank"] = self.rank
        ids = [*self.prompt, orjson.dumps(self.tokens)[1:-1]] if self.tokens else self.prompt
        ids = [*ids[:-1], ids[-1].removesuffix(b",")]
        return b"".join([b'{"input_ids":[', *ids, b"],", orjson.dumps(payload)[1:]])

    def add(self, part: Part) -> bool:
        """Add what the engine has sampled now, and say whether the turn is any longer by it. When SGLang aborts a
        request, it keeps what its last forward pass gives without a look at that: a stop token, the last token allowed,
        or tokens beyond them. The turn then ends there. Else one that follows a grammar keeps nothing, as the grammar
        would begin anew.
        """
        before, room = self.length + len(self.tokens) - 1, self.room  # `before`: tokens that were put into the model
        kept = len(part.tokens) if part.finish_reason != "abort" else self._length_until_stop(part.tokens[:room])
        finish = part.finish_reason if part.finish_reason != "abort" else "length" if kept == room else None
        if kept and part.tokens[kept - 1] in self._stops():  # engines say `length` where it is the last token allowed
            finish = "stop"
        if finish is None and follows_grammar(self.params):
            return False
        self.finish_reason = finish
        self.tokens += part.tokens[:kept]
        self.log_probs += part.log_probs[:kept]
        self.spans.append((part.weight_version, kept))
        self.first = self.first or (part if part.tokens else None)
        if self.experts_end is not None and (self.finish_reason or part.routed_experts is not None):
            start, end, kept_end = self.experts_end, before + len(part.tokens), before + kept
            self.tables.append(experts_between(part.routed_experts, start, end, self.experts_per_token, kept_end))
            self.experts_end = kept_end  # what an aborted request does not give, the next one does
        return kept > 0

    def compare(self, scores: Scores, tolerance: float) -> None:
        """Find what a grammar has changed: by weights other than those that sampled, nothing is known."""
        known = {version for version, _ in self.spans} == {scores.weight_version}
        own = scores.log_probs if known else [math.nan] * len(self.tokens)
        self.untrained = changed(self.log_probs, own, tolerance)

    def _stops(self) -> Sequence[int]:
        return () if self.params.get("ignore_eos") else self.params.get("stop_token_ids") or ()

    def _length_until_stop(self, tokens: Sequence[int]) -> int:
        stops = self._stops()
        return next((at + 1 for at, token in enumerate(tokens) if token in stops), len(tokens))

    def generation(self, finish_reason: Literal["stop", "length"]) -> Generation:
        return Generation(
            self.tokens,
            self.log_probs,
            finish_reason,
            prompt_tokens=self.first.prompt_tokens if self.first else 0,
            cached_tokens=self.first.cached_tokens if self.first else 0,
            version_spans=joined(self.spans),
            routed_experts=b"".join(self.tables) if self.experts_from is not None else None,
            experts_from=self.experts_from or 0,
            retries=self.retries,
            untrained=self.untrained,
        )


def _pieces(input_ids: Sequence[int] | Sequence[bytes]) -> Sequence[bytes]:
    """Return the token ids as JSON has them in a list, without its brackets and with a comma after each."""
    if input_ids and isinstance(input_ids[0], bytes):
        return cast("Sequence[bytes]", input_ids)
    return (orjson.dumps(input_ids)[1:-1] + b",",)
