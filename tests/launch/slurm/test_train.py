"""`sbatch launch/slurm/train.sbatch` on a real SLURM: Ray over two nodes, and a run that survives preemption."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import orjson
import pytest

from slime_swe.data_sources.registry import load_tasks
from tests.launch.slurm.virtual import ADDRESSES, GPUS, Cluster, virtual_cluster, why_not
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]
PATIENCE = 500.0  # seconds for a job, on a busy machine

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with virtual_cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> list[str]:
    """Words that make `tiny_cpu` a run of a few seconds."""
    folder = tmp_path_factory.mktemp("tasks")
    for split in ("train", "heldout"):
        lines = [orjson.dumps(task.to_dict()) for task in load_tasks(f"synthetic:{split}")[:2]]
        (folder / f"{split}.jsonl").write_bytes(b"\n".join(lines))
    return [
        "--ignore-integrity", "recipe=tiny_cpu", "rollout.batch_size=2", "rollout.samples_per_task=2",
        f"data.train=[{folder}/train.jsonl]", f"data.eval.heldout={folder}/heldout.jsonl", "~data.eval.unseen",
    ]  # fmt: skip


def submit(cluster: Cluster, folder: Path, *words: str, options: tuple[str, ...] = ()) -> str:
    where = {"cwd": ROOT, "log": folder / "job.log"}
    return cluster.submit("launch/slurm/train.sbatch", *words, f"run.dir={folder}/runs", options=options, **where)


def wait_for_end(cluster: Cluster, job: str, log: Path) -> None:
    def over() -> bool:
        state = cluster.job(job)["JobState"]
        assert state not in ("FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"), log.read_text()
        return state == "COMPLETED"

    wait_for(over, "the end of the job", PATIENCE)


def steps_of(run: Path) -> list[int]:
    """The rollout of each training line of the run's metrics."""
    path = run / "metrics.jsonl"
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    return [line["rollout_id"] for line in lines if line["kind"] == "train"]


def test_the_ray_cluster_spans_both_nodes_and_the_job_on_it_ends(cluster, tmp_path):
    """Ray takes most of the time. The job shows what it would start, for a recipe that needs a cluster."""
    words = ["--dry-run", "--ignore-integrity", "--ignore-plan", "--no-rehearsal", "recipe=qwen25_coder_1_5b"]
    job = submit(cluster, tmp_path, *words, "run.name=one")
    require_success(cluster, job, tmp_path / "job.log")
    said = (tmp_path / "job.log").read_text()
    (address,) = re.findall(r"Ray cluster at (http\S+): ", said)
    assert f"cluster.ray_address={address}" in said, "what the job has of the cluster"
    assert f"in {tmp_path}/runs/one, as SLiME" in said, "what it prints"
    for node, where in enumerate(ADDRESSES):
        command = f"from slime_swe.launch.ray.node import *; print(at_address({where!r})['GLOO_SOCKET_IFNAME'])"
        env = {"PYTHONPATH": str(ROOT / "src")}
        assert cluster.on(node, sys.executable, "-c", command, env=env) == "eth0\n", "the cable between them"


@pytest.mark.extended("tests/launch/slurm/test_train.py::test_the_ray_cluster_spans_both_nodes_and_the_job_on_it_ends")
def test_a_run_on_both_nodes_finishes(cluster, small, tmp_path):
    job = submit(cluster, tmp_path, *small, "run.num_rollouts=2", "run.name=two")
    require_success(cluster, job, tmp_path / "job.log")
    assert steps_of(tmp_path / "runs" / "two") == [0, 1]
    assert json.loads((tmp_path / "runs" / "two" / "summary.json").read_text())["num_rollouts"] == 2


def require_success(cluster: Cluster, job: str, log: Path) -> None:
    """Wait for the job, which ran once on a Ray of both nodes."""
    wait_for_end(cluster, job, log)
    said = log.read_text()
    assert f"2 nodes, {2 * GPUS} GPUs" in said
    assert cluster.job(job)["Restarts"] == "0"
    assert "CANCELLED" not in said and "exit code" not in said, "the log of a job that completed ends like one"
    assert not list(ROOT.glob("core*"))


@pytest.mark.extended("tests/launch/slurm/test_train.py::test_the_ray_cluster_spans_both_nodes_and_the_job_on_it_ends")
def test_a_preempted_run_goes_back_into_the_queue_and_on_from_there(cluster, small, tmp_path):
    job = submit(cluster, tmp_path, *small, "run.num_rollouts=4")
    log, run = tmp_path / "job.log", tmp_path / "runs" / f"slurm-{job}"
    wait_for(lambda: steps_of(run), "the first step", PATIENCE)
    cluster.on(0, "scancel", "--signal=USR1", "--batch", job)
    wait_for(lambda: cluster.job(job)["Restarts"] == "1", "the restart", PATIENCE)
    done = steps_of(run)
    wait_for_end(cluster, job, log)
    assert "back into the queue" in log.read_text() and "going on with" in log.read_text()
    assert 1 <= len(done) < 4
    assert steps_of(run) == [0, 1, 2, 3]
    episodes = [orjson.loads(line) for line in (run / "episodes.jsonl").read_bytes().splitlines()]
    assert len({episode["index"] for episode in episodes}) == len(episodes)
    assert json.loads((run / "summary.json").read_text())["num_rollouts"] == 4


@pytest.mark.extended(
    "tests/e2e/test_careless.py::test_a_run_saves_and_stops_on_sigusr1_and_before_its_time_is_up, "
    "tests/launch/slurm/test_scripts.py::test_a_run_is_asked_to_save_and_is_stopped_where_time_is_up"
)
def test_a_run_whose_limit_ends_twice_makes_no_finished_step_again(cluster, small, tmp_path):
    """SLURM's own limit of four minutes, of which the run may have two. SLURM asks it in the second of these, within a
    step, or it stops before a step that would not end in time."""
    limit = ("--time=4", "--signal=B:USR1@120")
    job = submit(cluster, tmp_path, *small, "run.num_rollouts=2000", options=limit)
    log, run = tmp_path / "job.log", tmp_path / "runs" / f"slurm-{job}"
    finished = list[list[int]]()
    for restarts in ("1", "2"):
        wait_for(lambda restarts=restarts: cluster.job(job)["Restarts"] == restarts, "the restart", PATIENCE)
        finished.append(steps_of(run))
    before = len(steps_of(run))
    wait_for(lambda: len(steps_of(run)) > before, "a step of the last start", PATIENCE)
    cluster.on(0, "scancel", job)
    said = log.read_text()
    assert said.count("back into the queue") == 2 and said.count("going on with") == 2
    assert said.count("as its time was up, with a checkpoint of each step that had ended") >= 2
    lines = [orjson.loads(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    steps = [(line["rollout_id"], line["attempt"]) for line in lines if line["kind"] == "train"]
    assert [rollout for rollout, _ in steps] == [*range(len(steps))]
    first, second = map(len, finished)
    assert 1 <= first < second < len(steps)
    assert [attempt for _, attempt in steps] == [1] * first + [2] * (second - first) + [3] * (len(steps) - second)
    wait_for(lambda: cluster.job(job)["JobState"] == "CANCELLED", "the end")


def test_a_script_outside_the_project_says_where_to_submit_it(cluster, tmp_path):
    job = cluster.submit(str(ROOT / "launch/slurm/train.sbatch"), nodes=1, cwd=tmp_path, log=tmp_path / "job.log")
    wait_for(lambda: cluster.job(job)["JobState"] == "FAILED", "the refusal")
    assert "is not the project's folder: submit from there" in (tmp_path / "job.log").read_text()
