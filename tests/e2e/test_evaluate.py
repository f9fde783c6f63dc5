"""`slime-swe eval MODEL`: a folder in Hugging Face format, with a real server and real sandboxes."""

from __future__ import annotations

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import orjson
import pytest

from slime_swe.embedded.server_process import ServerProcess
from slime_swe.launch.config import resolve
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from tests import real_sglang
from tests.data_sources.tasks import make_task
from tests.e2e.conftest import here_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def model(tmp_path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint_folder(EMBEDDED_SEED), folder)
    (tmp_path / "one.jsonl").write_bytes(orjson.dumps(make_task().to_dict()))
    return folder


def test_a_model_is_evaluated(here, model, tmp_path):
    result = here("eval", str(model), "--tasks", "mine=one.jsonl", "--output", "kept", "--json")
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert (printed["model"], list(printed["sets"])) == (str(model), ["mine"])
    assert (printed["max_turns"], printed["max_context"]) == (8, 640)
    mine = printed["sets"]["mine"]
    assert (mine["tasks"], mine["episodes"], mine["infrastructure_failures"]) == (1, 1, 0)
    shown = here("episodes", "kept", "--list")
    assert shown.returncode == 0 and shown.stdout.splitlines()[0].startswith("rollout  index  task")
    assert "──── policy" in here("episodes", "kept", "--evaluation", "mine").stdout
    again = here("eval", str(model), "--tasks", "mine=one.jsonl", "--output", "kept")
    assert again.returncode == 2 and "give a new folder" in again.stderr
    before = (tmp_path / "kept" / "evaluations.jsonl").read_bytes()
    resumed = here("eval", str(model), "--tasks", "mine=one.jsonl", "--output", "kept", "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout) == printed
    assert (tmp_path / "kept" / "evaluations.jsonl").read_bytes() == before
    priced = here("eval", str(model), "--price", "in=1,out=1")
    assert priced.returncode == 2 and "--price is for endpoints" in priced.stderr


async def test_a_running_sglang_plays_what_the_embedded_server_would(model, tmp_path):
    """The embedded server speaks SGLang's protocol, so that one of it, started beforehand, stands for SGLang."""
    words = ("eval", str(model), "--tasks", "mine=one.jsonl", "--samples", "2")
    here = partial(asyncio.to_thread, here_in(tmp_path))
    own = json.loads((await here(*words, "--json")).stdout)
    copied = tmp_path / "copied"
    shutil.copytree(model, copied)
    async with ServerProcess(model, tmp_path / "server.log", context_length=640) as server:
        at = [f"serving.router_ip={server.host}", f"serving.router_port={server.port}"]
        played = json.loads((await here(*words, *at, "--output", "kept", "--json")).stdout)
        other = await here("eval", str(copied), *words[2:], *at)
        said_so = await here("eval", str(copied), *words[2:], *at, "--model", str(model))
        misnamed = await here(*words, *at, "--model", "another")
    assert played["server"] == f"{server.host}:{server.port}"
    assert played["sets"] == own["sets"], "token by token, as the seeds are the same"
    assert not (tmp_path / "kept" / "server.log").exists(), "no other server was started"
    assert other.returncode == misnamed.returncode == 2
    assert f"serves {model}, and {copied} is to be evaluated" in other.stderr
    assert f"--model-path {copied}, or give --model {model}" in other.stderr
    assert said_so.returncode == 0, said_so.stderr
    gone = await here(*words, *at, "--output", "gone")
    assert gone.returncode == 1 and "no SGLang can be asked at" in gone.stderr and not (tmp_path / "gone").exists()


@pytest.mark.extended("tests/e2e/test_evaluate.py::test_a_running_sglang_plays_what_the_embedded_server_would")
@pytest.mark.timeout(1200)
@real_sglang.needed
def test_real_sglang_plays_a_checkpoint(here, model, tmp_path):
    with real_sglang.serving(model, tmp_path / "log") as server:
        address = urlsplit(server.url)
        at = [f"serving.router_ip={address.hostname}", f"serving.router_port={address.port}"]
        result = here("eval", str(model), "--tasks", "mine=one.jsonl", "--samples", "4", *at, "--output", "k", "--json")
        renamed = here("eval", str(model), "--tasks", "mine=one.jsonl", *at, "--model", "another")
    assert result.returncode == 0, result.stderr
    mine = json.loads(result.stdout)["sets"]["mine"]
    assert (mine["episodes"], mine["infrastructure_failures"]) == (4, 0) and mine["turns"] >= 2
    assert renamed.returncode == 2 and f"serves {model}" in renamed.stderr


def test_a_model_that_the_embedded_server_does_not_run_is_refused_with_the_commands_that_serve_it(here, tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    recipe = resolve("qwen3_coder_30b_a3b")
    (folder / "config.json").write_bytes(orjson.dumps(recipe.model.config))
    result = here("eval", str(folder), "recipe=qwen3_coder_30b_a3b", "--tasks", "mine=one.jsonl")
    assert result.returncode == 2
    assert f"python -m sglang.launch_server --model-path {folder} --tp-size 4" in result.stderr
    again = f"slime-swe evaluate {folder} serving.router_ip=127.0.0.1 serving.router_port=30000"
    assert again in result.stderr


def test_a_model_made_for_less_context_than_the_recipe_s_is_refused(here, model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    result = here("eval", str(model), "--tasks", "mine=one.jsonl")
    assert result.returncode == 2
    assert "rollout.max_context=640 is more than the model was made for" in result.stderr
