"""A tokenizer trained on the spot, a chat template in the style of Qwen's, and a scripted engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from slime_swe.rollout.scripted import ScriptedEngine, by_turn, scripted_engine
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


@pytest.fixture
def scripted(tokenizer):
    """`async with scripted(*turns) as engine`: an engine whose policy says these turns."""

    @asynccontextmanager
    async def start(*turns: str) -> AsyncIterator[ScriptedEngine]:
        async with scripted_engine(tokenizer, by_turn(*turns), log_prob=-0.5, weight_version="3") as engine:
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
