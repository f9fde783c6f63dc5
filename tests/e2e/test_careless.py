"""What a user may do wrong: each ends in one clear message, no traceback, and nothing half-made."""

from __future__ import annotations

import os
import subprocess

import orjson
import pytest
from tests.data_sources.tasks import make_task

from slime_swe.launch.cli import run


def refused(result, code: int, *said: str) -> None:
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    for text in said:
        assert text in result.stderr


def test_an_unknown_recipe_key_or_value(cli, tmp_path):
    refused(cli("train", "recipe=tiny_gpu"), 2, "did you mean tiny_cpu", "Available: tiny_cpu")
    refused(cli("train", "rollout.max_tuns=3"), 2, "did you mean rollout.max_turns")
    refused(cli("train", "optimizer.lr=fast"), 2, "optimizer.lr=fast", "a number")
    refused(cli("train", "algorithm.steps_per_rollout=3"), 2, "does not divide")
    assert not list(tmp_path.iterdir())


def test_an_unreadable_recipe_file(cli, tmp_path):
    (tmp_path / "recipe.yaml").write_text("rollout: [")
    refused(cli("train", "recipe=recipe.yaml"), 2, "recipe recipe.yaml is not YAML")
    refused(cli("train", "recipe=./"), 2, "can't read recipe")


def test_a_run_folder_that_can_not_be_made(cli):
    refused(cli("train", "run.dir=/proc/nowhere", "run.name=a"), 2, "/proc/nowhere/a", "give another run.dir")


def test_a_checkpoint_that_is_none(cli, tmp_path):
    refused(cli("train", "model.checkpoint=."), 2, "holds no config.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.sandbox=lokal", "did you mean 'local'"),
        ("rollout.agent=nativ", "Did you mean 'native'"),
        ("agent=aider", "which local sandboxes can't hold: set rollout.sandbox to one of overlay, docker"),
        ("rollout.agent=no.such.agent", "there is no module 'no'"),
        ("data.train=[syntetic:train]", "Did you mean 'synthetic'"),
        ("data.eval.heldout=nowhere.jsonl", "nowhere.jsonl: No such file"),
        ("algorithm.clip_low=1", "less than 1"),
        ("reward.function=slime_swe.rewards.slime_plugin.rewrd", "has no 'rewrd'"),
    ],
)
def test_what_no_run_can_use_leaves_nothing_behind(override, said, task_files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sets = [
        f"data.train=[{task_files}/train.jsonl]",
        "~data.eval.unseen",
        f"data.eval.heldout={task_files}/heldout.jsonl",
    ]
    assert run(["train", "run.name=a", *sets, override]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert said in printed.err
    assert not list(tmp_path.iterdir())


def test_a_malformed_task_file_is_named_with_its_line(cli, task_files, tmp_path):
    good = (task_files / "train.jsonl").read_text().splitlines()[0]
    (tmp_path / "tasks.jsonl").write_text(f'{good}\n{{"id": "broken"}}\n')
    refused(cli("validate", "tasks.jsonl"), 2, "tasks.jsonl, line 2", "'broken'")


def test_a_closed_pipe_is_no_error(start_cli):
    process = start_cli("recipes", "recipe=tiny_cpu")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 0


def test_a_machine_without_bubblewrap_is_said_what_is_unprotected(cli, tmp_path, monkeypatch):
    (tmp_path / "tasks.jsonl").write_bytes(orjson.dumps(make_task().to_dict()))
    monkeypatch.setenv("PATH", str(tmp_path))
    result = cli("validate", "tasks.jsonl")
    assert result.stderr.count("no bubblewrap sandbox here, so") == 1
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_full_disk_is_named_with_what_to_do(cli, small, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"can't mount a small file system here: {mount.stderr.strip()}")
    try:
        result = cli("train", *small, f"run.dir={disk}", "run.name=a")
        assert result.returncode != 0
        assert "Traceback" not in result.stderr
        assert str(disk) in result.stderr and "No space left" in result.stderr
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=os.geteuid() == 0)
