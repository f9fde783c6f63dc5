"""`slime-swe train`: the engine that a recipe names, dry runs, and what is refused before a folder is made."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from slime_swe.launch.cli import run
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.rollout.retention import METADATA, TRACKER
from tests.launch.doctor import machines

GPUS = "recipe=qwen25_coder_7b"
TASKS = ["data.train=[synthetic:train]", "data.eval={}"]  # which are there
CONFIG = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
    "rope_theta": 1e6, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768,
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLIME_HOME", raising=False)
    monkeypatch.delenv("MEGATRON_HOME", raising=False)


def left():
    return [path.name for path in Path.cwd().iterdir()]


def test_a_dry_run_shows_groups_and_leaves_nothing(capsys):
    assert run(["train", GPUS, "--dry-run", "run.name=a", "optimizer.lr=3e-6"]) == 0
    shown = capsys.readouterr().out
    assert "/root/slime/train.py" in shown and "\noptimizer\n" in shown and "  --lr 3e-06\n" in shown
    assert not left()


def test_a_dry_run_as_json(capsys):
    assert run(["train", GPUS, "--dry-run", "--json", "run.name=a"]) == 0
    reported = json.loads(capsys.readouterr().out)
    SLIME.manifest.check(reported["argv"][4:])
    assert reported["directory"] == str(Path.cwd() / "runs/a")
    assert not left()


def test_a_dry_run_as_a_script(capsys):
    assert run(["train", GPUS, "--dry-run", "--script", "run.sh", "run.name=a"]) == 0
    assert capsys.readouterr().out == ""
    assert left() == ["run.sh"]
    subprocess.run(["bash", "-n", "run.sh"], check=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--script", "run.sh", GPUS], "give both"),
        (["--dry-run"], "no command to show"),
        ([GPUS, "--dry-run", "parallel.tp=3"], "parallel.tp=3"),
        ([GPUS, "--dry-run", "rollout.agent=swe_agent"], "Did you mean 'mini_swe_agent'?"),
        ([GPUS, *TASKS, "--ignore-plan"], "SLIME_HOME"),
        ([GPUS, *TASKS, "cluster.gpu=A100-40GB", "parallel.max_tokens_per_gpu=524288"], "--ignore-plan"),
        ([GPUS, "engine=verl"], "embedded, miles, slime, slime_cpu"),
    ],
)
def test_what_can_t_start_is_refused_before_a_folder_is_made(words, said, capsys):
    assert run(["train", *words]) == 2
    assert said in capsys.readouterr().err
    assert not left()


def checkouts(folder: Path, monkeypatch) -> None:
    for variable, mark in (("SLIME_HOME", "train.py"), ("MEGATRON_HOME", "megatron/training/arguments.py")):
        path = folder / variable / mark
        path.parent.mkdir(parents=True)
        path.touch()
        monkeypatch.setenv(variable, str(folder / variable))


@pytest.mark.parametrize("missing", ("config.json", "holds no Megatron checkpoint"))
def test_missing_checkpoints_are_named(missing, tmp_path, monkeypatch, capsys):
    checkouts(tmp_path, monkeypatch)
    if missing != "config.json":
        folder = tmp_path / "models/Qwen/Qwen2.5-Coder-7B-Instruct"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(CONFIG))
    assert run(["train", GPUS, *TASKS, "--ignore-plan"]) == 2
    assert missing in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_on_gpus_a_run_is_rehearsed_before_a_folder_is_made(tmp_path, monkeypatch, capsys):
    """All else is there; this Python lacks the packages of SLiME's image, which the rehearsal is the first to want."""
    checkouts(tmp_path, monkeypatch)
    model = tmp_path / "models/Qwen/Qwen2.5-Coder-7B-Instruct"
    converted = tmp_path / "models/Qwen/Qwen2.5-Coder-7B-Instruct_torch_dist"
    (converted / "release").mkdir(parents=True)
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    (converted / TRACKER).write_text("release")
    (converted / "release" / METADATA).touch()
    machines.install(tmp_path / "bin", machines.H100)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert run(["train", GPUS, *TASKS, "--ignore-integrity"]) == 2
    said = capsys.readouterr().err
    assert "run it inside the training image" in said and "--no-rehearsal" in said
    assert not (tmp_path / "runs").exists()
