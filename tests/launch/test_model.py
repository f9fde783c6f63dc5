"""`model=` takes another model of a recipe's family; a checkpoint of another shape than stated is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch import cli
from slime_swe.launch.config import assemble, resolve
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder, checkpoint_path, mismatches
from slime_swe.recipes.registry import load_recipe
from slime_swe.rollout.chat.tokenizer import template_path
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
    write_model(tmp_path / "elsewhere/me/Qwen2.5-Coder-3B-Instruct")
    recipe = resolve("qwen25_coder_7b", ["model=me/Qwen2.5-Coder-3B-Instruct", "model.folder=elsewhere"])
    assert (recipe.model.checkpoint, recipe.model.folder) == ("me/Qwen2.5-Coder-3B-Instruct", "elsewhere")


def test_a_model_by_its_folder_and_a_change_on_top(tmp_path):
    folder = write_model(tmp_path / "my model")
    recipe = resolve("qwen25_coder_7b", [f"model={folder}", "model.tool_format=qwen3_coder"])
    assert (recipe.model.checkpoint, recipe.model.tool_format) == (str(folder), "qwen3_coder")


def test_a_change_does_not_make_the_checkpoint_another_model(tmp_path):
    folder = write_model(tmp_path / "Qwen2.5-Coder-3B-Instruct")
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
    folder = write_model(tmp_path / "Qwen2.5-Coder-3B-Instruct", num_hidden_layers=35)
    with pytest.raises(UserError, match="does not divide the 35 layers"):
        resolve("qwen25_coder_7b", [f"model={folder}", "parallel.pp=2"])


def test_a_checkpoint_of_another_shape_is_named_with_both_values(tmp_path):
    folder = write_model(tmp_path / "Qwen2.5-Coder-3B-Instruct")
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


def write_config(folder: Path, recipe: str, template: str = "") -> Path:
    """A folder with the `config.json` of a shipped recipe's model, and a shipped chat template."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(load_recipe(recipe).model.config))
    if template:
        (folder / "chat_template.jinja").write_text(template_path(template).read_text())
    return folder


@pytest.mark.parametrize(
    ("recipe", "name", "like"),
    [
        ("qwen3_coder_30b_a3b", "Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3_30b_a3b_instruct"),
        ("qwen3_30b_a3b_instruct", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_coder_30b_a3b"),
        ("qwen3_coder_30b_a3b", "mirror/Qwen3-Coder-30B-A3B-Instruct-FP8", "qwen3_coder_30b_a3b"),
        ("qwen3_4b_instruct", "Qwen/Qwen3-14B", "qwen3_8b"),
        ("qwen3_32b", "Qwen/Qwen3-4B-Instruct-2507", "qwen3_4b_instruct"),
        ("qwen3_5_9b", "Qwen/Qwen3.5-27B", "qwen3_5_4b"),
        (
            "qwen3_coder_30b_a3b",
            "models--Qwen--Qwen3-30B-A3B-Instruct-2507/snapshots/0d7c",
            "qwen3_30b_a3b_instruct",
        ),
    ],
)
def test_a_model_of_another_recipe_s_kind_takes_that_recipe_s_formats(tmp_path, recipe, name, like):
    folder = write_config(tmp_path / "models" / name, like)
    shipped, given = load_recipe(like).model, str(folder) if "snapshots" in name else name
    found = assemble(recipe, [f"model={given}"]).model
    assert (found.tool_format, found.chat_template) == (shipped.tool_format, shipped.chat_template)
    assert found.tool_calls == shipped.tool_calls


def test_another_model_of_the_same_shape_keeps_no_format_in_silence(tmp_path):
    write_config(tmp_path / "models/Qwen/Qwen2.5-7B-Instruct", "qwen25_coder_7b")
    with pytest.raises(UserError) as error:
        resolve("qwen25_coder_7b", ["model=Qwen/Qwen2.5-7B-Instruct"])
    said = str(error.value)
    assert "states model.tool_format=qwen25_coder for Qwen/Qwen2.5-Coder-7B-Instruct" in said
    assert "model.tool_format=hermes is its family's, and the others are qwen25_coder, qwen3_coder" in said
    found = resolve("qwen25_coder_7b", ["model=Qwen/Qwen2.5-7B-Instruct", "model.tool_format=hermes"])
    assert found.model.tool_calls == "hermes"


def test_a_chat_template_of_another_model_is_asked_for_too(tmp_path):
    write_config(tmp_path / "models/Qwen/Qwen3-4B-Thinking-2507", "qwen3_4b_instruct")
    with pytest.raises(UserError, match=r"chat_template=qwen3 for Qwen/Qwen3-32B.* those shipped are .*qwen3_thinking"):
        resolve("qwen3_32b", ["model=Qwen/Qwen3-4B-Thinking-2507"])
    found = resolve("qwen3_32b", ["model=Qwen/Qwen3-4B-Thinking-2507", "model.chat_template=qwen3_thinking"])
    assert found.model.chat_template == "qwen3_thinking"
    own = resolve("qwen3_32b", ["model=Qwen/Qwen3-4B-Thinking-2507", "model.chat_template=''"])
    assert own.model.chat_template == ""


@pytest.mark.parametrize("template", ["", "qwen3_5"])
def test_a_fine_tune_keeps_the_recipe_s_formats(tmp_path, template):
    folder = write_config(tmp_path / "run/exports/000012", "qwen3_coder_30b_a3b", template)
    found = resolve("qwen3_coder_30b_a3b", [f"model={folder}"]).model
    assert found.checkpoint == str(folder)
    assert dataclasses.replace(found, checkpoint="") == dataclasses.replace(
        load_recipe("qwen3_coder_30b_a3b").model, checkpoint=""
    )


def test_a_fine_tune_of_another_size_is_known_by_its_chat_template(tmp_path):
    folder = write_model(tmp_path / "mine")
    with pytest.raises(UserError, match="nothing says that this model writes so too"):
        resolve("qwen25_coder_7b", [f"model={folder}"])
    (folder / "chat_template.jinja").write_text(template_path("qwen3").read_text())
    assert resolve("qwen25_coder_7b", [f"model={folder}"]).model.tool_format == "qwen25_coder"


def test_a_chat_template_that_writes_other_calls_is_refused(tmp_path):
    folder = write_config(tmp_path / "mine", "qwen3_coder_30b_a3b", "qwen3")
    with pytest.raises(UserError) as error:
        resolve("qwen3_coder_30b_a3b", [f"model={folder}"])
    assert "model.tool_format=qwen3_coder does not read back: set model.tool_format=hermes or " in str(error.value)
    assert resolve("qwen3_coder_30b_a3b", [f"model={folder}", "model.tool_format=hermes"]).model.tool_calls == "hermes"


def test_a_recipe_that_states_no_format_has_its_family_s(tmp_path):
    folder = write_config(tmp_path / "Qwen3-4B-SafeRL", "qwen3_4b_instruct", "qwen3")
    assert resolve("qwen3_4b_instruct", [f"model={folder}"]).model.tool_calls == "hermes"
    (folder / "chat_template.jinja").write_text(template_path("qwen3_5").read_text())
    with pytest.raises(UserError, match=r"hermes does not read back: set model\.tool_format=qwen3_coder"):
        resolve("qwen3_4b_instruct", [f"model={folder}"])


def test_a_garbled_tokenizer_config_is_named(tmp_path):
    folder = write_config(tmp_path / "mine", "qwen3_4b_instruct")
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config\.json is not JSON"):
        resolve("qwen3_4b_instruct", [f"model={folder}"])


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no config.json.*embedded:seed"):
        checkpoint_folder(str(tmp_path))


def test_a_model_s_name_is_a_folder_of_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checkpoint_path("ORG/NAME", "my/models") == tmp_path / "my/models/ORG/NAME"
    assert checkpoint_path("./ORG/NAME") == tmp_path / "ORG/NAME"
    assert checkpoint_path("/ORG/NAME") == Path("/ORG/NAME")
    assert checkpoint_path("a/b/c") == tmp_path / "a/b/c"
    (tmp_path / "runs/mine").mkdir(parents=True)
    assert checkpoint_path("runs/mine") == tmp_path / "runs/mine"


def test_the_seed_policy_comes_with_the_package():
    assert (checkpoint_folder(EMBEDDED_SEED) / "model.safetensors").is_file()
