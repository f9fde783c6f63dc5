"""SGLang's `/generate` in JSON: a request's body to prompts and parameters, and a completion to a response."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from slime_swe.embedded.model import CheckpointError
from slime_swe.embedded.sampling import RequestError, SamplingParams
from slime_swe.embedded.scheduler import Completion
from slime_swe.rollout.chat.tokenizer import END_OF_MESSAGE, eos_token_ids, read_settings

SCORED_FROM = "logprob_start_len"
# Fields of SGLang's request that ask for something this engine does not compute, with the values that ask for nothing.
# A prompt's own log-probabilities are computed where nothing is to be sampled.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "stream": (False, None),
    "text": (None,),
    "image_data": (None, []),
    "input_embeds": (None,),
    SCORED_FROM: (-1, None),
    "top_logprobs_num": (0, None),
    "token_ids_logprob": (None, []),
    "return_hidden_states": (False, None),
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
    """scored_from: the token from which on the prompt's own log-probabilities are wanted; nothing is sampled then."""

    rid: str | None
    tokens: list[int]
    params: SamplingParams
    return_logprob: bool
    scored_from: int | None = None


def read_json(body: bytes) -> dict[str, Any]:
    """A JSON object; an empty body is an empty object."""
    try:
        payload = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise RequestError(f"the body is a JSON {type(payload).__name__}, an object is needed")
    return payload


def read_prompt(payload: Mapping[str, Any], limits: Limits) -> Prompt:
    """The prompt of a `/generate` body: one, as token ids."""
    rid, given = payload.get("rid"), payload.get("sampling_params")
    given = {} if given is None else given
    scores = isinstance(given, dict) and given.get("max_new_tokens") == 0 and bool(payload.get("return_logprob"))
    for name, neutral in UNSUPPORTED.items():
        if name in payload and payload[name] not in neutral and not (scores and name == SCORED_FROM):
            raise RequestError(f"{name}={payload[name]!r} is not supported by the embedded engine; leave it out")
    if rid is not None and not isinstance(rid, str):
        raise RequestError(f"rid={rid!r}: a string is needed")
    if not isinstance(given, dict):
        raise RequestError(f"sampling_params is a {type(given).__name__}, an object is needed")
    tokens = _tokens(payload.get("input_ids"), limits)
    params, start = _params(given, len(tokens), limits), payload.get(SCORED_FROM)
    if not scores or start in UNSUPPORTED[SCORED_FROM]:
        return Prompt(rid, tokens, params, bool(payload.get("return_logprob")))
    if type(start) is not int or not 0 <= start < len(tokens):
        raise RequestError(f"{SCORED_FROM}={start!r}: a place among the {len(tokens)} input tokens is needed")
    return Prompt(rid, tokens, params, return_logprob=True, scored_from=start)


def _params(given: Mapping[str, Any], prompt: int, limits: Limits) -> SamplingParams:
    """Parameters of one prompt, checked; without `max_new_tokens` the default is cut to what the context leaves."""
    params, room = SamplingParams.parse(given), limits.context_length - prompt
    if given.get("max_new_tokens") is None:
        return replace(params, max_new_tokens=min(params.max_new_tokens, room))
    if params.max_new_tokens > room:
        raise RequestError(
            f"{prompt} input tokens and max_new_tokens={params.max_new_tokens} make "
            f"{prompt + params.max_new_tokens}, more than the model's context length of {limits.context_length} "
            f"tokens; ask for at most {room}."
        )
    return params


def _tokens(tokens: Any, limits: Limits) -> list[int]:
    if not isinstance(tokens, list) or not tokens or set(map(type, tokens)) != {int}:
        raise RequestError("input_ids must be a list of at least one token id, and of integers only")
    if min(tokens) < 0 or max(tokens) >= limits.vocab_size:
        wrong = next(t for t in tokens if not 0 <= t < limits.vocab_size)
        raise RequestError(f"token id {wrong} is not in the vocabulary; ids go from 0 to {limits.vocab_size - 1}")
    if len(tokens) > limits.context_length - 1:
        raise RequestError(
            f"The input ({len(tokens)} tokens) is longer than the model's context length "
            f"({limits.context_length} tokens, of which one is for the output)."
        )
    return tokens


def response(
    rid: str,
    prompt: Prompt,
    completion: Completion,
    tokenizer: Detokenizer,
    latency: float,
    scores: Sequence[float | None] = (),
) -> dict[str, Any]:
    """SGLang's answer; `output_token_logprobs` holds [log-probability, token id, null] of every output token. scores:
    of the prompt's tokens from `scored_from` on, null for the first."""
    scored = [] if prompt.scored_from is None else prompt.tokens[prompt.scored_from :]
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
        meta["input_token_logprobs"] = [[value, token, None] for value, token in zip(scores, scored, strict=True)]
        meta["output_token_logprobs"] = [[log_prob, token, None] for log_prob, token in pairs]
        meta["output_token_logprobs_length"] = len(completion.output_ids)
    return {"text": _text(completion, prompt.params, tokenizer), "output_ids": completion.output_ids, "meta_info": meta}


def _text(completion: Completion, params: SamplingParams, tokenizer: Detokenizer) -> str:
    """The output as text, without the stop token or stop string unless `no_stop_trim`."""
    matched = None if params.no_stop_trim else completion.finish_reason.get("matched")
    ids = completion.output_ids[:-1] if isinstance(matched, int) else completion.output_ids
    text = tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens)
    return text.partition(matched)[0] if isinstance(matched, str) else text


# Text of tokens and tokens of text, and which tokens end a turn; from the files of a Hugging Face checkpoint.
class Detokenizer:
    """`tokenizer.json` by itself: no chat template, no Python tokenizer class."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{directory} has no tokenizer.json; a checkpoint with a fast tokenizer is needed")
        self._tokenizer = Tokenizer.from_file(str(path))
        self.eos_ids = self._eos_ids(directory)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def _eos_ids(self, directory: Path) -> frozenset[int]:
        """What SGLang stops at: `eos_token_id` of the model's configurations, the tokenizer's `eos_token`, and Llama's
        end of a message."""
        token = read_settings(directory, "tokenizer_config.json").get("eos_token")
        content = token.get("content") if isinstance(token, dict) else token
        named = [self._tokenizer.token_to_id(text) for text in (content, END_OF_MESSAGE) if text]
        return frozenset([*eos_token_ids(directory), *(found for found in named if found is not None)])
