"""`EngineClient` of SGLang's `POST /generate`: token ids and `Sampling` in, token ids and log-probabilities out."""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Annotated, Any, Literal, Self, cast

import aiohttp
import msgspec
import orjson
from msgspec import UNSET, UnsetType

from slime_swe.errors import InfrastructureError

MIN_REPLY = 16  # tokens: with less room than this for a reply, the context counts as full
_POSITIVE_SLACK = 1e-4  # a log-probability may be rounded to just above 0, no more
_LOWEST = -1000.0  # no token of such a probability is ever sampled
_EXPERT_BYTES = 4
_TOKEN_IDS = 1 << 31  # engines and trainers hold a token id in 32 bits with a sign


class EngineError(InfrastructureError):
    """The engine failed (unreachable, refused, slow, or its reply makes no sense): infrastructure, never the policy."""


class EngineAborted(EngineError):
    """Somebody made the engine drop the request. A retry would work against whoever dropped it."""


class _Transient(EngineError):
    """Worth another try."""


@dataclass(frozen=True)
class Sampling:
    """The caller's sampling parameters. Never changed in place, since SLiME shares one dict among all samples.

    `seed_key`, if given, makes every call's `sampling_seed` a function of the key and the turn alone.
    """

    params: Mapping[str, Any]
    seed_key: tuple[Any, ...] | None = None
    headers: Mapping[str, str] | None = None  # of each request, for the router

    def for_turn(self, turn: int, room: int, stop_token_ids: Sequence[int]) -> dict[str, Any]:
        """The parameters of model call number `turn`, which may sample at most `room` tokens."""
        stops = dict.fromkeys([*stop_token_ids, *(self.params.get("stop_token_ids") or ())])
        params = {
            **self.params,
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
    """One sampled turn. `log_probs[i]` is that of `tokens[i]`, the stop token included."""

    tokens: list[int]
    log_probs: list[float]
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    weight_version: str | None = None
    routed_experts: str | None = None  # base64 of int32, for all tokens but the last


@dataclass(eq=False)
class EngineClient:
    """One pool of connections; use as an async context manager, in one event loop.

    timeout: seconds of one attempt. connect_timeout: seconds of it for making a connection. max_body: bytes of one
    reply. vocabulary: number of the model's token ids. experts_per_token: that a token is routed to in all layers
    together; 0: not known. Connection failures and 5xx are tried `attempts` times with doubling pauses. A refused
    (4xx), timed-out or invalid reply is not retried.
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
        routed_experts: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Generation:
        """Sample one continuation of `input_ids`; pieces of bytes hold them as JSON, with a comma after each.

        Raises `EngineError`; cancelling drops the request.
        """
        payload: dict[str, Any] = {"sampling_params": sampling_params, "return_logprob": True}
        if routed_experts:
            payload["return_routed_experts"] = True
        body = b"".join([b'{"input_ids":[', *_encoded(input_ids), b"],", orjson.dumps(payload)[1:]])
        for attempt in itertools.count(1):
            try:
                reply = await self._post(body, headers)
                break
            except _Transient:
                if attempt == self.attempts:
                    raise
                await asyncio.sleep(self.pause * 2 ** (attempt - 1))
        said = parse_reply(reply, sampling_params["max_new_tokens"], self.vocabulary or _TOKEN_IDS)
        if not routed_experts:
            return replace(said, routed_experts=None)
        require_experts(said.routed_experts, _count(input_ids) + len(said.tokens) - 1, self.experts_per_token)
        return said

    async def _post(self, body: bytes, headers: Mapping[str, str] | None) -> bytes:
        if self._http is None:
            raise RuntimeError("EngineClient is used outside its `async with`")
        try:
            async with self._http.post(self.url, data=body, headers=headers) as response:
                reply = await self._read(response)
        except aiohttp.ConnectionTimeoutError as error:  # a TimeoutError too, but nothing was asked yet
            raise _Transient(f"{self.url} is unreachable: no connection in {self.connect_timeout:g} s") from error
        except TimeoutError as error:
            raise EngineError(f"{self.url} did not reply within {self.timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Transient(f"{self.url} is unreachable: {error or type(error).__name__}") from error
        if response.status != 200:
            kind = _Transient if response.status >= 500 else EngineError
            raise kind(f"{self.url} replied HTTP {response.status}: {reply[:200].decode(errors='replace')}")
        return reply

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        reply = bytearray()
        async for chunk in response.content.iter_any():
            reply += chunk
            if len(reply) > self.max_body:
                response.close()  # what is still to come must not be read
                raise EngineError(f"{self.url} replied with more than {self.max_body} bytes")
        return bytes(reply)


def _encoded(input_ids: Sequence[int] | Sequence[bytes]) -> Sequence[bytes]:
    """As JSON in a list, without its brackets. A long context is copied but once, into the body."""
    if not input_ids or not isinstance(input_ids[0], bytes):
        return (orjson.dumps(input_ids)[1:-1],)
    pieces = cast("list[bytes]", [*input_ids])
    pieces[-1] = pieces[-1][:-1]
    return pieces


def _count(input_ids: Sequence[int] | Sequence[bytes]) -> int:
    """How many tokens these are; each has a comma behind it in pieces of bytes."""
    return sum(piece.count(b",") if isinstance(piece, bytes) else 1 for piece in input_ids)


class _Finish(msgspec.Struct):
    type: Literal["stop", "length", "abort"]
    message: str | None = None  # of an abort


class _Meta(msgspec.Struct):
    finish_reason: _Finish
    output_token_logprobs: list[tuple[float, int, str | None]] | UnsetType = UNSET  # there is none of an abort
    completion_tokens: int | UnsetType = UNSET
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    cached_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    weight_version: str | int | None = None
    routed_experts: str | None = None


class _Reply(msgspec.Struct):
    """What is read of SGLang's reply; further fields are ignored."""

    meta_info: _Meta
    output_ids: list[int] | UnsetType = UNSET


_REPLY = msgspec.json.Decoder(_Reply)


def parse_reply(body: bytes, max_new_tokens: int, vocabulary: int = _TOKEN_IDS) -> Generation:
    """The reply, each field checked: what comes out of here is trained on. Raises `EngineError` that says what is
    wrong.
    """
    try:
        reply = _REPLY.decode(body)
    except msgspec.ValidationError as error:
        raise EngineError(f"the engine's reply lacks a field or has it wrong: {error}: {body[:80]!r}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"the engine's reply is not JSON ({error}): {body[:80]!r}") from error
    meta = reply.meta_info
    kind = meta.finish_reason.type
    if kind == "abort":
        raise EngineAborted(f"the engine aborted the request: {meta.finish_reason.message or 'no reason given'}")
    triples = meta.output_token_logprobs or []
    tokens, log_probs = [triple[1] for triple in triples], [triple[0] for triple in triples]
    wrong = _inconsistency(reply, tokens, log_probs, max_new_tokens, vocabulary)
    if wrong:
        raise EngineError(f"the engine's reply is inconsistent: {wrong}")
    return Generation(
        tokens,
        log_probs,
        kind,
        prompt_tokens=meta.prompt_tokens,
        cached_tokens=min(meta.cached_tokens, meta.prompt_tokens),
        weight_version=None if meta.weight_version is None else str(meta.weight_version),
        routed_experts=meta.routed_experts,
    )


def _inconsistency(
    reply: _Reply, tokens: list[int], log_probs: list[float], max_new_tokens: int, vocabulary: int
) -> str | None:
    if not 0 < len(tokens) <= max_new_tokens:
        return f"{len(tokens)} tokens where 1 to {max_new_tokens} were asked for"
    if reply.output_ids is not UNSET and reply.output_ids != tokens:
        return f"output_ids are not the {len(tokens)} tokens of output_token_logprobs"
    if reply.meta_info.completion_tokens not in (UNSET, len(tokens)):
        return f"completion_tokens is {reply.meta_info.completion_tokens} for {len(tokens)} tokens"
    if not (min(log_probs) >= _LOWEST and max(log_probs) <= _POSITIVE_SLACK):
        return f"a log-probability is not between {_LOWEST:g} and 0"
    if min(tokens) < 0:
        return "a token id is not a natural number"
    if max(tokens) >= vocabulary:
        return f"token id {max(tokens)} is outside the vocabulary of {vocabulary}"
    return None


def require_experts(routed: str | None, tokens: int, per_token: int) -> None:
    """Raise `EngineError` unless these are the routed experts of so many tokens: base64 of int32, of each token
    `per_token`, or if that is 0 any number that is the same for all.
    """
    if routed is None:
        raise EngineError("the engine's reply has no routed_experts, which were asked for")
    try:
        size = len(binascii.a2b_base64(routed, strict_mode=True))
    except ValueError as error:
        raise EngineError(f"the engine's routed_experts are not base64: {error}") from error
    whole = _EXPERT_BYTES * tokens * (per_token or 1)
    if size % whole or not size or (per_token and size != whole):
        wanted = f"{per_token} experts each" if per_token else "as many experts each"
        raise EngineError(f"the engine's routed_experts have {size} bytes, no int32 of {tokens} tokens with {wanted}")
