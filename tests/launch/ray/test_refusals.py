"""What is refused before any Ray is started, and the small parts that need none."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.config import resolve
from slime_swe.launch.extras import CLUSTER, require
from slime_swe.launch.ray.dashboard import reaching
from slime_swe.launch.ray.jobs import entrypoint, exit_code, run_job
from slime_swe.launch.ray.network import address_towards, free_ports
from slime_swe.launch.ray.processes import interrupting
from slime_swe.launch.ray.slurm import recipe_of, resources
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.upstream import SLIME


@pytest.fixture
def job(tmp_path) -> Job:
    return Job(program=("true",), flags={}, environment={}, files={}, directory=tmp_path, manifest=SLIME.manifest)


def on(**cluster):
    recipe = resolve("tiny_cpu", [])
    return dataclasses.replace(recipe, cluster=dataclasses.replace(recipe.cluster, **cluster))


def test_more_nodes_than_this_machine_need_a_cluster(job, tmp_path):
    with pytest.raises(UserError, match=r"cluster.nodes=2, but without cluster.ray_address .*train.sbatch"):
        run_job(job, on(nodes=2), tmp_path)


def test_an_address_where_no_ray_answers_is_named(job, tmp_path):
    (port,) = free_ports(1)
    with pytest.raises(UserError, match=f"cluster.ray_address=http://127.0.0.1:{port}/: no Ray dashboard answers"):
        run_job(job, on(ray_address=f"http://127.0.0.1:{port}/"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_ray_names_the_extra(monkeypatch):
    require(*CLUSTER, extra="cluster")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"ray is not installed: pip install 'slime-swe\[cluster\]'"):
        require(*CLUSTER, extra="cluster")


def test_free_ports_are_free_and_different():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as taken:
            taken.bind(("", port))


def test_the_address_towards_a_peer_is_one_of_this_machine():
    assert address_towards("127.0.0.1:9") == "127.0.0.1"


def test_the_command_is_one_process_in_its_folder(tmp_path):
    folder = tmp_path / "with space"
    folder.mkdir()
    line = entrypoint(
        [sys.executable, "-c", "import os, sys; print(os.getcwd(), os.getpid(), sys.argv[1])", "a'b"], folder
    )
    process = subprocess.Popen(line, shell=True, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=30)[0] == f"{folder} {process.pid} a'b\n"


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
@pytest.mark.usefixtures("hung_up")
def test_every_ending_signal_is_a_keyboard_interrupt_and_only_inside(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interrupting():
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


def test_the_signals_that_came_are_known_and_within_another_it_is_that_one():
    with interrupting() as received:
        with pytest.raises(KeyboardInterrupt), interrupting() as inner:
            assert inner is received
            signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM]


def test_sighup_stays_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupting() as received:
            signal.raise_signal(signal.SIGHUP)
        assert received == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sigterm_lets_an_event_loop_end_as_ctrl_c_does():
    """By cancelling the main task, whose clean-up may await, and which another signal leaves alone."""

    async def main() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            signal.raise_signal(signal.SIGHUP)
            await asyncio.sleep(0)
            cleaned.append(True)

    cleaned: list[bool] = []
    with pytest.raises(KeyboardInterrupt), interrupting():
        asyncio.run(main())
    assert cleaned == [True]


def test_another_thread_leaves_the_handlers_alone():
    def inside() -> None:
        with interrupting():
            seen.append(signal.getsignal(signal.SIGTERM))

    seen: list = []
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_the_environment_is_ray_s_clients_only_inside(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    monkeypatch.setenv("no_proxy", "localhost")
    before = dict(os.environ)
    with reaching("http://10.0.0.1:8265"):
        assert "RAY_ADDRESS" not in os.environ
        assert os.environ["no_proxy"] == "localhost,10.0.0.1"
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("status", "own", "code"),
    [("SUCCEEDED", 0, 0), ("FAILED", 3, 3), ("FAILED", None, 1), ("STOPPED", None, 130), ("UNKNOWN", None, 1)],
)
def test_the_exit_code_is_the_job_s(status, own, code):
    assert exit_code(status, own) == code


def test_a_node_has_what_slurm_gives_it():
    assert resources({"SLURM_CPUS_ON_NODE": "96"}) == ["--num-cpus=96"]
    assert resources({"SLURM_CPUS_ON_NODE": "96", "SLURM_GPUS_ON_NODE": "8"}) == ["--num-cpus=96", "--num-gpus=8"]


def test_the_engine_is_that_of_the_recipe_or_of_the_run_to_go_on_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert recipe_of(["train", "run.seed=1", "--ends-at=1790000000"]).engine == "embedded"
    assert recipe_of(["train", "recipe=qwen25_coder_7b", "~data.eval.unseen"]).engine == "slime"
    with pytest.raises(UserError, match=r"can't read recipe runs/a/recipe.yaml"):
        recipe_of(["train", "run.name=a", "--resume"])
    with pytest.raises(UserError, match="nothing_like_it"):
        recipe_of(["train", "recipe=nothing_like_it"])
