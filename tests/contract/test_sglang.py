"""Whole runs with the servers of a GPU job: SLiME starts real SGLang by itself and sends it weights over gloo."""

from __future__ import annotations

from importlib.util import find_spec

import orjson
import pytest

from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.rollout.journals import read_records

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(find_spec("gguf") is None, reason="needs the packages of .venv-slime"),
]

SMALL = ["engine=slime_cpu", "serving.server=sglang", "serving.deterministic=false", "data.eval={}"]
SMALL += ["rollout.batch_size=4", "rollout.samples_per_task=4", "algorithm.steps_per_rollout=1", "run.num_rollouts=2"]
SMALL += ["rollout.time_budget=600"]
GAP = 1e-5  # between the trainer's log-probabilities and SGLang's, on average, in float32


def test_what_arrives_at_sglang_is_what_was_trained(slime_home, tmp_path, monkeypatch):
    from slime_swe.launch.slime_cpu.run import train

    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # of another Ray, which is not this run's
    recipe = resolve("tiny_cpu", [*SMALL, f"run.dir={tmp_path}", "run.name=a"])
    folder = create_run(recipe)
    train(recipe, folder, resume=False)
    before, after = map(orjson.loads, (folder / "metrics.jsonl").read_bytes().splitlines())
    assert before["logprob_diff_mean"] <= GAP and before["grad_norm"] > 0
    assert after["logprob_diff_mean"] <= GAP
    records = list(read_records(folder / "episodes.jsonl"))
    versions = {(record.rollout_id, version) for record in records for version, _ in record.version_spans if version}
    assert versions == {(0, "1"), (1, "2")}
    assert not any(record.broken for record in records)
