"""Checkpoints that are whole, cut short, of another shape, or not there: copies of the seed policy's."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess

import pytest

from slime_swe.launch.doctor import Machine
from slime_swe.launch.doctor.checkpoint import INDEX, check_checkpoint, check_converted
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from tests.launch.doctor.machines import before_others, script
from tests.recipes.changes import variant


@pytest.fixture
def copy(tmp_path):
    folder = tmp_path / "models" / "Org" / "Name"
    shutil.copytree(checkpoint_folder(EMBEDDED_SEED), folder)
    return folder


def look(folder, **changes) -> dict[tuple[str, str], str]:
    findings = check_checkpoint(variant("tiny_cpu", model__checkpoint=str(folder), **changes), Machine())
    return {(finding.check, finding.status.value): f"{finding.message} → {finding.command}" for finding in findings}


def test_the_seed_policy_is_whole_and_as_stated():
    assert set(look(EMBEDDED_SEED)) == {("architecture", "ok"), ("checkpoint", "ok")}


def test_org_and_name_are_looked_for_in_the_models_folder(copy):
    assert ("checkpoint", "ok") in look("Org/Name", model__folder=str(copy.parents[1]))


def test_a_checkpoint_that_is_not_there_is_fetched_by_a_command(tmp_path):
    said = look("Qwen/Qwen2.5-Coder-7B-Instruct", model__folder=str(tmp_path))["checkpoint", "failure"]
    folder = tmp_path / "Qwen" / "Qwen2.5-Coder-7B-Instruct"
    assert said.endswith(f"→ hf download Qwen/Qwen2.5-Coder-7B-Instruct --local-dir {folder}")
    assert look(tmp_path / "no" / "model")["checkpoint", "failure"].endswith("→ ")


def test_another_shape_names_the_field_and_both_values(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-5, "num_hidden_layers": 6}))
    findings = list(check_checkpoint(variant("tiny_cpu", model__checkpoint=str(copy)), Machine()))
    wrong = [finding.message for finding in findings if finding.check == "architecture"]
    assert len(wrong) == 2
    assert any("num_hidden_layers" in text and "5" in text and "6" in text for text in wrong)
    assert any("rms_norm_eps" in text and "1e-06" in text and "1e-05" in text for text in wrong)


@pytest.mark.parametrize("config", ("{", '{"model_type": "llama"}', '{"model_type": "qwen2"}', "[]", "\xff"))
def test_a_config_that_says_nothing_is_a_failure_and_no_crash(copy, config):
    (copy / "config.json").write_bytes(config.encode("latin-1"))
    assert look(copy)["architecture", "failure"]


def test_a_file_that_was_cut_short_is_seen(copy):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "incomplete metadata" in look(copy)["checkpoint", "failure"]
    for content in (b"", b"<html>" * 100):
        weights.write_bytes(content)
        assert "header" in look(copy)["checkpoint", "failure"]
    weights.unlink()
    assert "holds no *.safetensors" in look(copy)["checkpoint", "failure"]


def test_every_shard_of_the_index_must_be_there(copy):
    (copy / INDEX).write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "other.safetensors"}}))
    assert "other.safetensors: No such file" in look(copy)["checkpoint", "failure"]
    shutil.copy(copy / "model.safetensors", copy / "other.safetensors")
    assert "in 2 files" in look(copy)["checkpoint", "ok"]
    (copy / INDEX).write_text("[1]")
    assert "can't be read" in look(copy)["checkpoint", "failure"]


def test_a_tokenizer_must_be_there(copy):
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer_config.json").unlink()
    assert "holds no tokenizer" in look(copy)["checkpoint", "failure"]


def converted(folder, **changes):
    (finding,) = check_converted(variant("qwen3_coder_30b_a3b", model__folder=str(folder), **changes), Machine())
    return finding


def test_a_conversion_is_whole_half_done_or_not_there(tmp_path):
    folder = tmp_path / "Qwen" / "Qwen3-Coder-30B-A3B-Instruct_torch_dist"
    assert "not there" in converted(tmp_path).message
    (folder / "release").mkdir(parents=True)
    assert "no latest_checkpointed_iteration.txt" in converted(tmp_path).message
    (folder / "latest_checkpointed_iteration.txt").write_text("release")
    assert "release/.metadata is missing" in converted(tmp_path).message
    (folder / "release" / ".metadata").write_text("")
    assert converted(tmp_path).status == "ok"
    (folder / "latest_checkpointed_iteration.txt").write_text("12\n")
    assert "iter_0000012/.metadata is missing" in converted(tmp_path).message


def test_an_adapter_needs_nothing_converted(tmp_path):
    recipe = variant("qwen25_coder_7b", engine="miles", algorithm__lora_rank=8, model__folder=str(tmp_path))
    (finding,) = check_converted(recipe, Machine())
    assert finding.status == "skipped" and "adapter" in finding.message


@pytest.mark.parametrize(("gpus", "name", "processes"), [(8, "qwen3_coder_30b_a3b", 8), (8, "qwen25_coder_7b", 1)])
def test_the_conversion_command_can_be_pasted_into_a_shell(tmp_path, monkeypatch, gpus, name, processes):
    """A shell runs it with a `torchrun` that prints what it is called with."""
    recipe = variant(name, model__folder=str(tmp_path / "my models"), cluster__gpus_per_node=gpus)
    script(tmp_path / "bin", "torchrun", 'echo "$PWD|$PYTHONPATH|$*"')
    monkeypatch.setenv("PATH", before_others(tmp_path / "bin"))
    monkeypatch.setenv("SLIME_HOME", str(tmp_path / "slime"))
    monkeypatch.setenv("MEGATRON_HOME", str(tmp_path / "megatron"))
    (tmp_path / "slime").mkdir()
    (finding,) = check_converted(recipe, Machine())
    command = finding.command
    printed = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout
    place, path, words = printed.strip().split("|")
    assert (place, path) == (str(tmp_path / "slime"), str(tmp_path / "megatron"))
    assert words.startswith(f"--nproc-per-node={processes} tools/convert_hf_to_torch_dist.py --num-layers ")
    folder = tmp_path / "my models" / recipe.model.checkpoint
    assert words.endswith(f"--hf-checkpoint {folder} --save {folder}_torch_dist")
    assert shlex.split(command)[-1] == f"{folder}_torch_dist"
    assert "--rotary-base 10000000 " in words or name != "qwen3_coder_30b_a3b"
