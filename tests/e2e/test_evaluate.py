"""`slime-swe eval MODEL`: a folder in Hugging Face format, with a real server and real sandboxes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import orjson
import pytest

from launch.args import EMBEDDED_SEED, checkpoint_folder
from tests.data_sources.tasks import make_task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def model(tmp_path) -> Path:
    """The seed policy, said to be made for contexts shorter than the recipe's."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint_folder(EMBEDDED_SEED), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 64}))
    return folder


def test_a_model_is_evaluated_with_the_recipe_s_context(cli, model, tmp_path):
    (tmp_path / "one.jsonl").write_bytes(orjson.dumps(make_task().to_dict()))
    result = cli("eval", str(model), "--tasks", "mine=one.jsonl", "--output", "kept", "--json")
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert (printed["model"], list(printed["sets"])) == (str(model), ["mine"])
    mine = printed["sets"]["mine"]
    assert (mine["tasks"], mine["episodes"], mine["infrastructure_failures"]) == (1, 1, 0)
    assert (tmp_path / "kept" / "evaluations.jsonl").stat().st_size
