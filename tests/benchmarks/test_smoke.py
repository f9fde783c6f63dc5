"""Each benchmark that needs no GPU runs as its command and prints its figures, at a size at which they mean little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.learning import KEPT

ROOT = Path(__file__).parents[2]
SEED = ROOT / "embedded" / "seed" / "checkpoint"
NO_BENCHMARKS = {"proxy_servers"}  # the benchmark proxy starts it
ON_GPUS = {"megatron_layers"}
SUMMARY = dict.fromkeys(KEPT, 0.5) | {name: [0.25, 0.75] for name in KEPT if "_interval_" in name}


def printed(name: str, *flags: str, seconds: float = 300) -> str:
    command = [sys.executable, "-m", f"benchmarks.{name}", *flags]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode == 2 and "argument" not in done.stderr:
        pytest.skip(done.stderr.strip())  # no Docker, say
    assert done.returncode == 0, done.stderr
    return done.stdout


FIGURES = {
    "episode": (["--rounds", "1"], "turn_ms_64"),
    "first_run": (["--rollouts", "1"], "cpu_ms_per_episode"),
    "hostile_answers": (["--count", "20"], "reply_p99_ms"),
    "hostile_inputs": (["--scale", "0.01"], "patch_ms"),
    "image_sandboxes": (["--rounds", "1"], "overlay_open_ms"),
    "journals": (["--steps", "1", "--groups", "1", "--tokens", "64"], "percent"),
    "negative_control": (["--rounds", "1", "--tests", "3"], "controlled_ratio"),
    "proxy": (["--turns", "1", "--scale", "0.01", "--tokenizer", str(SEED)], "overhead_p50_ms_at_32k"),
    "replay": (["--rollouts", "2", "--groups", "2"], "memory_ratio"),
    "report_page": (["--episodes", "1000"], "small_ms"),
    "rollout_schedule": (["--slots", "16", "--steps", "5"], "slot_use_continuous"),
    "sandbox": (["--rounds", "1"], "cycle_ms"),
    "trackers": (["--steps", "1", "--groups", "1"], "percent"),
    "warm_start": (["--rollouts", "1", "--after", "1", "--groups", "2", "--limit", "4"], "gain_warm_low"),
}
CHEAP = ("episode", "sandbox")
HEAVY = {
    "grading": (["--rounds", "1"], "overlay_ratio"),
    "ray_sandboxes": (["--rounds", "1"], "extra_command_ms"),
}


@pytest.mark.slow
@pytest.mark.timeout(320)
@pytest.mark.parametrize(
    "name",
    [
        *CHEAP,
        *(pytest.param(name, marks=pytest.mark.extended("benchmarks")) for name in FIGURES if name not in CHEAP),
    ],
)
def test_a_benchmark_runs_and_prints_its_figures(name):
    flags, figure = FIGURES[name]
    assert figure in json.loads(printed(name, "--json", *flags))


@pytest.mark.slow
@pytest.mark.timeout(1220)  # grading builds the images of three packages, and took 300 s beside a busy test
@pytest.mark.extended("tests/benchmarks/test_smoke.py::test_a_benchmark_runs_and_prints_its_figures")
@pytest.mark.parametrize(
    "name",
    ["grading", pytest.param("ray_sandboxes", marks=pytest.mark.xdist_group("ray"))],  # others ask whether a Ray runs
)
def test_a_heavy_benchmark_runs_and_prints_its_figures(name):
    flags, figure = HEAVY[name]
    assert figure in json.loads(printed(name, "--json", *flags, seconds=1200))


def test_the_learning_benchmark_prints_the_runs_that_are_there(tmp_path):
    for name in ("seed0", "shuffled"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").write_text(json.dumps(SUMMARY))
    assert "mean of 1 seeds: 0.500 → 0.500" in printed("learning", "--seeds", "0", "--dir", str(tmp_path))


def test_no_benchmark_is_missing_here():
    started = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text()}
    elsewhere = {"megatron_memory", "make_tasks"}  # a file of their own beside this
    assert started - NO_BENCHMARKS - ON_GPUS - elsewhere == {*FIGURES, *HEAVY, "learning"}
