"""The batch scripts' arguments and presets, without a cluster."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slime_swe.recipes.registry import load_recipe

SLURM = Path(__file__).parents[3] / "launch" / "slurm"


def bash(command: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euc", f"source {SLURM}/cluster.sh; {command}"],
        cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def arguments(folder: Path, given: str, **env: str) -> str:
    result = bash(f'choose_arguments {given}; echo "${{arguments[*]}}"', folder, SLURM_JOB_ID="7", **env)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("preset", ("small", "medium", "large"))
def test_a_preset_asks_slurm_for_what_its_recipe_wants(preset):
    text = (SLURM / f"{preset}.sbatch").read_text()
    (name,) = re.findall(r"recipe=(\w+) \"\$@\"", text)
    cluster = load_recipe(name).cluster
    gpus = cluster.train_gpus + cluster.rollout_gpus
    assert f"#SBATCH --nodes={gpus // cluster.gpus_per_node}\n" in text
    assert f"#SBATCH --gpus-per-node={cluster.gpus_per_node}\n" in text


def test_all_scripts_hear_of_preemption_and_are_requeued_the_same():
    def common(path: Path) -> list[str]:
        lines = [line for line in path.read_text().splitlines() if line.startswith("#SBATCH")]
        return [line for line in lines if not re.search("--(job-name|nodes)=", line)]

    first, *others = (common(path) for path in sorted(SLURM.glob("*.sbatch")))
    assert "#SBATCH --requeue" in first
    assert others == [first] * 3


def test_a_run_is_named_after_its_job_unless_it_has_a_name(tmp_path):
    assert arguments(tmp_path, "recipe=a 'data.train=[b c]'") == "train recipe=a data.train=[b c] run.name=slurm-7"
    assert arguments(tmp_path, "recipe=a run.name=mine") == "train recipe=a run.name=mine run.name=mine"


def test_a_restarted_job_goes_on_with_its_run_if_there_is_one(tmp_path):
    assert arguments(tmp_path, "recipe=a", SLURM_RESTART_COUNT="1") == "train recipe=a run.name=slurm-7"
    folder = tmp_path / "elsewhere" / "slurm-7"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").touch()
    given = f"recipe=a run.dir={tmp_path}/elsewhere"
    assert arguments(tmp_path, given).endswith("run.name=slurm-7")
    assert arguments(tmp_path, given, SLURM_RESTART_COUNT="1").endswith("run.name=slurm-7 --resume")


CACHES = ("CACHE", "HF_HOME", "CONFIGDIR", "WORKSPACE")  # what the names of libraries' variables hold


def caches(folder: Path, command: str = "", **env: str) -> dict[str, Path]:
    """Where each library keeps its cache, with scratch of that name and after a further command."""
    result = bash(f"use_caches {folder}/shared {folder}/own; {command} env", folder, **env)
    assert result.returncode == 0, result.stderr
    pairs = (line.partition("=") for line in result.stdout.splitlines())
    return {name: Path(value) for name, _, value in pairs if any(part in name for part in CACHES)}


def test_downloads_are_shared_and_what_compilers_make_is_each_nodes_own(tmp_path, monkeypatch):
    for name in caches(tmp_path):
        monkeypatch.delenv(name, raising=False)
    found = caches(tmp_path, "make_caches;")
    shared = {name for name, folder in found.items() if folder.is_relative_to(tmp_path / "shared")}
    assert shared == {"HF_HOME", "PIP_CACHE_DIR", "XDG_CACHE_HOME", "APPTAINER_CACHEDIR", "MPLCONFIGDIR"}
    own = {name: folder for name, folder in found.items() if name not in shared}
    assert {"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"} < own.keys()
    (scratch,) = (tmp_path / "own").iterdir()
    assert all(folder.is_relative_to(scratch) for folder in own.values())
    assert all(folder.is_dir() for folder in found.values())
    assert scratch.stat().st_mode & 0o077 == 0, "others may write where it lies"


@pytest.mark.parametrize("name", ("XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR"))
def test_what_the_user_exports_stays_and_is_there_and_in_the_container(tmp_path, name):
    exported, folder = {name: f"{tmp_path}/mine"}, tmp_path / "mine"
    assert caches(tmp_path, "make_caches;", **exported)[name] == folder and folder.is_dir()
    shown = bash(
        f"use_caches {tmp_path}/shared {tmp_path}/own; cache_folders", tmp_path,
        SLIME_SWE_CACHE=f"{tmp_path}/shared", **exported,
    )  # fmt: skip
    assert str(folder) in shown.stdout.split(",")


def test_a_folder_that_can_not_be_had_is_named_with_what_to_set(tmp_path):
    refused = bash("use_caches /proc/nowhere /tmp", tmp_path)
    assert refused.returncode == 2 and "set SLIME_SWE_CACHE" in refused.stderr
    refused = bash(f"use_caches {tmp_path} /proc; make_caches", tmp_path)
    assert refused.returncode == 2 and "set SLIME_SWE_SCRATCH" in refused.stderr
    bash(f"use_caches {tmp_path} {tmp_path}; mkdir {tmp_path}/other; ln -s {tmp_path}/other $scratch", tmp_path)
    refused = bash(f"use_caches {tmp_path} {tmp_path}; make_caches", tmp_path)
    assert refused.returncode == 2 and "or is another's" in refused.stderr


def test_an_interpreter_without_the_project_is_refused_with_what_to_do(tmp_path):
    result = bash(f"choose_python {tmp_path}", tmp_path, SLIME_SWE_PYTHON="/bin/false")
    assert result.returncode == 2
    assert "/bin/false can't import this project" in result.stderr and "SLIME_SWE_CONTAINER" in result.stderr
    result = bash(f"choose_python {tmp_path}", tmp_path, SLIME_SWE_CONTAINER=f"{tmp_path}/none.sif")
    assert result.returncode == 2 and "launch/apptainer/build.sh" in result.stderr


SCONTROL = """#!/bin/bash
echo "$@" >>called
[ -e end ] && echo "JobId=7 JobName=a StartTime=2026-01-01T00:00:00 EndTime=$(cat end) Deadline=N/A" || exit 1
"""


@pytest.fixture
def scontrol(tmp_path) -> Path:
    """The file that holds what SLURM says of the end of job 7; without it SLURM does not answer."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text(SCONTROL)
    (tools / "scontrol").chmod(0o755)
    return tmp_path / "end"


def in_job(command: str, scontrol: Path) -> subprocess.CompletedProcess[str]:
    path = f"{scontrol.parent}/tools:{os.environ['PATH']}"
    return bash(command, scontrol.parent, SLURM_JOB_ID="7", PATH=path, TZ="UTC")


def test_a_run_knows_when_its_job_ends(scontrol):
    """Two minutes before, since it must have stopped by then."""
    scontrol.write_text("2026-11-29T12:00:00")
    end = int(datetime(2026, 11, 29, 11, 58, tzinfo=UTC).timestamp())
    result = in_job('choose_arguments recipe=a; echo "${arguments[*]}"', scontrol)
    assert result.stdout == f"train recipe=a run.name=slurm-7 --ends-at={end}\n"
    for unknown in ("Unknown", "None"):
        scontrol.write_text(unknown)
        assert "--ends-at" not in in_job('choose_arguments recipe=a; echo "${arguments[*]}"', scontrol).stdout


# The run is a child that ends with code 75 when it finds the request, as the real one does, or when it is terminated.
ASKED = """
set -euo pipefail
folder=run signalled=
(trap 'exit 130' TERM
 for ((i = 0; i < 600; i++)); do [ ! -e run/stop_by ] || {heeds} || exit 75; sleep 0.05; done) & job=$!
(sleep 0.2; kill -USR1 $$) &
trap 'save_and_stop "time is up"' USR1
code=0; await "$job" || code=$?
echo "$code" "$(cat run/stop_by 2>/dev/null || echo none)"
"""


@pytest.mark.parametrize(
    ("begun", "heeds", "end", "expected"),
    [
        (True, "false", "2099-01-01T00:00:00", "75 0"),
        (True, "false", None, "75 0"),
        (True, "true", "2026-01-01T00:00:00", "130 0"),  # no time is left
        (False, "true", "2099-01-01T00:00:00", "130 none"),
    ],
    ids=["in time", "without a limit", "too late", "before it has begun"],
)
def test_a_run_is_asked_to_save_and_is_stopped_where_time_is_up(begun, heeds, end, expected, scontrol):
    folder = scontrol.parent / "run"
    folder.mkdir()
    if begun:
        (folder / "recipe.yaml").touch()
    if end is not None:
        scontrol.write_text(end)
    result = in_job(ASKED.replace("{heeds}", heeds), scontrol)
    assert result.stdout.strip() == expected, result.stderr
    assert "time is up: the run is asked to" in result.stderr


def test_the_exit_code_of_a_child_survives_a_signal(tmp_path):
    command = """
        trap 'signalled=1; echo heard' USR1
        (sleep 1; exit 42) & child=$!
        (sleep 0.3; kill -USR1 $$) &
        code=0; await $child || code=$?; echo $code
    """
    assert bash(command, tmp_path).stdout.split() == ["heard", "42"]
