"""A tokenizer trained on the spot, two chat templates in the style of Qwen's, and a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.rollout.support import make_args

# ChatML with tools, as Qwen2.5 lays it out: results of one turn share one user message.
CHATML = """
{%- if messages[0].role == "system" -%}
  {%- set opening = messages[0].content -%}{%- set rest = messages[1:] -%}
{%- else -%}
  {%- set opening = "You are an agent." -%}{%- set rest = messages -%}
{%- endif -%}
{{- "<|im_start|>system\n" + opening -}}
{%- if tools -%}
  {{- "\n\n# Tools\n<tools>" -}}
  {%- for tool in tools -%}{{- "\n" -}}{{- tool | tojson -}}{%- endfor -%}
  {{- "\n</tools>" -}}
{%- endif -%}
{{- "<|im_end|>\n" -}}
{%- for message in rest -%}
  {%- if message.role == "tool" -%}
    {%- if loop.first or loop.previtem.role != "tool" -%}{{- "<|im_start|>user" -}}{%- endif -%}
    {{- "\n<tool_response>\n" + message.content + "\n</tool_response>" -}}
    {%- if loop.last or loop.nextitem.role != "tool" -%}{{- "<|im_end|>\n" -}}{%- endif -%}
  {%- else -%}
    {{- "<|im_start|>" + message.role + "\n" + message.content + "<|im_end|>\n" -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\n" -}}{%- endif -%}
"""

ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED_PLAIN = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

_CORPUS = [
    "def add(first, second):\n    return first + second\n",
    '{"name": "view", "arguments": {"path": "pkg/module.py"}}',
    "FAILED tests/test_module.py::test_add - AssertionError: 3 != 4\nPASSED 12 tests in 0.1 seconds\n",
    "system user assistant tool Please fix the bug that makes this test fail. <function=bash> <parameter=command>",
]


def make_tokenizer(template: str | None = CHATML, *, added_plain: list[str] | None = None) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    words = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(words), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    tokenizer.add_special_tokens(ADDED)
    tokenizer.add_tokens(ADDED_PLAIN if added_plain is None else added_plain)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = template
    return fast


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="session")
def checkpoint(tokenizer, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("checkpoint")
    tokenizer.save_pretrained(folder)
    return str(folder)


@dataclass
class ScriptedEngine:
    """Speaks `POST /generate`; `reply(request) -> text` is the model. Each token gets log-probability -0.5."""

    tokenizer: Any
    reply: Callable[[dict[str, Any]], str]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        asked = orjson.loads(await request.read())
        self.requests.append(asked)
        text = self.reply(asked)
        ids = self.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return web.json_response(self.answer(asked, ids))

    def answer(self, asked: dict[str, Any], ids: list[int]) -> dict[str, Any]:
        params = asked["sampling_params"]
        stops = [i for i, token in enumerate(ids) if token in params["stop_token_ids"]]
        ids = ids[: stops[0] + 1] if stops else ids
        kind = "stop" if stops and len(ids) <= params["max_new_tokens"] else "length"
        ids = ids[: params["max_new_tokens"]]
        return {
            "text": self.tokenizer.decode(ids),
            "output_ids": ids,
            "meta_info": {
                "id": "x",
                "finish_reason": {"type": kind},
                "prompt_tokens": len(asked["input_ids"]),
                "completion_tokens": len(ids),
                "cached_tokens": 0,
                "weight_version": "3",
                "output_token_logprobs": [[-0.5, token, None] for token in ids],
            },
        }

    def turn(self, asked: dict[str, Any]) -> int:
        """How many assistant turns the request's context already holds."""
        text = self.tokenizer.decode(asked["input_ids"])
        return text.count("<|im_start|>assistant") - 1


@asynccontextmanager
async def serve(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """The URL of a real HTTP server on the loopback whose /generate is `handler`."""
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/generate", handler)
    server = TestServer(app)
    await server.start_server(shutdown_timeout=0.1)
    try:
        yield str(server.make_url("")).rstrip("/")
    finally:
        await server.close()


def script(*turns: str) -> Callable[[ScriptedEngine], Callable[[dict[str, Any]], str]]:
    """A policy that says these texts, one a turn, and the last one for ever."""
    return lambda engine: lambda asked: turns[min(engine.turn(asked), len(turns) - 1)]


@pytest.fixture
def scripted(tokenizer):
    """`async with scripted(*turns) as engine`: an engine whose policy says these turns."""

    @asynccontextmanager
    async def start(*turns: str) -> AsyncIterator[ScriptedEngine]:
        engine = ScriptedEngine(tokenizer, lambda asked: "")
        engine.reply = script(*turns)(engine)
        async with serve(engine.handle) as url:
            engine.url = url
            yield engine

    return start


@pytest.fixture
def run_with(checkpoint, tmp_path, scripted):
    """`async with run_with(*turns, **changed args) as (args, engine)`."""

    @asynccontextmanager
    async def start(*turns: str, **changes):
        async with scripted(*turns) as engine:
            yield make_args(checkpoint, engine.url, tmp_path, **changes), engine

    return start
