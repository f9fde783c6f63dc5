"""A real Ray on two nodes, of which the second is lost and comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest

from tests.sandbox.ray.cluster import ray_writes_to, short_folder
from tests.waiting import wait_for

pytest.importorskip("ray", reason="the nodes are Ray's")

from slime_swe.launch.ray.processes import MARK, lives, owned, stop_owned
from slime_swe.launch.rehearse.faults import Drill
from slime_swe.launch.rehearse.faults.injection import SECOND, LostNode, Processes, title
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.upstream import SLIME

# The first node without SLiME: it calls an actor on each, by the GPU that this has.
HEAD = """
import json, os, pathlib, sys
import ray
folder, script = sys.argv[1:]
ray.init(address="local", num_gpus=1, num_cpus=1, include_dashboard=False, log_to_driver=False)
head = {"gcs": ray.get_runtime_context().gcs_address, "dashboard": "", "token": os.environ["RAY_AUTH_TOKEN"]}
pathlib.Path(folder, "new").write_text(json.dumps(head))
os.rename(f"{folder}/new", f"{folder}/head.json")

@ray.remote(num_gpus=1, num_cpus=0)
class Engine:
    def address(self):
        return ray.util.get_node_ip_address()

engines = [Engine.remote() for _ in range(2)]
print(*sorted(ray.get([engine.address.remote() for engine in engines])), flush=True)
sys.stdin.readline()
answered, _ = ray.wait([engine.address.remote() for engine in engines], num_returns=2, timeout=3)
print(*ray.get(answered), flush=True)
sys.stdin.read()
"""


class Scripted(LostNode):
    program: ClassVar = (sys.executable, "-c", HEAD)


@pytest.fixture
def own_folder():
    with short_folder() as folder, ray_writes_to(folder):
        yield


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("ray")  # others ask whether a Ray runs on this machine
@pytest.mark.extended(
    "tests/launch/rehearse/faults/test_network.py::test_a_cut_link_leaves_connections_open_and_nothing_answers_until_it_is_mended"
)  # three starts of Ray, each of which must take less than its 30 seconds
@pytest.mark.skipif(os.geteuid() != 0, reason="making namespaces needs root")
def test_a_lost_node_lives_and_answers_nobody_and_another_takes_its_place(tmp_path, own_folder):
    run, mark = tmp_path / "run", uuid.uuid4().hex
    job = job_of(run)
    injection = Scripted(Drill("network", "rollout"), run)
    with injection.prepared(), ExitStack() as stack:
        stack.callback(stop_owned, mark, 5)
        first = begin(stack, injection.started(job), mark)
        assert first.stdout.readline() == "10.77.0.1 10.77.0.2\n"
        assert not {*injection.network.processes(SECOND)} & {*owned(mark)}, "the launcher reaches the first alone"
        injection.inject(Processes(mark))
        print(file=first.stdin, flush=True)
        assert first.stdout.readline() == "10.77.0.1\n"
        stop_owned(mark, 5)
        left = [title(pid) for pid in injection.living(mark)]
        assert "raylet" in left and "ray::Engine" in left, "as nobody can end them"
        injection.mend()
        wait_for(lambda: not injection.living(mark), "the end of what was left")
        assert begin(stack, injection.started(job), mark).stdout.readline() == "10.77.0.1 10.77.0.2\n"
        network = injection.network
        second = network.processes(SECOND)
    wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in second), "the second node's end")


@pytest.mark.skipif(os.geteuid() != 0, reason="making namespaces needs root")
def test_the_second_node_ends_where_the_drill_is_killed(tmp_path):
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.launch.rehearse.faults.test_two_nodes import job_of, LostNode, Drill\n"
        "injection = LostNode(Drill('network', 'rollout'), Path(sys.argv[1]))\n"
        "with injection.prepared():\n"
        "    injection.started(job_of(injection.run))\n"
        "    print(injection.second.pid, flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "run")]
    drill = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    second = int(drill.stdout.readline())
    # Not before: it is asked to end with the drill by a program that is still to become the node.
    wait_for(lambda: os.path.samefile(f"/proc/{second}/exe", sys.executable), "the node's own program")
    assert lives(second)
    drill.kill()
    drill.communicate()
    wait_for(lambda: not lives(second), "its end")


def job_of(run: Path) -> Job:
    path = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return Job(("python", "train.py"), {}, path, {}, run, SLIME.manifest)


def begin(stack: ExitStack, job: Job, mark: str) -> subprocess.Popen[str]:
    environment = os.environ | dict(job.environment) | {MARK: mark}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return stack.enter_context(subprocess.Popen(job.argv, env=environment, cwd=job.directory, **pipes))
