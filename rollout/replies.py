"""An engine's answer to one request: SGLang's reply of `POST /generate`, each field checked."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from slime_swe.errors import InfrastructureError, UserError

_POSITIVE_SLACK = 1e-4  # a log-probability may be rounded to just above 0, no more
_LOWEST = -1000.0  # no token of such a probability is ever sampled
_EXPERT_BYTES = 4
INITIAL_WEIGHTS = "default"  # SGLang's name of the weights that a server starts with
TOKEN_IDS = 1 << 31  # engines and trainers hold a token id in 32 bits with a sign


class EngineError(InfrastructureError):
    """The engine failed (unreachable, refused, slow, or its reply makes no sense): infrastructure, never the policy."""


class Refused(UserError):
    """The endpoint will not answer such requests: a wrong key, model or option. Another try would be refused too."""


class Transient(EngineError):
    """A failure that is worth another try. cause: a name to count it by."""

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class EngineAborted(EngineError):
    """Somebody does not want the request. A retry would work against them."""


@dataclass(frozen=True)
class Part:
    """The part of a turn that one request has sampled: all of it, or what there was when it was aborted, maybe nothing.

    `log_probs[i]` is that of `tokens[i]`. `routed_experts`: int32 in bytes. `message`: why it was aborted.
    """

    tokens: list[int]
    log_probs: list[float]
    finish_reason: Literal["stop", "length", "abort"]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    weight_version: str | None = None
    routed_experts: bytes | None = None
    message: str = ""


@dataclass(frozen=True)
class Scores:
    """The log-probability that weights of this version give to each token, as a part of a prompt."""

    log_probs: list[float]
    weight_version: str | None = None


class _Finish(msgspec.Struct):
    type: Literal["stop", "length", "abort"]
    message: str | None = None  # of an abort


class _Meta(msgspec.Struct):
    finish_reason: _Finish
    output_token_logprobs: list[tuple[float, int, str | None]] | UnsetType = UNSET
    completion_tokens: int | UnsetType = UNSET
    prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    cached_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    weight_version: str | int | None = None
    routed_experts: bytes | None = None  # base64 in JSON


class _Reply(msgspec.Struct):
    """The fields of SGLang's reply that are read; further ones are ignored."""

    meta_info: _Meta
    output_ids: list[int] | UnsetType = UNSET


class _Scored(msgspec.Struct):
    finish_reason: _Finish
    input_token_logprobs: list[tuple[float | None, int, str | None]] = []
    weight_version: str | int | None = None


class _ScoredReply(msgspec.Struct):
    meta_info: _Scored


_REPLY, _SCORED_REPLY = msgspec.json.Decoder(_Reply), msgspec.json.Decoder(_ScoredReply)
T = TypeVar("T")


def parse_reply(body: bytes, max_new_tokens: int, vocabulary: int = TOKEN_IDS) -> Part:
    """Parse the reply and check each field: what comes out of here is trained on. Raises `EngineError` that says what
    is wrong.
    """
    reply = _decoded(_REPLY, body)
    meta = reply.meta_info
    triples = meta.output_token_logprobs or []
    tokens, log_probs = [triple[1] for triple in triples], [triple[0] for triple in triples]
    wrong = _inconsistency(reply, tokens, log_probs, max_new_tokens, vocabulary)
    if wrong:
        raise EngineError(f"the engine's reply is inconsistent: {wrong}")
    return Part(
        tokens,
        log_probs,
        meta.finish_reason.type,
        prompt_tokens=meta.prompt_tokens,
        cached_tokens=min(meta.cached_tokens, meta.prompt_tokens),
        weight_version=_version(meta.weight_version),
        routed_experts=meta.routed_experts,
        message=meta.finish_reason.message or "",
    )


def parse_scores(body: bytes, tokens: Sequence[int]) -> Scores | None:
    """Parse the reply about a prompt that ends in these tokens, asked from the one before; None if it was aborted.

    A log-probability that the engine leaves out is NaN. Raises `EngineError` that says what is wrong.
    """
    meta = _decoded(_SCORED_REPLY, body).meta_info
    if meta.finish_reason.type == "abort":
        return None
    scored = meta.input_token_logprobs[1:]  # nothing is known of the first
    if [token for _, token, _ in scored] != list(tokens):
        raise EngineError(
            f"the engine's reply is inconsistent: input_token_logprobs are of {len(scored)} tokens, and not of the "
            f"{len(tokens)} that were asked for"
        )
    values = [math.nan if value is None else value for value, *_ in scored]
    return Scores(values, _version(meta.weight_version))


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise EngineError(f"the engine's reply lacks a field or has it wrong: {error}: {body[:80]!r}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"the engine's reply is not JSON ({error}): {body[:80]!r}") from error


def _version(given: str | int | None) -> str | None:
    return None if given is None else str(given)


def _inconsistency(
    reply: _Reply, tokens: list[int], log_probs: list[float], max_new_tokens: int, vocabulary: int
) -> str | None:
    is_whole = reply.meta_info.finish_reason.type != "abort"
    if is_whole and not 0 < len(tokens) <= max_new_tokens:
        return f"{len(tokens)} tokens where 1 to {max_new_tokens} were asked for"
    if reply.output_ids is not UNSET and reply.output_ids != tokens:
        return f"output_ids are not the {len(tokens)} tokens of output_token_logprobs"
    if reply.meta_info.completion_tokens not in (UNSET, len(tokens)):
        return f"completion_tokens is {reply.meta_info.completion_tokens} for {len(tokens)} tokens"
    if not tokens:
        return None
    if not (min(log_probs) >= _LOWEST and max(log_probs) <= _POSITIVE_SLACK):
        return f"a log-probability is not between {_LOWEST:g} and 0"
    if min(tokens) < 0:
        return "a token id is not a natural number"
    if max(tokens) >= vocabulary:
        return f"token id {max(tokens)} is outside the vocabulary of {vocabulary}"
    return None


def experts_between(table: bytes | None, start: int, end: int, per_token: int, kept: int) -> bytes:
    """Cut the rows of the tokens from `start` up to `kept` out of a table that should go from `start` up to `end`.

    An engine that does not know where to start gives the table from the first token on. Raises `EngineError` for one of
    another size.
    """
    if table is None:
        raise EngineError("the engine's reply has no routed_experts, which were asked for")
    row = _EXPERT_BYTES * per_token
    if len(table) == row * end:
        return table[row * start : row * kept]
    if len(table) != row * (end - start):
        raise EngineError(
            f"the engine's routed_experts have {len(table)} bytes: {per_token} int32 of each of {end - start} tokens "
            f"are needed, or of all {end}"
        )
    return table[: row * (kept - start)]


# Spans of `(version, number of tokens)`, one after another, say which weights sampled which tokens of a sequence.
#
# A weight update may come in the middle of a turn. The version is None where it is not known, or nothing was sampled.
VersionSpan = tuple[str | None, int]


def joined(spans: Iterable[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Join neighbouring spans of one version, and leave out empty ones."""
    whole: list[VersionSpan] = []
    for version, count in spans:
        if count and whole and whole[-1][0] == version:
            whole[-1] = version, whole[-1][1] + count
        elif count:
            whole.append((version, count))
    return tuple(whole)


def part_of(spans: Sequence[VersionSpan], start: int, end: int) -> tuple[VersionSpan, ...]:
    """Return the spans of the tokens from `start` up to `end`."""
    part: list[VersionSpan] = []
    at = 0
    for version, count in spans:
        part.append((version, max(0, min(at + count, end) - max(at, start))))
        at += count
    return joined(part)


def without(spans: Sequence[VersionSpan], places: Collection[int]) -> Sequence[VersionSpan]:
    """Return the spans, with None at these places."""
    if not places:
        return spans
    versions = [version for version, count in spans for _ in range(count)]
    return joined((None if at in places else version, 1) for at, version in enumerate(versions))
