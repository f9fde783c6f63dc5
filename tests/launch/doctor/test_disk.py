"""Room and leave to write, asked of real file systems."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.launch.doctor import Machine, Status
from slime_swe.launch.doctor.capacity import check_model_folder, check_run_folder, existing, free_bytes, unwritable
from slime_swe.recipes.registry import load_recipe
from tests.recipes.changes import variant

ROOT = Path(__file__).parents[3]
NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount"]
MAY_MOUNT = shutil.which("unshare") and subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode == 0


def found(check, recipe):
    (finding,) = check(recipe, Machine())
    return finding


@pytest.mark.skipif(not MAY_MOUNT, reason="this user may not mount a tmpfs in a namespace of their own")
def test_a_full_or_read_only_file_system_is_seen_by_writing(tmp_path):
    """Root may write anywhere but there, so permissions alone would not tell."""
    said = {"size=256k": "No space left on device", "ro": "Read-only file system", "size=8m": ""}
    ask = "import sys; from pathlib import Path; from slime_swe.launch.doctor.capacity import unwritable; "
    ask += "print(*(unwritable(Path(name)) for name in sys.argv[1:]), sep='\\n')"
    folders = {options: tmp_path / options for options in said}
    for folder in folders.values():
        folder.mkdir()
    lines = [f"mount -t tmpfs -o {options} tmpfs {folder}" for options, folder in folders.items()]
    lines += [f"head -c 1M /dev/zero > {folders['size=256k']}/full 2>/dev/null"]
    lines += [shlex.join([sys.executable, "-c", ask, *map(str, folders.values())])]
    asked = subprocess.run(
        [*NAMESPACES, "sh", "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert asked.returncode == 0, asked.stderr
    for answer, wanted in zip(asked.stdout.split("\n")[:-1], said.values(), strict=True):
        assert wanted in answer and bool(answer.strip()) == bool(wanted), asked.stdout


def test_a_folder_that_can_not_be_written_is_a_failure():
    finding = found(check_run_folder, variant("tiny_cpu", run__dir="/proc/slime-swe/runs"))
    assert finding.status == Status.FAILURE
    assert "can't write in /proc" in finding.message and "run.dir" in finding.fix


def test_a_file_where_a_folder_should_be_is_a_failure(tmp_path):
    (tmp_path / "runs").write_text("a file")
    assert "Not a directory" in unwritable(tmp_path / "runs")


def test_checking_leaves_nothing_behind(tmp_path):
    assert found(check_run_folder, variant("tiny_cpu", run__dir=str(tmp_path / "a" / "b"))).status == Status.OK
    assert not list(tmp_path.iterdir())


def test_room_is_counted_in_checkpoints(tmp_path):
    """A 7 B model's checkpoint: 7.6e9 weights x 16 bytes = 113 GiB."""
    everything = {"run__num_rollouts": 10**6, "run__save_interval": 1, "run__keep_checkpoints": 0}
    recipe = variant("qwen25_coder_7b", run__dir=str(tmp_path), **everything)
    finding = found(check_run_folder, recipe)
    assert "a checkpoint takes 113.5 GiB" in finding.message
    two = 2 * recipe.model.shape.parameters * 16
    expected = Status.FAILURE if free_bytes(tmp_path) < two + (64 << 20) else Status.WARNING
    assert finding.status == expected
    assert "two must fit" in finding.message or "not all 1000000 fit" in finding.message


def test_checkpoints_that_stay_are_counted():
    """One more than stay: the newest is written before the oldest goes."""
    counts = {keep: variant("tiny_cpu", run__keep_checkpoints=keep).most_checkpoints for keep in (0, 1, 2, 10**6)}
    total = load_recipe("tiny_cpu").run.num_rollouts
    assert counts == {0: total, 1: 2, 2: 3, 10**6: total}
    slime = variant("qwen25_coder_7b", run__keep_exports=1, slime__flags={"async-save": True})
    assert (slime.most_checkpoints, slime.most_exports) == (4, 2)
    short = {"run__num_rollouts": 21, "run__save_every_minutes": 0.0}
    assert variant("qwen25_coder_7b", **short).most_checkpoints == 2  # of save_interval=20
    assert variant("qwen25_coder_7b", run__keep_best="verified").most_checkpoints == 4


def test_room_for_all_checkpoints_is_asked_where_all_stay(tmp_path):
    one = load_recipe("tiny_cpu").model.shape.parameters * 16
    long = free_bytes(tmp_path) // one + 100
    kept = {"run__dir": str(tmp_path), "run__num_rollouts": long}
    assert found(check_run_folder, variant("tiny_cpu", **kept)).status == Status.OK
    finding = found(check_run_folder, variant("tiny_cpu", **kept, run__keep_checkpoints=0))
    assert finding.status == Status.WARNING and "lower run.keep_checkpoints" in finding.fix
    finding = found(check_run_folder, variant("tiny_cpu", **kept, engine="slime_cpu", run__save_interval=8))
    assert finding.status == Status.OK  # all exports stay, and are an eighth of a checkpoint: one of eight is made
    finding = found(check_run_folder, variant("tiny_cpu", **kept | {"run__num_rollouts": 8 * long}, engine="slime_cpu"))
    assert finding.status == Status.WARNING and "run.keep_exports" in finding.fix


def test_a_model_that_is_there_needs_no_more_room(tmp_path):
    recipe = variant("qwen25_coder_7b", model__folder=str(tmp_path))
    missing = found(check_model_folder, recipe)
    if free_bytes(tmp_path) < 4 * recipe.model.shape.parameters:
        assert missing.status == Status.FAILURE and "will take 28.4 GiB" in missing.message
    for name in ("Qwen2.5-Coder-7B-Instruct", "Qwen2.5-Coder-7B-Instruct_torch_dist"):
        (tmp_path / "Qwen" / name).mkdir(parents=True)
    assert found(check_model_folder, recipe).status == Status.OK


def test_a_model_that_is_there_may_lie_on_a_read_only_file_system(tmp_path):
    """Nothing is written beside it then, so nobody asks."""
    recipe = variant("qwen25_coder_7b", model__folder="/proc/models", model__checkpoint=str(tmp_path / "model"))
    for name in ("model", "model_torch_dist"):
        (tmp_path / name).mkdir()
    assert found(check_model_folder, recipe).status == Status.OK


def test_the_nearest_folder_that_exists_is_asked(tmp_path):
    assert existing(tmp_path / "not" / "there") == tmp_path
    assert existing(Path("not-there-either")) == Path(os.getcwd())
