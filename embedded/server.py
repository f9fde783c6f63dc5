"""`python -m slime_swe.embedded.server --model DIR`: a small Qwen2 behind SGLang's HTTP protocol, on a CPU.

Prints one JSON line, {"url": …, "pid": …, "batch_invariant": …}, on standard output when it is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from tokenizers import Tokenizer

from slime_swe.embedded.engine import Engine, EngineStopped
from slime_swe.embedded.exact_forward import CacheError, is_batch_invariant
from slime_swe.embedded.model import CheckpointError, Qwen2
from slime_swe.embedded.sampling import RequestError, SamplingParams
from slime_swe.embedded.scheduler import Completion, Request
from slime_swe.embedded.server_process import url_of
from slime_swe.embedded.workers import set_threads
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.rollout.chat.tokenizer import END_OF_MESSAGE, eos_token_ids, read_settings

PR_SET_PDEATHSIG = 1
VERSION = "embedded-0.1"


class ListenError(InfrastructureError):
    """The address or port can't be had."""


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT (exit status 0); 2 for a checkpoint that cannot be served, 1 for a crash."""
    args = _parser().parse_args(argv)
    if args.die_with_parent is not None:
        _die_with_parent(args.die_with_parent)
    set_threads(args.threads)
    # The engine's thread gives the interpreter lock away at every tensor operation and must get it back quickly.
    sys.setswitchinterval(2e-4)
    try:
        return asyncio.run(_serve(args))
    except (UserError, CacheError, OSError) as error:
        print(f"cannot serve {args.model}: {error}", file=sys.stderr)
    except ListenError as error:
        print(error, file=sys.stderr)
    return 2


async def _serve(args: argparse.Namespace) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    crashed = []

    def on_exit() -> None:
        crashed.append(not stopping.is_set())
        loop.call_soon_threadsafe(stopping.set)

    api, max_body = _build(args, on_exit), args.max_body_bytes
    runner = web.AppRunner(api.app(max_body), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, args.host, args.port).start()
    except OSError as error:
        raise ListenError(f"cannot listen on {args.host}:{args.port}: {error}") from error
    api.engine.start()
    url = url_of(*runner.addresses[0][:2])
    print(json.dumps({"url": url, "pid": os.getpid(), "batch_invariant": api.info["batch_invariant"]}), flush=True)
    await stopping.wait()
    await asyncio.to_thread(api.engine.stop)
    await runner.cleanup()
    return int(any(crashed))


def _build(args: argparse.Namespace, on_exit: Callable[[], None]) -> Api:
    directory = Path(args.model)
    tokenizer = Detokenizer(directory)
    model = Qwen2.load(directory)
    context = args.context_length or min(model.config.max_position_embeddings, 4096)
    engine = Engine(
        model,
        slots=args.slots,
        max_length=context,
        decode=tokenizer.decode,
        on_exit=on_exit,
    )
    engine.model_path = str(directory)
    invariant = is_batch_invariant(model.config)
    if not invariant:
        print("warning: on this machine results depend on the batch; runs are not reproducible", file=sys.stderr)
    info = {
        "version": VERSION,
        "tokenizer_path": str(directory),
        "context_length": context,
        "random_seed": args.seed,
        "max_running_requests": args.slots,
        "device": "cpu",
        "threads": args.threads,
        "batch_invariant": invariant,
        **{name: 1 for name in ("tp_size", "dp_size", "pp_size", "ep_size", "num_gpus")},
        "disaggregation_mode": "null",
        "enable_memory_saver": False,
        "enable_metrics": False,
    }
    return Api(engine, tokenizer, Limits(model.config.vocab_size, context), args.seed, info)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m slime_swe.embedded.server", description=__doc__)
    parser.add_argument("--model", required=True, help="directory of a Hugging Face Qwen2 checkpoint")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: loopback only)")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the model")
    parser.add_argument("--seed", type=int, default=0, help="seed of requests that bring none")
    parser.add_argument("--slots", type=int, default=160, help="requests and idle sessions whose context is kept")
    parser.add_argument("--context-length", type=int, help="tokens of one context (default: the model's, at most 4096)")
    parser.add_argument("--max-body-bytes", type=int, default=8 * 2**20, help="larger request bodies are refused (413)")
    parser.add_argument("--die-with-parent", type=int, metavar="PID", help="end when PID, which started this, ends")
    return parser


def _die_with_parent(parent: int) -> None:
    """Get a SIGTERM when the parent (the thread that started us) ends; raises `SystemExit` if it has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which --die-with-parent names, has ended or did not start this server")


# SGLang's endpoints as aiohttp handlers over an Engine on another thread.
HEALTH_SECONDS = 20.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """Handlers and the state they share. `info` is what `/server_info` adds to the fixed answers."""

    def __init__(self, engine: Engine, tokenizer: Detokenizer, limits: Limits, seed: int, info: dict[str, Any]) -> None:
        self.engine, self.tokenizer, self.limits, self.info = engine, tokenizer, limits, info
        self.seed = seed
        self.mailbox = Mailbox()
        self._count = itertools.count()

    def app(self, max_body_bytes: int) -> web.Application:
        app = web.Application(client_max_size=max_body_bytes, middlewares=[errors_as_json])
        post, get = app.router.add_post, app.router.add_get
        for path, handler in (
            ("/generate", self.generate),
            ("/abort_request", self.abort_request),
            ("/update_weights_from_disk", self.update_weights_from_disk),
            ("/pause_generation", self.pause_generation),
            ("/continue_generation", self.continue_generation),
            ("/flush_cache", self.flush_cache),
            ("/release_memory_occupation", self.release_memory),
            ("/resume_memory_occupation", self.release_memory),
        ):
            post(path, handler)
        for paths, handler in (
            (("/health",), self.health),
            (("/health_generate",), self.health_generate),
            (("/server_info", "/get_server_info"), self.server_info),
            (("/model_info", "/get_model_info"), self.model_info),
            (("/weight_version", "/get_weight_version"), self.weight_version),
            (("/v1/loads",), self.loads),
            (("/flush_cache",), self.flush_cache),
        ):
            for path in paths:
                get(path, handler)
        return app

    async def generate(self, request: web.Request) -> web.Response:
        started = time.monotonic()
        prompt = read_prompt(read_json(await request.read()), self.limits)
        rid = prompt.rid or f"request-{next(self._count)}"
        if prompt.scored_from is not None:
            return await self._score(rid, prompt, started)
        completion = await self._complete(rid, prompt.tokens, prompt.params)
        reason = completion.finish_reason
        if reason.get("status_code"):
            return _json({"error": {"message": reason["message"]}}, status=reason["status_code"])
        return _json(response(rid, prompt, completion, self.tokenizer, time.monotonic() - started))

    async def _score(self, rid: str, prompt: Prompt, started: float) -> web.Response:
        assert prompt.scored_from is not None
        scores, version = await asyncio.wrap_future(self.engine.score(prompt.tokens, prompt.scored_from))
        reason = {"type": "length", "length": 0}
        completion = Completion([], [], reason, len(prompt.tokens), cached_tokens=0, weight_version=version)
        seconds = time.monotonic() - started
        return _json(response(rid, prompt, completion, self.tokenizer, seconds, [None, *scores]))

    async def _complete(self, rid: str, tokens: list[int], params: SamplingParams) -> Completion:
        """Run one request; a handler that is cancelled, because its client went away, aborts it."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        seed = params.sampling_seed
        job = Request(
            rid=rid,
            tokens=list(tokens),
            params=params,
            seed=self.seed + next(self._count) if seed is None else seed,
            eos_ids=self.tokenizer.eos_ids,
            done=self.mailbox.address(future),
        )
        self.engine.submit(job)
        try:
            return await future
        except asyncio.CancelledError:
            with contextlib.suppress(EngineStopped):
                self.engine.drop(job)
            raise

    async def abort_request(self, request: web.Request) -> web.Response:
        payload = read_json(await request.read())
        rid = payload.get("rid", "")
        if not isinstance(rid, str):
            raise RequestError(f"rid={rid!r}: a string is needed")
        await asyncio.wrap_future(self.engine.abort(None if payload.get("abort_all") else rid))
        return web.Response()

    async def update_weights_from_disk(self, request: web.Request) -> web.Response:
        payload = read_json(await request.read())
        path, version = payload.get("model_path"), payload.get("weight_version")
        if not isinstance(path, str) or not path:
            raise RequestError(f"model_path={path!r}: the directory of a Hugging Face checkpoint is needed")
        try:
            if payload.get("abort_all_requests"):
                await asyncio.wrap_future(self.engine.abort(None))
            await asyncio.wrap_future(self.engine.update_weights(Path(path), None if version is None else str(version)))
        except CheckpointError as error:
            return _json({"success": False, "message": str(error), "num_paused_requests": 0}, status=400)
        return _json({"success": True, "message": f"Loaded {path}", "num_paused_requests": 0})

    async def pause_generation(self, request: web.Request) -> web.Response:
        mode = read_json(await request.read()).get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise RequestError(f"mode={mode!r}: 'abort', 'retract' or 'in_place' is needed")
        await asyncio.wrap_future(self.engine.pause(mode))
        return _json({"message": "Generation paused successfully.", "status": "ok"})

    async def continue_generation(self, request: web.Request) -> web.Response:
        await asyncio.wrap_future(self.engine.resume())
        return _json({"message": "Generation continued successfully.", "status": "ok"})

    async def flush_cache(self, request: web.Request) -> web.Response:
        if await asyncio.wrap_future(self.engine.flush()):
            return web.Response(text="Cache flushed.\n")
        return web.Response(text="Flush cache failed.\n", status=400)

    async def release_memory(self, request: web.Request) -> web.Response:
        """Give nothing back, as SGLang without its memory saver: `server_info` says so."""
        return _json(None)

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def health_generate(self, request: web.Request) -> web.Response:
        """Compute one token, unless generation is paused; 503 where that fails or takes longer than HEALTH_SECONDS."""
        if not self.engine.paused:
            probe = self._complete("HEALTH_CHECK", [0], SamplingParams(max_new_tokens=1, temperature=0.0))
            try:
                reason = (await asyncio.wait_for(probe, HEALTH_SECONDS)).finish_reason
            except TimeoutError:
                return _json({"error": {"message": f"no token within {HEALTH_SECONDS} seconds"}}, status=503)
            if reason.get("status_code"):
                return _json({"error": {"message": reason["message"]}}, status=503)
        return web.Response()

    async def server_info(self, request: web.Request) -> web.Response:
        state = {"model_path": self.engine.model_path, "weight_version": self.engine.scheduler.weight_version}
        return _json({**self.info, **state, "internal_states": [self._load()]})

    async def model_info(self, request: web.Request) -> web.Response:
        raw = self.engine.model.config.raw
        return _json(
            {
                "model_path": self.engine.model_path,
                "tokenizer_path": self.info["tokenizer_path"],
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": self.engine.scheduler.weight_version,
                "has_image_understanding": False,
                "has_audio_understanding": False,
                "model_type": raw.get("model_type"),
                "architectures": raw.get("architectures"),
            }
        )

    async def weight_version(self, request: web.Request) -> web.Response:
        return _json({"weight_version": self.engine.scheduler.weight_version})

    async def loads(self, request: web.Request) -> web.Response:
        return _json({"loads": [{"dp_rank": 0, **self._load()}]})

    def _load(self) -> dict[str, Any]:
        scheduler = self.engine.scheduler
        return {
            "num_running_reqs": len(scheduler.active),
            "num_waiting_reqs": self.engine.waiting,
            "max_running_requests": scheduler.cache.slots,
        }


class Mailbox:
    """`Mailbox` carries results from the engine's thread to the event loop's, one wake-up for all of a step."""

    def __init__(self) -> None:
        self._letters: list[tuple[asyncio.Future[Completion], Completion]] = []

    def address(self, future: asyncio.Future[Completion]) -> Callable[[Completion], None]:
        loop = future.get_loop()

        def send(completion: Completion) -> None:
            self._letters.append((future, completion))
            if len(self._letters) == 1:
                loop.call_soon_threadsafe(self._deliver)

        return send

    def _deliver(self) -> None:
        while self._letters:
            future, completion = self._letters.pop()
            if not future.done():
                future.set_result(completion)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestError as error:
        return _json({"error": {"message": str(error)}}, status=400)
    except EngineStopped as error:
        return _json({"error": {"message": str(error)}}, status=503)
    except web.HTTPRequestEntityTooLarge as error:
        return _json({"error": {"message": f"the body is too large: {error.text}"}}, status=413)
    except web.HTTPException as error:
        return _json(
            {"error": {"message": f"{error.status} {error.reason}: {request.method} {request.path}"}}, error.status
        )


def _json(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")


# `/generate` in JSON: a request's body to a prompt and parameters, and a completion to a response.
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


@dataclass(frozen=True)
class Limits:
    vocab_size: int
    context_length: int


@dataclass(frozen=True)
class Prompt:
    """A prompt; with `scored_from`, its own log-probabilities from that token on are wanted, and nothing is sampled."""

    rid: str | None
    tokens: list[int]
    params: SamplingParams
    return_logprob: bool
    scored_from: int | None = None


def read_json(body: bytes) -> dict[str, Any]:
    """Read a JSON object; an empty body is an empty object. Raises `RequestError`."""
    try:
        payload = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise RequestError(f"the body is a JSON {type(payload).__name__}, an object is needed")
    return payload


def read_prompt(payload: Mapping[str, Any], limits: Limits) -> Prompt:
    """Read the prompt of a `/generate` body: one, as token ids. Raises `RequestError`."""
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
    """Check one prompt's parameters; without `max_new_tokens` the default is cut to what the context leaves."""
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
    """Make SGLang's answer; `output_token_logprobs` holds [log-probability, token id, null] of every output token.
    `scores` are those of the prompt's tokens from `scored_from` on, null for the first."""
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
    """Return the output as text, without the stop token or stop string unless `no_stop_trim`."""
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
        """Return the tokens that SGLang stops at: `eos_token_id` of the model's configurations, the tokenizer's
        `eos_token`, and Llama's end of a message."""
        token = read_settings(directory, "tokenizer_config.json").get("eos_token")
        content = token.get("content") if isinstance(token, dict) else token
        named = [self._tokenizer.token_to_id(text) for text in (content, END_OF_MESSAGE) if text]
        return frozenset([*eos_token_ids(directory), *(found for found in named if found is not None)])


if __name__ == "__main__":
    raise SystemExit(main())
