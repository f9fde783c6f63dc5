"""What a killed run leaves is removed by the next one, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slime_swe.sandbox.apptainer import ApptainerBackend
from slime_swe.sandbox.cache import is_dead, process_identity, remove_tree
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.docker.client import OWNER_LABEL
from slime_swe.sandbox.overlay import cgroups
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.nobody import Nobody
from tests.waiting import wait_for

REPOSITORY = Path(__file__).parents[2]
EPISODES = 16
HOST = f"""
import asyncio, sys
from slime_swe.sandbox import Limits, SandboxPool
async def main():
    async with SandboxPool(sys.argv[1], concurrency={EPISODES}) as pool:
        up = asyncio.Barrier({EPISODES} + 1)
        async def episode():
            async with pool.open({{"a": "b"}}, Limits(disk_bytes=1 << 20)) as sandbox:
                running = asyncio.create_task(sandbox.exec(f"setsid sleep {{sys.argv[2]}} & sleep {{sys.argv[2]}}"))
                await sandbox_is_busy(sandbox, up)
                await running
        async def sandbox_is_busy(sandbox, up):
            await asyncio.sleep(1)
            await up.wait()
        tasks = [asyncio.create_task(episode()) for _ in range({EPISODES})]
        await up.wait()
        print("running", flush=True)
        await asyncio.gather(*tasks)
asyncio.run(main())
"""


def kill_a_host(backend: str, marker: str) -> str:
    """Start a process with 16 episodes, and kill it while their commands run. Who it was."""
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, backend, marker],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/src"},
    )
    with host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"running\n"
        started = Path(f"/proc/{host.pid}/stat").read_text().rpartition(")")[2].split()[19]
        owner = changed(pid=str(host.pid), started=started)
        host.send_signal(signal.SIGKILL)
    assert is_dead(owner)
    return owner


def _containers(client: Any, owner: str) -> list[str]:
    return [found["Id"] for found in client.containers(all=True, filters={"label": f"{OWNER_LABEL}={owner}"})]


@pytest.fixture
def foreign(docker_pool: SandboxPool) -> Iterator[list[str]]:
    """Containers that are not ours to remove: of a living owner, of another machine's, of nobody's."""
    client = docker_client.connect()
    elsewhere = changed(machine="another-machine", pid="1", started="1")
    name = client.images("slime-swe/host")[0]["Id"]
    made = [
        client.create_container(name, command=["true"], labels=labels)["Id"]
        for labels in (docker_client.labels(), {OWNER_LABEL: elsewhere}, {OWNER_LABEL: "unreadable"}, {})
    ]
    yield made
    for container in made:
        client.remove_container(container, force=True)


@pytest.mark.slow
@pytest.mark.extended("tests/sandbox/test_leftovers.py::test_a_killed_run_leaves_no_mount_and_its_groups_are_removed")
async def test_the_next_start_removes_the_containers_of_a_killed_run_alone(
    docker_pool: SandboxPool, foreign: list[str], count_processes: Callable[[str], int], nap: str
) -> None:
    client = docker_client.connect()
    owner = kill_a_host("docker", nap)
    async with SandboxPool("docker") as pool:
        await pool._backend.start()
    assert _containers(client, owner) == []
    assert count_processes(nap) == 0
    left = {found["Id"] for found in client.containers(all=True)}
    assert left.issuperset(foreign)


async def test_a_killed_run_leaves_no_mount_and_its_groups_are_removed(
    layered_pool: SandboxPool, cache: Path, count_processes: Callable[[str], int], nap: str
) -> None:
    backend = "apptainer" if isinstance(layered_pool._backend, ApptainerBackend) else "overlay"
    owner = kill_a_host(backend, nap)
    wait_for(lambda: not count_processes(f"sleep\0{nap}"), "the end of its commands")
    assert "slime-swe" not in Path("/proc/self/mounts").read_text()  # the source of each of our mounts
    scratch = cache / "slime-swe" / "sandbox" / "scratch"
    for name in (owner, process_identity()):
        (scratch / name / "1" / "work").mkdir(parents=True)
        (scratch / name / "1" / "work").chmod(0)
    async with SandboxPool(backend) as pool:
        await pool._backend.start()
        assert [folder.name for folder in scratch.iterdir()] == [process_identity()]
    remove_tree(scratch)
    groups = [folder for parent in cgroups._parents() for folder in parent.glob(f"{cgroups.PREFIX}*")]
    assert not [folder for folder in groups if owner in folder.name]
    async with layered_pool.open({}) as sandbox:
        assert (await sandbox.exec("echo alive")).output == "alive\n"


def test_another_user_s_groups_are_left_to_that_user_at_once(nobody: Nobody) -> None:
    groups = [parent / f"{cgroups.PREFIX}{changed(started='1')}" for parent in cgroups._parents()]
    try:
        for group in groups:
            group.mkdir()
        script = "import time; time.sleep = None\n"  # what would wait for a release fails
        script += "from slime_swe.sandbox.overlay.cgroups import sweep; sweep()"
        assert nobody.run(script).returncode == 0
        assert all(group.exists() for group in groups)
    finally:
        for group in groups:
            group.rmdir()


def changed(**parts: str) -> str:
    """This process's identity, but for some of its parts."""
    names = ("machine", "boot", "namespace", "pid", "started")
    return "_".join((dict(zip(names, process_identity().split("_"), strict=True)) | parts).values())


def test_an_owner_is_dead_only_where_that_is_known() -> None:
    assert not is_dead(process_identity())
    assert is_dead(changed(started="1"))
    assert is_dead(changed(boot="another", pid="1", started="1"))
    assert not is_dead(changed(machine="another", boot="another", pid="1", started="1"))
    assert not is_dead(changed(namespace="another", pid="1", started="1"))
    for text in ("", "a_b_c_d_e", "a_b_c_1", "a_b_c_1_2_3"):
        assert not is_dead(text)
