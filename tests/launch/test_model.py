"""`model=` takes another model of a recipe's family; a checkpoint of another shape than stated is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch import cli
from slime_swe.launch.config import resolve
from slime_swe.launch.model import mismatches
from slime_swe.recipes.registry import load_recipe
from tests.recipes.changes import changed

SMALL = {
    "model_type": "qwen2",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}


def write_model(folder: Path, **changes: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**SMALL, **changes}))
    return folder


@pytest.fixture(autouse=True)
def working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_another_model_of_the_family_by_its_name(tmp_path):
    write_model(tmp_path / "models/Qwen/Qwen2.5-Coder-3B-Instruct")
    recipe = resolve("qwen25_coder_7b", ["model=Qwen/Qwen2.5-Coder-3B-Instruct", "run.seed=3"])
    assert recipe.model.checkpoint == "Qwen/Qwen2.5-Coder-3B-Instruct"
    assert len(recipe.model.shape.layers) == 36 and recipe.model.shape.tied
    assert recipe.model.config == SMALL
    assert recipe.description == "Qwen/Qwen2.5-Coder-3B-Instruct, as recipe qwen25_coder_7b does it"
    assert recipe.run.seed == 3
    assert recipe.parallel == load_recipe("qwen25_coder_7b").parallel


def test_another_folder_of_models(tmp_path):
    write_model(tmp_path / "elsewhere/me/mine")
    recipe = resolve("qwen25_coder_7b", ["model=me/mine", "model.folder=elsewhere"])
    assert (recipe.model.checkpoint, recipe.model.folder) == ("me/mine", "elsewhere")


def test_a_model_by_its_folder_and_a_change_on_top(tmp_path):
    folder = write_model(tmp_path / "my model")
    recipe = resolve("qwen25_coder_7b", [f"model={folder}", "model.tool_format=qwen3_coder"])
    assert (recipe.model.checkpoint, recipe.model.tool_format) == (str(folder), "qwen3_coder")


def test_a_change_does_not_make_the_checkpoint_another_model(tmp_path):
    folder = write_model(tmp_path / "mine")
    with pytest.raises(UserError, match=r"max_position_embeddings=131072 is not what .* says, 32768"):
        resolve("qwen25_coder_7b", [f"model={folder}", "model.config.max_position_embeddings=131072"])


def test_a_model_that_is_not_here_says_how_to_get_it(tmp_path):
    with pytest.raises(UserError) as error:
        resolve("qwen25_coder_7b", ["model=Qwen/Qwen2.5-Coder-3B-Instruct"])
    folder = tmp_path / "models/Qwen/Qwen2.5-Coder-3B-Instruct"
    assert f"{folder} holds no config.json" in str(error.value)
    assert f"`hf download Qwen/Qwen2.5-Coder-3B-Instruct --local-dir {folder}`" in str(error.value)
    with pytest.raises(UserError, match="give a folder that holds a model"):
        resolve("qwen25_coder_7b", ["model=./nowhere"])


def test_another_family_is_refused(tmp_path):
    folder = write_model(tmp_path / "mine")
    with pytest.raises(UserError, match="is a qwen2 model, and the recipe is for qwen3 models"):
        resolve("qwen3_4b_instruct", [f"model={folder}"])


def test_sizes_that_the_other_model_does_not_allow_are_refused(tmp_path):
    folder = write_model(tmp_path / "mine", num_hidden_layers=35)
    with pytest.raises(UserError, match="does not divide the 35 layers"):
        resolve("qwen25_coder_7b", [f"model={folder}", "parallel.pp=2"])


def test_a_checkpoint_of_another_shape_is_named_with_both_values(tmp_path):
    folder = write_model(tmp_path / "mine")
    recipe = resolve("qwen25_coder_7b", [f"model={folder}"])
    assert mismatches(recipe) == []
    (violation,) = mismatches(changed(recipe, "model.config.rope_theta", 1e4))
    assert violation.field == "model.config.rope_theta"
    assert str(violation).startswith("model.config.rope_theta=10000.0 is not what ")
    assert "config.json says, 1000000.0: write model=" in str(violation)


def test_a_run_with_a_checkpoint_of_another_shape_is_refused(tmp_path):
    folder = write_model(tmp_path / "mine", num_hidden_layers=28)
    with pytest.raises(UserError) as error:
        resolve("qwen25_coder_7b", [f"model.checkpoint={folder}"])
    assert "model.config.hidden_size=3584 is not what" in str(error.value)
    assert "config.json says, 2048" in str(error.value)


def test_the_plan_refuses_a_checkpoint_of_another_shape(tmp_path, capsys):
    folder = write_model(tmp_path / "mine", num_hidden_layers=28)
    assert cli.run(["plan", "recipe=qwen25_coder_7b", f"model.checkpoint={folder}"]) == 1
    assert "model.config.hidden_size=3584 is not what" in capsys.readouterr().out.replace("\n", " ")


def test_a_checkpoint_that_could_not_be_trained_is_refused(tmp_path):
    folder = write_model(tmp_path / "mine", rope_scaling={"type": "yarn", "factor": 4.0})
    with pytest.raises(UserError, match=r"rope_scaling\.type is 'yarn', and only 'default' can be trained"):
        resolve("qwen25_coder_7b", [f"model.checkpoint={folder}"])


def test_the_seed_policy_is_what_its_recipe_states():
    assert mismatches(load_recipe("tiny_cpu")) == []


def test_a_recipe_can_be_planned_where_the_model_is_not():
    assert mismatches(resolve("qwen25_coder_32b")) == []
