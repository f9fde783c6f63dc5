"""Turns that the server aborts, for new weights or to pause: `EngineClient` goes on with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch
from aiohttp import ClientSession, web
from transformers import Qwen2ForCausalLM

from slime_swe.embedded.engine import Engine
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.server import Api, Detokenizer, Limits
from slime_swe.rollout.client import EngineClient, Generation

PROMPT = [5, 6, 7]
LENGTH = 400
PARAMS = {
    "max_new_tokens": LENGTH,
    "temperature": 1.0,
    "top_p": 1.0,
    "ignore_eos": True,
    "no_stop_trim": True,
    "stop_token_ids": [2],
    "sampling_seed": 11,
}


class Served:
    """The server's own engine and API, in this process, so that a test sees how far a request is."""

    def __init__(self, checkpoint: Path) -> None:
        tokenizer = Detokenizer(checkpoint)
        model = Qwen2.load(checkpoint)
        self.engine = Engine(model, slots=4, max_length=512, decode=tokenizer.decode)
        self.api = Api(self.engine, tokenizer, Limits(model.config.vocab_size, 512), 0, {})
        self.url = ""

    async def post(self, path: str, **body: object) -> None:
        async with ClientSession() as session, session.post(self.url + path, json=body) as response:
            assert response.status == 200, await response.text()

    async def until_sampled(self, tokens: int) -> None:
        """Until the one request that is active has so many tokens beyond its prompt and what was said before."""
        while not any(len(one.tokens) - len(PROMPT) >= tokens for one in [*self.engine.scheduler.active.values()]):
            await asyncio.sleep(0)


@pytest.fixture
async def served(tiny_checkpoint) -> AsyncIterator[Served]:
    made = Served(tiny_checkpoint)
    runner = web.AppRunner(made.api.app(1 << 20), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    made.engine.start()
    yield made
    await asyncio.to_thread(made.engine.stop)
    await runner.cleanup()


@pytest.fixture(scope="module")
def versions(tiny_checkpoint, tmp_path_factory) -> Iterator[dict[str, Path]]:
    """Checkpoints of one model's weights after each of three updates, by version."""
    model, folders = Qwen2.load(tiny_checkpoint), {"default": tiny_checkpoint}
    generator = torch.Generator().manual_seed(1)
    for version in ("1", "2", "3"):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.02, generator=generator))
        folders[version] = tmp_path_factory.mktemp(f"version_{version}")
        model.save(folders[version])
        (folders[version] / "config.json").write_bytes((tiny_checkpoint / "config.json").read_bytes())
    return folders


def log_probs_by(checkpoint: Path, prompt: list[int], tokens: list[int]) -> list[float]:
    """Of each token after the prompt, by transformers' own model in float64."""
    model = Qwen2ForCausalLM.from_pretrained(checkpoint).double()
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1)[range(len(logits)), tokens].tolist()


def require_honest(prompt: list[int], said: Generation, versions: dict[str, Path]) -> None:
    """Each token has the log-probability that the weights of its version give it."""
    at = 0
    for version, count in said.version_spans:
        expected = log_probs_by(versions[version], prompt, said.tokens)
        assert said.log_probs[at : at + count] == pytest.approx(expected[at : at + count], abs=1e-5)
        at += count
    assert at == len(said.tokens)


async def test_a_turn_over_three_weight_updates_has_the_log_probabilities_of_each_version(served, versions):
    async with EngineClient(served.url) as client:
        sampling = asyncio.create_task(client.generate(PROMPT, PARAMS))
        for number, version in enumerate(("1", "2", "3"), 1):
            await served.until_sampled(60 * number)
            await served.post("/pause_generation")
            await served.post("/update_weights_from_disk", model_path=str(versions[version]), weight_version=version)
            await served.post("/continue_generation")
        said = await sampling
    assert [version for version, _ in said.version_spans] == ["default", "1", "2", "3"]
    assert (len(said.tokens), said.finish_reason) == (LENGTH, "length")
    require_honest(PROMPT, said, versions)


async def test_an_abort_without_new_weights_changes_nothing(served):
    async with EngineClient(served.url) as client:
        whole = await client.generate(PROMPT, PARAMS)
        sampling = asyncio.create_task(client.generate(PROMPT, PARAMS))
        for number in range(1, 4):
            await served.until_sampled(60 * number)
            await served.post("/abort_request", abort_all=True)
        said = await sampling
    assert (said.tokens, said.log_probs) == (whole.tokens, whole.log_probs)
    assert said.version_spans == (("default", LENGTH),)


async def test_turns_pause_at_a_closed_gate_and_go_on_with_new_weights(served, versions):
    async with EngineClient(served.url) as client:
        prompts = [PROMPT, [8, 9, 10]]
        sampling = [asyncio.create_task(client.generate(prompt, PARAMS)) for prompt in prompts]
        await served.until_sampled(60)
        await client.gate.drain(lambda: served.post("/abort_request", abort_all=True))
        assert not served.engine.scheduler.busy and not any(one.done() for one in sampling)
        await served.post("/update_weights_from_disk", model_path=str(versions["2"]), weight_version="2")
        client.gate.open()
        for prompt, said in zip(prompts, await asyncio.gather(*sampling), strict=True):
            assert [version for version, _ in said.version_spans] == ["default", "2"]
            require_honest(prompt, said, versions)
