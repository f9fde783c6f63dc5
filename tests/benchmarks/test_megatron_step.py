"""The benchmark of training steps, as a command: at a toy size on the CPU, and by sizes alone at full size."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.megatron_step import main, worse

ROOT = Path(__file__).parents[2]


def figures(*words: str) -> dict:
    command = [sys.executable, "-m", "benchmarks.megatron_step", *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


needs_megatron = pytest.mark.skipif(
    find_spec("megatron") is None, reason="megatron-core is not installed (pip install --no-deps megatron-core==0.16.1)"
)


@needs_megatron
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ("qwen25_coder_1_5b", "qwen3_coder_30b_a3b"))
def test_a_toy_size_trains_on_the_cpu(name):
    found = figures(name, "--device", "cpu", "--tiny", "--steps", "10")["recipes"][name]
    assert found["first_loss"] == pytest.approx(math.log(512), rel=0.1)
    assert found["last_loss"] < 0.95 * found["first_loss"]
    assert found["tokens_per_second"] == pytest.approx(found["tokens"] / found["step_seconds"])
    assert "mfu" not in found
    assert "planned_seconds" not in found


@needs_megatron
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_is_what_the_planner_says_at_full_size():
    name = "qwen25_coder_1_5b"
    found = figures(name, "--device", "meta")["recipes"][name]
    planned, measured = found["planned_bytes"], found["measured_bytes"]
    for part in ("weights", "gradients"):
        assert measured[part] == pytest.approx(planned[part], rel=0.01)
    lasting = sum(planned[part] for part in ("weights", "gradients", "optimizer states"))
    assert measured["lasting"] == pytest.approx(lasting, rel=0.01)
    assert found["memory_ratio"] == pytest.approx(1, rel=0.02)
    assert "step_seconds" not in found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cpu", "--tiny", "--save"], "--save and --check want recipes in full size"),
        (["--device", "meta", "--tiny", "--check"], "--save and --check want recipes in full size"),
    ],
)
def test_what_is_no_baseline_is_not_saved_as_one(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_out_of_memory_is_a_finding_and_not_the_end():
    failed = {"failed": "with 3 of a rank's 28 layers: CUDA out of memory"}
    fine = {"memory_ratio": 1.0, "gemm_share": 0.5}
    lost = {"memory_ratio": 1.2, "gemm_share": 0.4}
    baseline = {"recipes": {"third": fine}}
    found = worse({"recipes": {"first": failed, "second": fine, "third": lost}}, baseline)
    assert [line.split(":")[0] for line in found] == ["first", "third", "third"]
