"""Jobs on a real Ray: on one that is started for them, and on one that was there before."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.attempts import last_attempt
from slime_swe.errors import UserError
from slime_swe.launch.config import resolve
from slime_swe.launch.ray.dashboard import ray_version
from slime_swe.launch.ray.jobs import run_job
from slime_swe.launch.ray.node import Node, wait_for_nodes
from slime_swe.launch.ray.processes import MARK, lives, running_ray
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.upstream import SLIME
from tests.waiting import wait_for

ROOT = Path(__file__).parents[3]
PATIENCE = 300.0  # seconds, on a busy machine

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow, pytest.mark.timeout(900)]

# A job that leaves its session, and says when it is ready.
LASTING = """
import subprocess, sys, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("ready", flush=True)
try:
    time.sleep(1000)
except KeyboardInterrupt:
    print("saved what matters", flush=True)
    sys.exit(130)
"""
LAUNCHER = """
import dataclasses, sys
from pathlib import Path
from slime_swe.launch.config import resolve
from slime_swe.launch.ray.jobs import run_job
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.upstream import SLIME
code, folder, address = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
recipe = resolve("tiny_cpu", [])
recipe = dataclasses.replace(recipe, cluster=dataclasses.replace(recipe.cluster, ray_address=address))
given = {"flags": {}, "environment": {}, "files": {}, "directory": folder, "manifest": SLIME.manifest}
job = Job(program=(sys.executable, "-c", code), **given)
try:
    sys.exit(run_job(job, recipe, folder))
except KeyboardInterrupt:
    sys.exit(130)
"""


def start(folder: Path, address: str = "") -> subprocess.Popen[str]:
    """A launcher of `LASTING`, ready to be interrupted."""
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, LASTING, str(folder), address],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    said = []
    for line in process.stderr:
        said.append(line)
        if line.strip() == "ready":
            return process
    raise AssertionError("".join(said))


def marked() -> list[int]:
    """Processes of any node that a launcher has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}=".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


@pytest.mark.extended("tests/launch/ray/test_jobs.py::test_ctrl_c_stops_the_job_and_leaves_the_cluster")
def test_sigterm_ends_the_job_and_everything_started_for_it(tmp_path):
    if running_ray():
        pytest.skip("another Ray runs on this machine")
    others = marked()
    process = start(tmp_path)
    started = [pid for pid in marked() if pid not in others]
    assert len(started) > 5
    process.terminate()
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130, said
    assert "saved what matters" in said
    assert not [pid for pid in {*started, *marked()} if pid not in others and lives(pid)]
    record = json.loads((tmp_path / "ray_job.json").read_text())
    assert record["status"] == "STOPPED"


@pytest.fixture(scope="module")
def there():
    """The dashboard of a Ray that somebody else has started."""
    if running_ray():
        pytest.skip("another Ray runs on this machine")
    node, head = Node.head("127.0.0.1", "127.0.0.1", ["--num-cpus=2", "--num-gpus=0"])
    with node:
        wait_for_nodes(head, 1, PATIENCE, node.require_alive)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_AUTH_TOKEN", head.token)  # as a person has it who started that cluster
            yield head.dashboard


def on(address: str, **cluster):
    recipe = resolve("tiny_cpu", [])
    return dataclasses.replace(recipe, cluster=dataclasses.replace(recipe.cluster, ray_address=address, **cluster))


def job_of(folder: Path, code: str) -> Job:
    return Job(
        program=(sys.executable, "-c", code), flags={"words": ("a b",)}, environment={"GIVEN": "yes"},
        files={folder / "settings.txt": "here"}, directory=folder, manifest=SLIME.manifest,
    )  # fmt: skip


def test_a_job_has_its_words_files_environment_folder_and_cluster(there, tmp_path, capfd):
    """The cluster that it runs on it finds as SLiME does: by the address and the token that its environment holds."""
    code = """
import os, sys, ray
print(sys.argv[1], open("settings.txt").read(), os.environ["GIVEN"], os.getcwd())
ray.init()
print("CPUs:", int(ray.cluster_resources()["CPU"]))
"""
    assert run_job(job_of(tmp_path, code), on(there), tmp_path) == 0
    said = f"a b here yes {tmp_path}"
    assert said in capfd.readouterr().err
    log = (tmp_path / "ray_job.log").read_text()
    assert said in log and "CPUs: 2" in log
    assert last_attempt(tmp_path / "drivers.jsonl") == 1
    record = json.loads((tmp_path / "ray_job.json").read_text())
    assert (record["status"], record["exit_code"], record["dashboard"]) == ("SUCCEEDED", 0, there)


def test_a_failed_job_s_exit_code_is_passed_on(there, tmp_path):
    assert run_job(job_of(tmp_path, "import sys; print('broken'); sys.exit(3)"), on(there), tmp_path) == 3
    record = json.loads((tmp_path / "ray_job.json").read_text())
    assert (record["status"], record["exit_code"]) == ("FAILED", 3)
    assert "broken" in record["message"]


def test_more_gpus_than_the_cluster_has_are_refused_before_anything_is_written(there, tmp_path):
    with pytest.raises(UserError, match=r"asks for 8 GPUs .* has 0 on 1 nodes"):
        run_job(job_of(tmp_path, ""), on(there, gpus_per_node=8), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_ray_that_was_there_is_neither_doubled_nor_ended(there, tmp_path):
    with pytest.raises(UserError, match=r"Ray runs on this machine already .*cluster.ray_address=http://host:port"):
        run_job(job_of(tmp_path, ""), on(""), tmp_path)
    assert ray_version(there)


def test_ctrl_c_stops_the_job_and_leaves_the_cluster(there, tmp_path):
    process = start(tmp_path, there)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130, said
    assert "saved what matters" in said
    assert ray_version(there)
    wait_for(lambda: json.loads((tmp_path / "ray_job.json").read_text())["status"] == "STOPPED", "the record")
