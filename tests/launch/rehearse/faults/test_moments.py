"""The process to kill is found among real ones, and a moment in a real folder that grows."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from slime_swe.launch.ray.processes import MARK, PROC, lives, owned, stop_owned
from slime_swe.launch.rehearse.faults import FAILS_IN, MOMENTS, PARTS
from slime_swe.launch.rehearse.faults.injection import Processes, Watch, left_after, strike, title
from tests.waiting import wait_for

SLEEP = "/bin/sleep"


@pytest.fixture
def mark():
    mark = uuid.uuid4().hex
    yield mark
    stop_owned(mark, grace=0.2)


def start(mark: str, name: str) -> subprocess.Popen[bytes]:
    """A process that calls itself so, as Ray's and SGLang's do."""
    process = subprocess.Popen([name, "1000"], executable=SLEEP, env={**os.environ, MARK: mark})
    wait_for(lambda: title(process.pid) == name.rpartition("/")[2], name)
    return process


RUN = {
    "engine": ["sglang::scheduler", "sglang::scheduler_TP0"],
    "rank": ["ray::MegatronTrainRayActor.train", "ray::MegatronTrainRayActor"],
    "rollout_manager": ["ray::RolloutManager.generate"],
    "gcs": ["/opt/ray/core/src/ray/gcs/gcs_server"],
    "raylet": ["/opt/ray/core/src/ray/raylet/raylet"],
    "other": ["sglang::detokenizer", "ray::SGLangEngine", "ray::IDLE", "ray::DashboardAgent"],
}


def test_of_each_part_one_process_is_killed_and_no_other(mark):
    started = {part: [start(mark, name) for name in names] for part, names in RUN.items()}
    foreign = start(uuid.uuid4().hex, "ray::RolloutManager")
    killed = set[int]()
    for part in ("engine", "rank", "rollout_manager", "gcs", "raylet"):
        (pid,) = Processes(mark).of(PARTS[part])
        assert pid in [process.pid for process in started[part]], part
        strike([pid], PARTS[part])
        wait_for(lambda pid=pid: not lives(pid), "its end")
        killed.add(pid)
        assert {process.pid for group in started.values() for process in group if not lives(process.pid)} == killed
    assert len(owned(mark)) == len(RUN["other"]) + 2, "an engine and a rank are left"
    assert foreign.poll() is None
    foreign.kill()
    foreign.wait()


def test_a_machine_takes_every_process_with_it_and_what_outlives_a_run_is_named(mark):
    for names in RUN.values():
        start(mark, names[0])
    assert "sglang::scheduler" in left_after(lambda: owned(mark), 0.1)
    strike(Processes(mark).of(PARTS["machine"]), PARTS["machine"])
    assert left_after(lambda: owned(mark), 10) == []


FORK = """
import os, subprocess, sys
child = subprocess.Popen([sys.argv[2], "1000"], executable="/bin/sleep")
print(child.pid, flush=True)
os.execv("/bin/sleep", [sys.argv[1], "1000"])
"""


@pytest.mark.parametrize(
    ("parent", "child"),
    [
        ("ray::RolloutManager.generate", "ray::RolloutManager.__init__"),
        ("ray::MegatronTrainRayActor.save_model", "ray::MegatronTrainRayActor.save_model"),
    ],
)
def test_what_a_part_has_forked_is_not_the_part(mark, parent, child):
    """The router has the title that the rollout manager had when it was forked, and so have writers of checkpoints."""
    command = [sys.executable, "-c", FORK, parent, child]
    process = subprocess.Popen(command, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE)
    forked = int(process.stdout.readline())
    wait_for(lambda: title(process.pid) == parent and title(forked) == child, "both")
    (part,) = {name for name in ("rollout_manager", "rank") if parent.startswith(PARTS[name].title)}
    assert Processes(mark).of(PARTS[part]) == [process.pid]
    if part == "rollout_manager":
        assert Processes(mark).of(PARTS["router"]) == [forked]


def test_an_engine_that_hangs_lives_and_does_nothing(mark):
    process, part = start(mark, "sglang::scheduler"), PARTS["hung_engine"]
    strike(Processes(mark).of(part), part)
    stat = PROC / str(process.pid) / "stat"
    wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "the stop")
    assert owned(mark) == [process.pid]


def written(run, path: str) -> None:
    target = run / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch()


COMING = {  # moment -> title, what a run has written before it begins, and what it has once it is over
    "rollout": ("ray::RolloutManager.generate", ["dumps/rollout_0.pt"], "dumps/rollout_1.pt"),
    "step": ("ray::MegatronTrainRayActor.train", ["dumps/rollout_1.pt"], "dumps/step_1.pt"),
    "save": (
        "ray::MegatronTrainRayActor.save_model",
        ["checkpoints/iter_0000001/__0_0.distcp"],
        "checkpoints/iter_0000001/.metadata",
    ),
    "update": ("ray::MegatronTrainRayActor.update_weights", ["exports/1/config.json"], "dumps/rollout_2.pt"),
}


def test_every_moment_is_tried():
    assert COMING.keys() == MOMENTS.keys()


@pytest.mark.parametrize("name", COMING)
def test_a_moment_is_seen_from_its_beginning_to_its_end(mark, tmp_path, name):
    method, before, after = COMING[name]
    watch = Watch(MOMENTS[name].of(FAILS_IN), tmp_path, Processes(mark))
    process = start(mark, method)
    assert not watch.lasts(), "of the rollout before"
    for path in before:
        written(tmp_path, path)
    assert watch.lasts()
    written(tmp_path, after)
    assert not watch.lasts()
    (tmp_path / after).unlink()
    process.kill()
    process.wait()
    assert not watch.lasts(), "nobody is in it"


def test_a_moment_must_last(mark, tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("slime_swe.launch.rehearse.faults.injection.time.monotonic", lambda: now[0])
    watch = Watch(MOMENTS["rollout"].of(FAILS_IN), tmp_path, Processes(mark))
    start(mark, "ray::RolloutManager.generate")
    written(tmp_path, "dumps/rollout_0.pt")
    assert not watch.has_come()
    now[0] += MOMENTS["rollout"].seconds - 0.1
    assert not watch.has_come()
    now[0] += 0.2
    assert watch.has_come()


def test_a_method_is_not_one_that_begins_like_it(mark, tmp_path):
    watch = Watch(MOMENTS["step"].of(FAILS_IN), tmp_path, Processes(mark))
    written(tmp_path, "dumps/rollout_1.pt")
    start(mark, "ray::MegatronTrainRayActor.train_critic")
    assert not watch.lasts()
