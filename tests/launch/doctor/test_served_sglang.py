"""The probes against real SGLang with a toy mixture of experts: by itself, through SLiME's router of PyPI, and ours."""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from importlib.util import find_spec
from urllib.error import URLError

import pytest
import torch

from slime_swe.launch.doctor.served import PROBES, PROBES_OF_EXPERTS, probe, probed
from slime_swe.launch.ray.network import free_ports
from slime_swe.launch.rehearse.router import Router, serve
from tests import real_sglang
from tests.embedded.conftest import tiny_checkpoint as tiny_checkpoint

pytestmark = [
    pytest.mark.extended("tests/launch/doctor/test_served.py::test_each_fault_is_found_by_its_field"),
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    real_sglang.needed,
    pytest.mark.skipif(find_spec("sglang_router") is None, reason="needs sglang-router"),
]
LAYERS, CHOSEN = 3, 2


@pytest.fixture(scope="module")
def mixture(tiny_checkpoint, tmp_path_factory):
    """A random Qwen3-MoE of 8 experts with the tokenizer of the tests."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    folder = tmp_path_factory.mktemp("mixture")
    for path in tiny_checkpoint.iterdir():
        if path.name not in ("config.json", "model.safetensors", "generation_config.json"):
            (folder / path.name).write_bytes(path.read_bytes())
    config = Qwen3MoeConfig(
        vocab_size=320, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=LAYERS,
        num_attention_heads=8, num_key_value_heads=4, head_dim=16, num_experts=8, num_experts_per_tok=CHOSEN,
        norm_topk_prob=True, max_position_embeddings=512, tie_word_embeddings=False, eos_token_id=2,
    )  # fmt: skip
    model, generator = Qwen3MoeForCausalLM(config), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.1, generator=generator)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engine(mixture, tmp_path_factory):
    log = tmp_path_factory.mktemp("sglang") / "log"
    with real_sglang.serving(mixture, log, enable_return_routed_experts=True) as server:
        yield server


@contextmanager
def pypi_router(engine):
    port, metrics = free_ports(2, "127.0.0.1")
    command = [real_sglang.interpreter(), "-m", "sglang_router.launch_router", "--worker-urls", engine.url]
    command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
    router = real_sglang.Server(f"http://127.0.0.1:{port}")
    with subprocess.Popen(command, env=real_sglang.environment(), stdout=subprocess.DEVNULL) as process:
        try:
            while not _takes(router):
                assert process.poll() is None
                time.sleep(0.5)
            yield router.url
        finally:
            process.terminate()


def _takes(router):
    try:
        return router.generate([5, 6, 7], max_new_tokens=1)[0] == 200
    except URLError:
        return False


SIZES = {"vocabulary": 320, "room": 400, "experts_per_token": LAYERS * CHOSEN}


def test_sglang_by_itself_has_every_field(engine):
    results = probe(engine.url, **SIZES)
    assert [result for result in results if not result.ok] == []
    assert [result.name for result in results] == [*PROBES, *PROBES_OF_EXPERTS]


def test_the_router_of_pypi_drops_the_routed_experts(engine):
    with pypi_router(engine) as url:
        failed = {result.name for result in probe(url, **SIZES) if not result.ok}
    assert failed == {*PROBES_OF_EXPERTS}


async def test_the_router_of_a_rehearsal_passes_everything_on(engine):
    runner, port = await serve(Router([engine.url]))
    try:
        results = await probed(f"http://127.0.0.1:{port}", **SIZES)
    finally:
        await runner.cleanup()
    assert [result for result in results if not result.ok] == []
