"""`ScriptedEngine`: a server that speaks SGLang's `POST /generate`, whose policy follows a script.

For the agents' check, for tests and for benchmarks: everything but the policy is real.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

_MAX_BODY_BYTES = 1 << 28
_OPENING = "<|im_start|>assistant"

Request = dict[str, Any]  # as SGLang takes it: input_ids, sampling_params, …
Say = Callable[["ScriptedEngine", Request], str | Sequence[int]]


@dataclass(frozen=True)
class Sampled:
    """One answered request: what the policy was shown, what it said, and each token's log-probability."""

    prompt: list[int]
    tokens: list[int]
    log_probs: list[float]


def by_turn(*turns: str) -> Say:
    """Return a policy that says these texts, one for each assistant's turn in the prompt; the last one for ever."""
    return lambda engine, asked: turns[min(engine.turns_in(asked["input_ids"]), len(turns) - 1)]


def by_content(*turns: str) -> Say:
    """Return a policy that says the first of these texts that the prompt does not hold yet; at the end the last one
    again. It is for agents that rewrite their history. No text may occur twice.
    """

    def say(engine: ScriptedEngine, asked: Request) -> str:
        shown = engine.tokenizer.decode(asked["input_ids"])
        return next((turn for turn in turns if turn not in shown), turns[-1])

    return say


def by_call(*turns: str) -> Say:
    """Return a policy that says these texts, one for each request; the last one for ever. It is for agents that leave a
    malformed turn out of their history, and ask one thing at a time.
    """
    return lambda engine, asked: turns[min(len(engine.sampled), len(turns) - 1)]


@dataclass
class ScriptedEngine:
    """`say` gives the policy's next turn, as text or as token ids; it ends at its first stop token.

    Each sampled token has a unique log-probability, by which it is found again in the training data; with `log_prob`
    all have that one. experts: the routed experts of the tokens from one place up to another, int32 in bytes. remember:
    whether requests and samples are kept. cached: how many tokens of a prompt the engine says it had in its cache.
    aborts: after how many tokens each of the next requests is aborted; a request that goes on from there gets the rest.
    """

    tokenizer: Any
    say: Say
    log_prob: float | None = None
    weight_version: str = "0"
    experts: Callable[[int, int], bytes] | None = None
    aborts: list[int] = field(default_factory=list)
    remember: bool = True
    cached: Callable[[Sequence[int]], int] = lambda prompt: 0
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    _rest: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # of aborted turns, by all tokens before it

    async def handle(self, request: web.Request) -> web.StreamResponse:
        asked = orjson.loads(await request.read())
        if self.remember:
            self.requests.append(asked)
        return web.Response(body=orjson.dumps(self.answer(asked)), content_type="application/json")

    def answer(self, asked: Request) -> dict[str, Any]:
        """Answer a request as SGLang does."""
        prompt, params = asked["input_ids"], asked["sampling_params"]
        ids = self._rest.pop(tuple(prompt), None) or self._say(asked)
        tokens = ids[: params["max_new_tokens"]]
        stopped = ids[-1] in params["stop_token_ids"] and len(ids) < params["max_new_tokens"]  # SGLang's order
        finish = {"type": "stop" if stopped else "length"}
        if self.aborts:
            tokens = ids[: self.aborts.pop(0)]
            finish = {"type": "abort", "message": "Aborted"}
            self._rest[*prompt, *tokens] = ids[len(tokens) :]
        log_probs = self._log_probs(len(tokens))
        if self.remember:
            self.sampled.append(Sampled(prompt, tokens, log_probs))
        meta = {
            "id": "scripted",
            "finish_reason": finish,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(tokens),
            "cached_tokens": self.cached(prompt),
            "weight_version": self.weight_version,
            "output_token_logprobs": [[value, token, None] for value, token in zip(log_probs, tokens, strict=True)],
        }
        if self.experts is not None and asked.get("return_routed_experts"):
            start = asked.get("routed_experts_start_len", 0)
            table = self.experts(start, len(prompt) + len(tokens) - 1)
            meta["routed_experts"] = base64.b64encode(table).decode()
        return {"text": self.tokenizer.decode(tokens), "output_ids": tokens, "meta_info": meta}

    def _say(self, asked: Request) -> list[int]:
        said, stops = self.say(self, asked), asked["sampling_params"]["stop_token_ids"]
        ids = self.encode(said) if isinstance(said, str) else [*said]
        return ids[: next((at + 1 for at, token in enumerate(ids) if token in stops), len(ids))]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def turns_in(self, prompt: Sequence[int]) -> int:
        """Count the turns of the assistant that a prompt holds, but for the one that it opens."""
        count: int = self.tokenizer.decode(prompt).count(_OPENING)
        return count - 1

    def _log_probs(self, count: int) -> list[float]:
        if self.log_prob is not None:
            return [self.log_prob] * count
        before = sum(len(one.tokens) for one in self.sampled)
        return [-(before + at + 1) / 1024 for at in range(count)]  # exact in binary


@asynccontextmanager
async def scripted_engine(tokenizer: Any, say: Say, **settings: Any) -> AsyncIterator[ScriptedEngine]:
    """Serve a `ScriptedEngine` on the loopback inside the context."""
    engine = ScriptedEngine(tokenizer, say, **settings)
    async with serve(engine.handle) as url:
        engine.url = url
        yield engine


@asynccontextmanager
async def serve(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """Serve `handle` as `/generate` on the loopback inside the context, which gets the server's URL."""
    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app.router.add_post("/generate", handle)
    # A client that goes away cancels its handler, as an engine drops what it samples for nobody.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
