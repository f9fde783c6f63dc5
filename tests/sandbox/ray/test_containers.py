"""`ray:docker` and `ray:apptainer`: containers on a node, and what is left of them when it dies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from slime_swe.launch.doctor import Machine
from slime_swe.launch.doctor.recipe import check_sandbox
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.cache import is_dead
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.docker.client import OWNER_LABEL
from tests.recipes.changes import variant
from tests.sandbox.conftest import POOLS
from tests.sandbox.ray.cluster import RayNodes, place, until_up
from tests.waiting import until

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.extended("tests/sandbox/ray/test_nodes.py::test_one_of_three_nodes_is_killed_under_its_episodes"),
]


@pytest.fixture(params=["docker", "apptainer"])
def backend(request: pytest.FixtureRequest, ray_nodes: RayNodes) -> str:
    """One that works here."""
    request.getfixturevalue(POOLS[request.param])
    return f"ray:{request.param}"


async def test_a_node_s_death_is_an_error_of_its_own_sandboxes_alone(backend: str, ray_nodes: RayNodes) -> None:
    third = ray_nodes.add()
    async with SandboxPool(backend) as pool, AsyncExitStack() as stack:
        await until_up(pool, 3)
        opened = [await stack.enter_async_context(pool.open({"a": "b\n"})) for _ in range(3)]
        assert len(set(map(place, opened))) == 3
        for one in opened:
            assert (await one.exec("echo c >> a; cat a")).output == "b\nc\n"
            assert "+c" in await one.diff()
        (lost,) = (one for one in opened if place(one) == third.node_id)
        running = asyncio.create_task(lost.exec("sleep 1000", timeout=2000))
        await asyncio.sleep(0.5)
        ray_nodes.kill(third)
        with pytest.raises(SandboxError, match="are lost"):
            await running
        for one in opened:
            if one is not lost:
                assert (await one.exec("cat a")).output == "b\nc\n"
    ray_nodes.wait_for_death(third)


def test_the_doctor_opens_one_of_this_machine(backend: str) -> None:
    found = {
        one.check: one.status.value for one in check_sandbox(variant("tiny_cpu", rollout__sandbox=backend), Machine())
    }
    assert found.pop("nodes") == "skipped"
    assert {"Ray", backend.removeprefix("ray:"), "sandbox"} <= set(found) and set(found.values()) == {"ok"}


Owned = Callable[[], dict[str, list[str]]]


@pytest.fixture
def owned(docker_pool: SandboxPool) -> Owned:
    """The containers on this machine, by the label of their owner."""

    def find() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in docker_client.connect().containers(all=True, filters={"label": OWNER_LABEL}):
            found.setdefault(one["Labels"][OWNER_LABEL], []).append(one["Id"])
        return found

    before = set(find())
    return lambda: {owner: containers for owner, containers in find().items() if owner not in before}


@pytest.fixture
def foreign(docker_pool: SandboxPool) -> Iterator[str]:
    """A container that is nobody's of ours."""
    client = docker_client.connect()
    made = str(client.create_container(client.images("slime-swe/host")[0]["Id"], command=["true"])["Id"])
    yield made
    with contextlib.suppress(docker_client.not_found()):
        client.remove_container(made, force=True)


async def test_the_next_start_on_a_dead_node_s_machine_removes_its_containers_alone(
    ray_nodes: RayNodes, owned: Owned, foreign: str
) -> None:
    third = ray_nodes.add()
    async with SandboxPool("ray:docker") as pool, AsyncExitStack() as stack:
        await until_up(pool, 3)
        opened = [await stack.enter_async_context(pool.open({"a": "b\n"})) for _ in range(3)]
        assert len(owned()) == 3
        ray_nodes.kill(third)
        await until(lambda: any(map(is_dead, owned())), "the end of what has its containers")
        dead = [owner for owner in owned() if is_dead(owner)]
        await until_up(pool, 2)
        assert len(dead) == 1 and owned()[dead[0]]  # Docker's daemon has them still
        client = docker_client.connect()
        await until(
            lambda: not any(client.inspect_container(one)["State"]["Running"] for one in owned()[dead[0]]),
            "the end of its containers",
        )
        alive = {owner: set(containers) for owner, containers in owned().items() if owner not in dead}
        again = ray_nodes.add()  # on the same machine
        await until_up(pool, 3)
        assert dead[0] not in owned()
        for owner, containers in alive.items():
            assert containers & set(owned()[owner])
        assert docker_client.connect().inspect_container(foreign)
        for one in opened:
            if place(one) != third.node_id:
                assert (await one.exec("cat a")).output == "b\n"
    assert owned() == {}
    ray_nodes.remove(again)
