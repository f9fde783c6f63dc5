"""Checkpoints are whole or not there, and a full disk is an error that names the path and loses nothing."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from slime_swe.embedded import checkpoint
from slime_swe.embedded.checkpoint import Checkpoint, ResumeError, State, configuration
from slime_swe.files import replace_file

REPOSITORY = Path(__file__).parents[2]


def state(rollout_id: int, **config) -> State:
    return State(rollout_id, config, {"metrics.jsonl": 12}, {"training": 1.5})


@pytest.fixture
def weights(tmp_path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"w" * 1000)
    (folder / "config.json").write_text("{}")
    return folder


def test_save_and_load(tmp_path, weights):
    random.seed(1)
    torch.manual_seed(1)
    path = checkpoint.save(tmp_path / "c", state(3, lr=0.1), weights, b"moments", keep=2)
    expected = random.random(), torch.rand(3)
    random.seed(2)
    torch.manual_seed(2)
    found = checkpoint.latest(tmp_path / "c")
    assert found is not None and found.path == path
    assert found.state == state(3, lr=0.1)
    assert found.optimizer_state() == b"moments"
    assert (found.model_dir / "model.safetensors").read_bytes() == b"w" * 1000
    found.restore_random()
    assert random.random() == expected[0] and torch.equal(torch.rand(3), expected[1])


def test_a_later_sync_leaves_the_checkpoint_alone(tmp_path, weights):
    path = checkpoint.save(tmp_path / "c", state(0), weights, b"", keep=2)
    replace_file(weights / "model.safetensors", b"new")
    assert (path / "hf" / "model.safetensors").read_bytes() == b"w" * 1000


@pytest.mark.parametrize(("keep", "there"), [(1, [10]), (2, [9, 10]), (5, [8, 9, 10]), (0, [8, 9, 10])])
def test_the_newest_stay_and_the_newest_is_found(tmp_path, weights, keep, there):
    for rollout_id in (8, 9, 10):
        states = tmp_path / "c" / "rollout"
        states.mkdir(parents=True, exist_ok=True)
        (states / f"task_data_source_{rollout_id}.json").touch()
        (states / "notes_on_9").touch()
        checkpoint.save(tmp_path / "c", state(rollout_id), weights, b"", keep=keep)
    left = {"rollout", *(f"rollout_{number}" for number in there)}
    assert {path.name for path in (tmp_path / "c").iterdir()} == left
    left = {"notes_on_9", *(f"task_data_source_{number}.json" for number in there)}
    assert {path.name for path in states.iterdir()} == left
    assert checkpoint.latest(tmp_path / "c").state.rollout_id == 10


def test_a_half_written_checkpoint_is_not_there(tmp_path, weights):
    checkpoint.save(tmp_path / "c", state(0), weights, b"", keep=2)
    shutil.copytree(tmp_path / "c" / "rollout_0", tmp_path / "c" / ".rollout_1.tmp")
    assert checkpoint.latest(tmp_path / "c").state.rollout_id == 0
    checkpoint.save(tmp_path / "c", state(1), weights, b"", keep=2)
    assert sorted(os.listdir(tmp_path / "c")) == ["rollout_0", "rollout_1"]
    assert checkpoint.latest(tmp_path / "nowhere") is None


def test_a_damaged_checkpoint_says_what_to_do(tmp_path, weights):
    path = checkpoint.save(tmp_path / "c", state(0), weights, b"", keep=2)
    (path / "state.json").write_text("{")
    with pytest.raises(ResumeError, match=r"rollout_0 is damaged .*remove it"):
        checkpoint.latest(tmp_path / "c")


def tensors() -> bytes:
    buffer = io.BytesIO()
    torch.save({"steps": 3}, buffer)
    return buffer.getvalue()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def overwrite(path: Path) -> None:
    path.write_bytes(b"\0" * path.stat().st_size)


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("random.pt", Path.unlink, "no random.pt"),
        ("random.pt", cut, r"random.pt has \d+ bytes and had \d+"),
        ("random.pt", overwrite, "is no file of tensors"),
        ("optimizer.pt", Path.unlink, "no optimizer.pt"),
        ("optimizer.pt", cut, r"optimizer.pt has \d+ bytes and had \d+"),
        ("optimizer.pt", overwrite, "is no file of tensors"),
        ("hf/model.safetensors", Path.unlink, "no hf/model.safetensors"),
        ("hf/model.safetensors", overwrite, "header"),
        ("hf", shutil.rmtree, "no hf/config.json"),
        ("state.json", Path.unlink, "state.json: No such file"),
        ("state.json", lambda path: path.write_text("{}"), "config is missing"),
        ("state.json", lambda path: path.write_bytes(b"\x80"), "line 1 column 1"),
        (".", shutil.rmtree, None),
    ],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(name, damage, said, tmp_path, weights, capsys):
    (weights / "model.safetensors").write_bytes(safetensors.torch.save({"w": torch.zeros(100)}))
    for number in (3, 4):
        replace_file(weights / "model.safetensors", (weights / "model.safetensors").read_bytes())
        checkpoint.save(tmp_path / "c", state(number), weights, tensors(), keep=2)
    newest = checkpoint.latest(tmp_path / "c", Checkpoint.require_loadable)
    assert newest.state.rollout_id == 4 and capsys.readouterr().err == ""
    damage(newest.path / name)
    found = checkpoint.latest(tmp_path / "c", Checkpoint.require_loadable)
    assert found.state.rollout_id == 3
    printed = capsys.readouterr().err
    if said is None:
        assert printed == ""
    else:
        assert re.search(f"rollout_4 is damaged .*{said}.*: rollout_3 is taken in its place\n", printed)
        shutil.rmtree(found.path / "hf")
        with pytest.raises(
            ResumeError, match=r"rollout_4 is damaged .*; checkpoint .*rollout_3 is damaged .* remove it"
        ):
            checkpoint.latest(tmp_path / "c", Checkpoint.require_loadable)


def test_a_checkpoint_of_an_earlier_version_is_taken(tmp_path, weights):
    (weights / "model.safetensors").unlink()
    path = checkpoint.save(tmp_path / "c", state(0), weights, tensors(), keep=2)
    earlier = {name: value for name, value in vars(state(0)).items() if name not in ("attempt", "files")}
    (path / "state.json").write_text(json.dumps(earlier))
    assert checkpoint.latest(tmp_path / "c", Checkpoint.require_loadable).state == state(0)


def test_another_configuration_is_refused_by_key(tmp_path, weights):
    model = {"hf_checkpoint": str(weights)}
    args = Namespace(lr=0.1, swe_tasks=("a",), save="x", load=None, gone=1, **model)
    checkpoint.save(tmp_path / "c", State(0, configuration(args), {}, {}), weights, b"", keep=2)
    found = checkpoint.latest(tmp_path / "c")
    checkpoint.require_same(found, Namespace(lr=0.1, swe_tasks=["a"], save="elsewhere", load="c", gone=1, **model))
    with pytest.raises(ResumeError) as error:
        checkpoint.require_same(found, Namespace(lr=0.2, swe_tasks=["a"], save="x", load=None, new=2, **model))
    for words in ("gone was 1 and is None", "lr was 0.1 and is 0.2", "new was None and is 2"):
        assert words in str(error.value)
    assert "swe_tasks" not in str(error.value)


def test_a_model_that_moved_is_the_same_and_another_one_is_not(tmp_path, weights):
    checkpoint.save(
        tmp_path / "c", state(0, **configuration(Namespace(hf_checkpoint=str(weights)))), weights, b"", keep=2
    )
    found = checkpoint.latest(tmp_path / "c")
    moved = shutil.copytree(weights, tmp_path / "moved")
    checkpoint.require_same(found, Namespace(hf_checkpoint=str(moved)))
    (moved / "model.safetensors").write_bytes(b"v" * 1000)
    with pytest.raises(ResumeError, match="hf_checkpoint was 'sha256:"):
        checkpoint.require_same(found, Namespace(hf_checkpoint=str(moved)))


FILL = """
import resource, sys
from pathlib import Path
from slime_swe.embedded import checkpoint
from slime_swe.embedded.checkpoint import State
from slime_swe.files import FileError
from slime_swe.journal import Journal

folder, limit = Path(sys.argv[1]), int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
journal, written = Journal(folder / "metrics.jsonl"), 0
try:
    while True:
        journal.append({"number": written, "text": "x" * 1000})
        written += 1
except FileError as error:
    print(error)
assert [record["number"] for record in journal.read()] == list(range(written)) != []
assert journal.path.read_bytes().endswith(b"}\\n")
weights = folder / "weights"
try:
    checkpoint.save(folder / "checkpoints", State(1, {}, {}, {}), weights, b"m" * 10_000_000, keep=2)
except FileError as error:
    print(error)
found = checkpoint.latest(folder / "checkpoints")
assert found.state.rollout_id == 0
assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["rollout_0"]
"""


def fill(folder: Path, limit: int) -> str:
    (folder / "weights").mkdir()
    (folder / "weights" / "model.safetensors").write_bytes(b"w" * 100)
    checkpoint.save(folder / "checkpoints", state(0), folder / "weights", b"moments", keep=2)
    run = subprocess.run(
        [sys.executable, "-c", FILL, str(folder), str(limit)], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_file_size_limit_loses_nothing(tmp_path):
    output = fill(tmp_path, 100_000)
    assert f"can't write {tmp_path / 'metrics.jsonl'}" in output
    assert f"can't write {tmp_path / 'checkpoints'}" in output
    assert "make room there and resume" in output


def test_a_full_disk_loses_nothing(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk needs the right to mount a tmpfs: {mounted.stderr.strip()}")
    try:
        output = fill(folder, 0)
    finally:
        subprocess.run(["umount", folder], check=True)
    assert "No space left on device (0 MiB free)" in output
