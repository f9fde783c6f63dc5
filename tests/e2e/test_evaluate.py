"""`slime-swe eval MODEL`: a folder in Hugging Face format, with a real server and real sandboxes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import orjson
import pytest

from slime_swe.launch.args import EMBEDDED_SEED, checkpoint_folder
from tests.data_sources.tasks import make_task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def model(tmp_path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint_folder(EMBEDDED_SEED), folder)
    (tmp_path / "one.jsonl").write_bytes(orjson.dumps(make_task().to_dict()))
    return folder


def test_a_model_is_evaluated(cli, here, model, tmp_path):
    result = cli("eval", str(model), "--tasks", "mine=one.jsonl", "--output", "kept", "--json")
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert (printed["model"], list(printed["sets"])) == (str(model), ["mine"])
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


def test_a_model_made_for_less_context_than_the_recipe_s_is_refused(here, model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    result = here("eval", str(model), "--tasks", "mine=one.jsonl")
    assert result.returncode == 2
    assert "rollout.max_context=640 is more than the model was made for" in result.stderr
