"""SGLang's `/generate` in JSON: a request's body to prompts and parameters, and a completion to a response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from slime_swe.embedded.requests import Completion
from slime_swe.embedded.sampling import RequestError, SamplingParams
from slime_swe.embedded.tokenizer import Detokenizer

# Fields of SGLang's request that ask for something this engine does not compute, with the values that ask for nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "stream": (False, None),
    "image_data": (None, []),
    "input_embeds": (None,),
    "logprob_start_len": (-1, None),
    "top_logprobs_num": (0, None),
    "token_ids_logprob": (None, []),
    "return_hidden_states": (False, None),
    "return_routed_experts": (False, None),
    "lora_path": (None,),
    "session_params": (None,),
}


def url_of(host: str, port: int) -> str:
    """The base URL of a server; an IPv6 address goes in brackets (RFC 3986)."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass(frozen=True)
class Limits:
    vocab_size: int
    context_length: int


@dataclass(frozen=True)
class Prompt:
    rid: str | None
    tokens: list[int]
    params: SamplingParams
    return_logprob: bool


def read_json(body: bytes) -> dict[str, Any]:
    """A JSON object; an empty body is an empty object."""
    try:
        payload = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise RequestError(f"the body is a JSON {type(payload).__name__}, an object is needed")
    return payload


def read_prompts(payload: Mapping[str, Any], tokenizer: Detokenizer, limits: Limits) -> tuple[list[Prompt], bool]:
    """The prompts of a `/generate` body, and whether it was a batch (then the response is a list)."""
    for name, neutral in UNSUPPORTED.items():
        if name in payload and payload[name] not in neutral:
            raise RequestError(f"{name}={payload[name]!r} is not supported by the embedded engine; leave it out")
    inputs, batch = _inputs(payload, tokenizer)
    count = len(inputs)
    given = [_object(p) for p in _spread("sampling_params", payload, {}, batch, count)]
    logprobs = [bool(flag) for flag in _spread("return_logprob", payload, False, batch, count)]
    rids = _rids(payload.get("rid"), batch, count)
    params = [_params(p, tokens, limits) for p, tokens in zip(given, inputs, strict=True)]
    return [Prompt(*parts) for parts in zip(rids, inputs, params, logprobs, strict=True)], batch


def _inputs(payload: Mapping[str, Any], tokenizer: Detokenizer) -> tuple[list[list[int]], bool]:
    text, ids = payload.get("text"), payload.get("input_ids")
    if (text is None) == (ids is None):
        raise RequestError("exactly one of text and input_ids is needed")
    if text is not None:
        texts = text if isinstance(text, list) else [text]
        if not all(isinstance(t, str) for t in texts):
            raise RequestError("text must be a string or a list of strings")
        return [tokenizer.encode(t) for t in texts], isinstance(text, list)
    if not isinstance(ids, list):
        raise RequestError(f"input_ids must be a list of token ids, not {type(ids).__name__}")
    batch = bool(ids) and isinstance(ids[0], list)
    return (ids, True) if batch else ([ids], False)


def _spread(name: str, payload: Mapping[str, Any], default: Any, batch: bool, count: int) -> list[Any]:
    """One value for each prompt of a batch, from a list of as many or from a single value."""
    value = payload.get(name)
    value = default if value is None else value
    if not isinstance(value, list):
        return [value] * count
    if not batch or len(value) != count:
        raise RequestError(
            f"{name} is a list of {len(value)}, but there are {count} prompts{'' if batch else ', no batch'}"
        )
    return value


def _rids(given: Any, batch: bool, count: int) -> list[str | None]:
    if given is None:
        return [None] * count
    rids = given if isinstance(given, list) else [f"{given}_{i}" for i in range(count)] if batch else [given]
    if len(rids) != count or not all(isinstance(rid, str) for rid in rids):
        raise RequestError(f"rid={given!r}: a string, or for a batch of {count} as many strings, is needed")
    return rids


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"sampling_params is a {type(value).__name__}, an object is needed")
    return value


def _params(given: Mapping[str, Any], tokens: Any, limits: Limits) -> SamplingParams:
    """Parameters of one prompt, checked; without `max_new_tokens` the default is cut to what the context leaves."""
    _check_tokens(tokens, limits)
    params, room = SamplingParams.parse(given), limits.context_length - len(tokens)
    if given.get("max_new_tokens") is None:
        return replace(params, max_new_tokens=min(params.max_new_tokens, room))
    if params.max_new_tokens > room:
        raise RequestError(
            f"{len(tokens)} input tokens and max_new_tokens={params.max_new_tokens} make "
            f"{len(tokens) + params.max_new_tokens}, more than the model's context length of {limits.context_length} "
            f"tokens; ask for at most {room}."
        )
    return params


def _check_tokens(tokens: Any, limits: Limits) -> None:
    if not isinstance(tokens, list) or not tokens or set(map(type, tokens)) != {int}:
        raise RequestError("input_ids must hold at least one token id, and integers only")
    if min(tokens) < 0 or max(tokens) >= limits.vocab_size:
        wrong = next(t for t in tokens if not 0 <= t < limits.vocab_size)
        raise RequestError(f"token id {wrong} is not in the vocabulary; ids go from 0 to {limits.vocab_size - 1}")
    if len(tokens) > limits.context_length - 1:
        raise RequestError(
            f"The input ({len(tokens)} tokens) is longer than the model's context length "
            f"({limits.context_length} tokens, of which one is for the output)."
        )


def response(
    rid: str, prompt: Prompt, completion: Completion, tokenizer: Detokenizer, latency: float
) -> dict[str, Any]:
    """SGLang's answer; `output_token_logprobs` holds [log-probability, token id, null] of every output token."""
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": completion.finish_reason,
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": len(completion.output_ids),
        "cached_tokens": completion.cached_tokens,
        "weight_version": completion.weight_version,
        "e2e_latency": latency,
    }
    if prompt.return_logprob:
        pairs = zip(completion.log_probs, completion.output_ids, strict=True)
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = [[log_prob, token, None] for log_prob, token in pairs]
        meta["output_token_logprobs_length"] = len(completion.output_ids)
    return {"text": _text(completion, prompt.params, tokenizer), "output_ids": completion.output_ids, "meta_info": meta}


def _text(completion: Completion, params: SamplingParams, tokenizer: Detokenizer) -> str:
    """The output as text, without the stop token or stop string unless `no_stop_trim`."""
    matched = None if params.no_stop_trim else completion.finish_reason.get("matched")
    ids = completion.output_ids[:-1] if isinstance(matched, int) else completion.output_ids
    text = tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens)
    return text.partition(matched)[0] if isinstance(matched, str) else text
