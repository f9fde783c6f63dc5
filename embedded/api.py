"""The HTTP side of the server: SGLang's endpoints as aiohttp handlers over an Engine on another thread."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from slime_swe.embedded.engine import Engine, EngineStopped
from slime_swe.embedded.model import CheckpointError
from slime_swe.embedded.protocol import Detokenizer, Limits, Prompt, read_json, read_prompt, response
from slime_swe.embedded.sampling import RequestError, SamplingParams
from slime_swe.embedded.scheduler import Completion, Request

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
        """Of which nothing is given back, as by SGLang without its memory saver: `server_info` says so."""
        return _json(None)

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def health_generate(self, request: web.Request) -> web.Response:
        """Computes one token, unless generation is paused; 503 where that fails or takes longer than HEALTH_SECONDS."""
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
    """Carries results from the engine's thread to the event loop's, one wake-up for all of a step."""

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
