"""The server as a client meets it: a separate process, spoken to over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch

from slime_swe.embedded.engine import Engine, EngineStopped
from slime_swe.embedded.exact_forward import CacheError, KVCache
from slime_swe.embedded.model import ModelConfig, Qwen2
from slime_swe.embedded.sampling import SamplingParams
from slime_swe.embedded.scheduler import Request
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]


def launch(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "slime_swe.embedded.server", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@dataclass
class Client:
    url: str
    session: aiohttp.ClientSession

    async def post(self, path: str, payload: Any = None, **options: Any) -> tuple[int, Any]:
        data = None if payload is None else json.dumps(payload)
        async with self.session.post(self.url + path, data=data, **options) as response:
            body = await response.read()
            is_json = "json" in response.content_type
            return response.status, json.loads(body) if is_json else body.decode()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as response:
            return response.status, await response.json(content_type=None)

    async def generate(self, tokens: list[int], **params: Any) -> dict[str, Any]:
        params = {"no_stop_trim": True, "skip_special_tokens": False, **params}
        status, answer = await self.post(
            "/generate", {"input_ids": tokens, "sampling_params": params, "return_logprob": True}
        )
        assert status == 200, answer
        return answer

    async def running(self) -> int:
        _, loads = await self.get("/v1/loads?include=core")
        return loads["loads"][0]["num_running_reqs"] + loads["loads"][0]["num_waiting_reqs"]

    async def until_running(self, count: int) -> None:
        while await self.running() != count:  # without a pause: a reply may be short
            await asyncio.sleep(0)


@pytest.fixture(scope="module")
def server(tiny_checkpoint) -> Iterator[dict[str, Any]]:
    process = launch("--model", str(tiny_checkpoint), "--slots", "32", "--die-with-parent", str(os.getpid()))
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
        process.stdout.close()
        process.stderr.close()


@pytest.fixture
async def client(server) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:
        yield Client(server["url"], session)
        await session.post(server["url"] + "/abort_request", json={"abort_all": True})


async def test_it_says_where_it_listens_and_that_results_are_reproducible(server):
    assert server["url"].startswith("http://127.0.0.1:")
    assert server["batch_invariant"] is True


async def test_an_answer_has_sglangs_fields(client):
    answer = await client.generate([5, 6, 7], max_new_tokens=6, ignore_eos=True, sampling_seed=3)
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 6)
    assert meta["weight_version"] == "default"
    assert [token for _, token, _ in meta["output_token_logprobs"]] == answer["output_ids"]
    assert all(log_prob <= 0 and text is None for log_prob, _, text in meta["output_token_logprobs"])
    assert isinstance(answer["text"], str) and isinstance(meta["id"], str)


async def test_a_prompt_s_log_probabilities_are_those_that_its_tokens_were_sampled_with(client):
    prompt = [5, 6, 7]
    said = await client.generate(prompt, max_new_tokens=6, ignore_eos=True, sampling_seed=3)
    body = {"input_ids": [*prompt, *said["output_ids"]], "return_logprob": True, "logprob_start_len": len(prompt) - 1,
            "sampling_params": {"max_new_tokens": 0}}  # fmt: skip
    status, scored = await client.post("/generate", body)
    assert status == 200 and scored["output_ids"] == []
    (nothing, last, _), *rest = scored["meta_info"]["input_token_logprobs"]
    assert (nothing, last) == (None, prompt[-1])
    assert rest == said["meta_info"]["output_token_logprobs"], "to the last bit"
    assert scored["meta_info"]["weight_version"] == "default"
    for start in (9, -2, "a"):
        status, answer = await client.post("/generate", {**body, "logprob_start_len": start})
        assert status == 400 and f"logprob_start_len={start!r}: a place among the 9" in answer["error"]["message"]


async def test_a_hundred_at_once_get_the_bits_that_each_gets_alone(client):
    rng = random.Random(0)
    system = [rng.randrange(3, 300) for _ in range(100)]
    prompts = [system + [rng.randrange(3, 300) for _ in range(rng.randint(1, 80))] for _ in range(100)]
    params = [{"max_new_tokens": rng.randint(5, 40), "sampling_seed": index} for index in range(100)]

    async def run(index: int) -> Any:
        await asyncio.sleep(rng.random() * 0.2)
        answer = await client.generate(prompts[index], **params[index])
        return answer["text"], answer["meta_info"]["output_token_logprobs"], answer["meta_info"]["finish_reason"]

    order = list(range(100))
    together = []
    for _ in range(2):
        rng.shuffle(order)
        together.append(dict(zip(order, await asyncio.gather(*map(run, order)), strict=True)))
    await client.post("/flush_cache")
    assert together[0] == together[1]
    for index in range(0, 100, 7):
        assert await run(index) == together[0][index]


async def test_a_second_turn_reuses_the_first_ones_context(client):
    tokens = list(range(10, 90))
    first = await client.generate(tokens, max_new_tokens=10, ignore_eos=True)
    second = await client.generate(tokens + first["output_ids"] + [5, 6, 7], max_new_tokens=2)
    assert second["meta_info"]["cached_tokens"] == 89


async def test_the_token_that_stops_is_trimmed_from_the_text_alone(client):
    free = await client.generate([40, 41], max_new_tokens=9, ignore_eos=True, sampling_seed=1)
    stop = free["output_ids"][5]
    kept = await client.generate([40, 41], max_new_tokens=9, stop_token_ids=[stop], sampling_seed=1)
    cut = await client.generate([40, 41], max_new_tokens=9, stop_token_ids=[stop], sampling_seed=1, no_stop_trim=False)
    assert kept["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert kept["output_ids"] == cut["output_ids"] and kept["output_ids"][-1] == stop
    assert kept["text"].startswith(cut["text"]) and len(cut["text"]) < len(kept["text"])


async def test_stop_strings(client):
    free = await client.generate([50, 51], max_new_tokens=30, ignore_eos=True, sampling_seed=1)
    printable = [c for c in free["text"] if c.isascii() and c.isprintable()]
    stop = printable[len(printable) // 2]
    answer = await client.generate([50, 51], max_new_tokens=30, stop=stop, ignore_eos=True, sampling_seed=1)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    trimmed = await client.generate(
        [50, 51], max_new_tokens=30, stop=[stop], ignore_eos=True, sampling_seed=1, no_stop_trim=False
    )
    assert trimmed["text"] == answer["text"].partition(stop)[0]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "at least one token id"),
        ({"text": "a", "input_ids": [1]}, "text='a' is not supported"),
        ({"input_ids": [[1], [2]]}, "integers only"),
        ({"input_ids": []}, "at least one token id"),
        ({"input_ids": [1, "a"]}, "integers only"),
        ({"input_ids": [1, True]}, "integers only"),
        ({"input_ids": [1, 320]}, "320 is not in the vocabulary; ids go from 0 to 319"),
        ({"input_ids": [-1]}, "-1 is not in the vocabulary"),
        ({"input_ids": [1] * 512}, r"512 tokens\) is longer than .* \(512 tokens"),
        (
            {"input_ids": [1] * 500, "sampling_params": {"max_new_tokens": 13}},
            "500 .*max_new_tokens=13.* 513.*512.*at most 12",
        ),
        ({"input_ids": [1], "sampling_params": {"top_p": 2}}, "top_p must be float <= 1.* got 2"),
        ({"input_ids": [1], "sampling_params": []}, "sampling_params is a list, an object"),
        ({"input_ids": [1], "stream": True}, "stream=True is not supported"),
        ({"input_ids": [1], "logprob_start_len": 0}, "logprob_start_len=0 is not supported"),
        ({"input_ids": [1], "rid": 5}, "rid=5"),
        ([1], "JSON list"),
    ],
)
async def test_bad_requests_get_a_400_that_says_why(client, payload, message):
    status, answer = await client.post("/generate", payload)
    assert status == 400
    assert re.search(message, answer["error"]["message"]), answer


async def test_half_a_json_unknown_paths_and_huge_bodies(client):
    async with client.session.post(client.url + "/generate", data=b'{"input_ids": [1') as response:
        assert response.status == 400 and "not JSON" in (await response.json())["error"]["message"]
    assert (await client.get("/nowhere"))[0] == 404
    async with client.session.post(client.url + "/generate", data=b" " * 10_000_000) as response:
        assert response.status == 413 and "too large" in (await response.json())["error"]["message"]
    assert (await client.get("/health"))[0] == 200


async def test_without_max_new_tokens_the_default_is_cut_to_the_context(client):
    status, answer = await client.post("/generate", {"input_ids": [9] * 505, "sampling_params": {"ignore_eos": True}})
    assert status == 200 and len(answer["output_ids"]) == 7


async def test_abort_by_id_and_abort_all(client):
    def start(rid: str) -> asyncio.Task[Any]:
        params = {"max_new_tokens": 500, "ignore_eos": True}
        return asyncio.create_task(client.post("/generate", {"input_ids": [7], "sampling_params": params, "rid": rid}))

    tasks = [start(rid) for rid in ("one", "two", "three")]
    await client.until_running(3)
    assert (await client.post("/abort_request", {"rid": "t"}))[0] == (await client.post("/abort_request", {}))[0] == 200
    assert (await client.post("/abort_request", {"rid": "two"}))[0] == 200
    status, answer = await tasks[1]
    assert status == 200 and answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["meta_info"]["completion_tokens"] == len(answer["output_ids"]) < 500
    await client.post("/abort_request", {"abort_all": True})
    assert {(await task)[1]["meta_info"]["finish_reason"]["type"] for task in tasks} == {"abort"}
    assert (await client.post("/abort_request", {"rid": 5}))[0] == 400


async def test_a_client_that_goes_away_frees_its_slot(client):
    task = asyncio.create_task(client.generate([7], max_new_tokens=500, ignore_eos=True))
    await client.until_running(1)
    await client.post("/pause_generation", {"mode": "in_place"})  # or it soon comes to its own end
    assert await client.running() == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await client.until_running(0)
    await client.post("/continue_generation", {})


async def test_new_weights_are_used_and_named_and_bad_ones_refused(client, tiny_checkpoint, tmp_path):
    model = Qwen2.load(tiny_checkpoint)
    before = await client.generate([5, 6, 7], max_new_tokens=8, sampling_seed=3, ignore_eos=True)
    with torch.no_grad():
        model.model.norm.weight.mul_(-1)
    model.save(tmp_path)
    status, answer = await client.post(
        "/update_weights_from_disk", {"model_path": str(tmp_path), "weight_version": 4, "load_format": None}
    )
    assert (status, answer["success"]) == (200, True)
    after = await client.generate([5, 6, 7], max_new_tokens=8, sampling_seed=3, ignore_eos=True)
    assert after["meta_info"]["weight_version"] == "4" and after["meta_info"]["cached_tokens"] == 0
    assert after["output_ids"] != before["output_ids"]
    (tmp_path / "model.safetensors").write_bytes(b"half")
    status, answer = await client.post("/update_weights_from_disk", {"model_path": str(tmp_path)})
    assert status == 400 and not answer["success"] and "model.safetensors" in answer["message"]
    again = await client.generate([5, 6, 7], max_new_tokens=8, sampling_seed=3, ignore_eos=True)
    assert again["output_ids"] == after["output_ids"]
    await client.post("/update_weights_from_disk", {"model_path": str(tiny_checkpoint), "weight_version": "default"})
    restored = await client.generate([5, 6, 7], max_new_tokens=8, sampling_seed=3, ignore_eos=True)
    assert restored["meta_info"]["output_token_logprobs"] == before["meta_info"]["output_token_logprobs"]


async def test_weights_that_are_not_finite_fail_the_health_check_until_good_ones_arrive(
    client, tiny_checkpoint, tmp_path
):
    before = await client.generate([5, 6, 7], max_new_tokens=8, sampling_seed=3, ignore_eos=True)
    model = Qwen2.load(tiny_checkpoint)
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(float("nan"))
    model.save(tmp_path)
    await client.post("/update_weights_from_disk", {"model_path": str(tmp_path)})
    status, answer = await client.get("/health_generate")
    assert status == 503 and "not finite" in answer["error"]["message"]
    await client.post("/update_weights_from_disk", {"model_path": str(tiny_checkpoint), "weight_version": "default"})
    assert (await client.get("/health_generate"))[0] == 200
    after = await client.generate([5, 6, 7], max_new_tokens=8, sampling_seed=3, ignore_eos=True)
    assert after["meta_info"]["output_token_logprobs"] == before["meta_info"]["output_token_logprobs"]


@pytest.mark.parametrize("mode", ["in_place", "retract"])
async def test_a_paused_request_goes_on_where_it_was(client, mode):
    expected = await client.generate([7, 8], max_new_tokens=400, ignore_eos=True, sampling_seed=5)
    task = asyncio.create_task(client.generate([7, 8], max_new_tokens=400, ignore_eos=True, sampling_seed=5))
    await client.until_running(1)
    assert (await client.post("/pause_generation", {"mode": mode}))[0] == 200
    assert (await client.get("/health_generate"))[0] == 200
    async with client.session.get(client.url + "/flush_cache") as response:
        assert response.status == (400 if mode == "in_place" else 200)
    done, _ = await asyncio.wait([task], timeout=0.1)
    assert not done
    await client.post("/continue_generation", {})
    assert (await task)["meta_info"]["output_token_logprobs"] == expected["meta_info"]["output_token_logprobs"]


async def test_pausing_aborts_by_default_and_holds_back_new_requests(client):
    task = asyncio.create_task(client.generate([7], max_new_tokens=500, ignore_eos=True))
    await client.until_running(1)
    await client.post("/pause_generation", {})
    assert (await task)["meta_info"]["finish_reason"]["type"] == "abort"
    task = asyncio.create_task(client.generate([7], max_new_tokens=2))
    gone = asyncio.create_task(client.generate([7], max_new_tokens=2))
    await client.until_running(2)
    await client.post("/abort_request", {"abort_all": True})  # they have not begun
    gone.cancel()
    await client.until_running(1)
    await client.post("/continue_generation", {})
    assert (await task)["meta_info"]["finish_reason"]["type"] == "length"
    assert (await client.post("/pause_generation", {"mode": "nap"}))[0] == 400


async def test_what_slime_asks_an_external_engine(client, tiny_checkpoint):
    for path in ("/server_info", "/get_server_info"):
        _, info = await client.get(path)
        assert (info["tp_size"], info["pp_size"], info["ep_size"], info["enable_memory_saver"]) == (1, 1, 1, False)
        assert info["disaggregation_mode"] not in ("prefill", "decode")
    for path in ("/get_model_info", "/model_info"):
        assert (await client.get(path))[1]["model_path"] == str(tiny_checkpoint)
    assert (await client.get("/get_weight_version"))[1] == {"weight_version": "default"}
    assert (await client.get("/health_generate"))[0] == 200


def test_a_directory_that_is_no_checkpoint_and_a_taken_port_end_with_a_sentence(tiny_checkpoint, tmp_path, server):
    process = launch("--model", str(tmp_path))
    assert process.wait(60) == 2
    assert "tokenizer.json" in process.communicate()[1]
    shutil.copy(tiny_checkpoint / "tokenizer.json", tmp_path)
    (tmp_path / "config.json").mkdir()
    process = launch("--model", str(tmp_path))
    assert process.wait(60) == 2
    assert re.search(f"cannot serve {tmp_path}: .*config.json", process.communicate()[1])
    shutil.copytree(tiny_checkpoint, tmp_path / "broken")
    (tmp_path / "broken" / "generation_config.json").write_text("{")
    process = launch("--model", str(tmp_path / "broken"))
    assert process.wait(60) == 2
    assert re.search(f"cannot serve {tmp_path}/broken: .*generation_config.json must be JSON", process.communicate()[1])
    port = server["url"].rpartition(":")[2]
    process = launch("--model", str(tiny_checkpoint), "--port", port)
    assert process.wait(60) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in process.communicate()[1]


def test_a_cache_that_does_not_fit_into_memory_ends_with_a_sentence(tiny_checkpoint):
    config = ModelConfig.load(tiny_checkpoint)
    with pytest.raises(CacheError, match="lower the number of slots"):
        KVCache(config, 2**40, 512)


def test_it_dies_with_its_parent(tiny_checkpoint):
    script = (
        "import os, subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-m', 'slime_swe.embedded.server', '--model', "
        f"{str(tiny_checkpoint)!r}, '--die-with-parent', str(os.getpid())], stdout=subprocess.PIPE, text=True)\n"
        "print(p.stdout.readline(), flush=True)\nimport time; time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    pid = json.loads(parent.stdout.readline())["pid"]
    os.kill(pid, 0)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    wait_for(lambda: not _alive(pid), "the server's end")


def test_the_parent_may_be_process_1_as_in_a_container(tiny_checkpoint):
    script = (
        "import os; os.getppid = lambda: 1; from slime_swe.embedded.server import _die_with_parent; _die_with_parent(1)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0
    process = launch("--model", str(tiny_checkpoint), "--die-with-parent", "1")
    assert "process 1, which --die-with-parent names" in process.communicate(timeout=60)[1]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second between opening and reading
        return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_whose_step_fails_ends_and_leaves_nobody_waiting(tiny_checkpoint):
    ended, results = [], []
    engine = Engine(Qwen2.load(tiny_checkpoint), slots=2, max_length=64, decode=str, on_exit=lambda: ended.append(True))
    engine.scheduler.decoder.layers = None
    engine.start()
    engine.submit(Request("a", [5, 6], SamplingParams(), 0, frozenset(), results.append))
    wait_for(lambda: ended, "the engine's end")
    assert results[0].finish_reason["status_code"] == 503
    with pytest.raises(EngineStopped):
        engine.flush()
    engine.stop()
