"""What only the Docker backend does: warm containers."""

from __future__ import annotations

import asyncio

import pytest

from slime_swe.patches import OVERSIZED
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.docker import container
from slime_swe.sandbox.docker.backend import CAPABILITIES, WarmPool
from slime_swe.sandbox.pool import SandboxPool


@pytest.mark.extended("tests/rewards/redteam/test_gate.py::test_docker_holds_against_what_looks_around_and_uses_it_up")
async def test_a_container_has_its_limits_and_little_else(docker_pool: SandboxPool) -> None:
    async with docker_pool.open({}) as sandbox:
        found = docker_client.connect().inspect_container(sandbox._id)  # type: ignore[attr-defined]
    host = found["HostConfig"]
    assert (host["NetworkMode"], host["Privileged"], host["Binds"]) == ("none", False, None)
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (256 << 20, 256 << 20, 25)
    assert (host["CapDrop"], host["CapAdd"]) == (["ALL"], list(CAPABILITIES))
    assert host["LogConfig"]["Type"] == "none"
    no_more, profile = host["SecurityOpt"]
    assert no_more == "no-new-privileges" and profile.startswith('seccomp={"defaultAction": "SCMP_ACT_TRACE"')


@pytest.mark.extended("tests/sandbox/test_docker.py::test_what_is_taken_is_made_again_and_what_is_not_asked_for_goes")
async def test_a_warm_container_is_as_good_as_new(docker_pool: SandboxPool) -> None:
    for number in range(3):
        async with docker_pool.open({"a": f"{number}\n"}) as sandbox:
            assert (await sandbox.exec("cat a; ls; ls /tmp; touch /tmp/mine")).output == f"{number}\na\n"
        await asyncio.sleep(0.5)  # for a spare one to be made
    assert docker_pool._backend._warm._ready  # type: ignore[attr-defined]


@pytest.mark.extended("tests/rewards/redteam/test_gate.py::test_docker_holds_against_what_looks_around_and_uses_it_up")
async def test_a_repository_of_too_many_bytes_is_an_oversized_patch(
    docker_pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with docker_pool.open({}) as sandbox:
        await sandbox.exec("mkdir node_modules; truncate -s 3M node_modules/a; touch b c")
        assert await sandbox.diff() != OVERSIZED
        monkeypatch.setattr(container, "_MOST_BYTES", 2 << 20)
        assert await sandbox.diff() == OVERSIZED


class Things:
    """Counts what is made and discarded."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.discarded: list[str] = []

    async def make(self, kind: str) -> str:
        await asyncio.sleep(0.01)
        self.made.append(kind)
        return kind

    async def discard(self, thing: str) -> None:
        self.discarded.append(thing)


async def test_what_is_taken_is_made_again_and_what_is_not_asked_for_goes() -> None:
    things = Things()
    warm: WarmPool[str, str] = WarmPool(2, things.discard)
    for kind in "aaab":
        assert await warm.take(kind, lambda kind=kind: things.make(kind)) == kind  # type: ignore[misc]
        await asyncio.sleep(0.05)
    assert things.made.count("a") == 4
    assert things.discarded == []
    await warm.take("c", lambda: things.make("c"))
    await asyncio.sleep(0.05)
    assert things.discarded == ["a"]
    await warm.close()
    assert sorted(things.discarded) == ["a", "b", "c"]
    assert sorted(things.made) == ["a"] * 4 + ["b"] * 2 + ["c"] * 2


async def test_what_is_taken_rests_before_it_is_made_again() -> None:
    things = Things()
    warm: WarmPool[str, str] = WarmPool(2, things.discard, rest=10_000.0)
    await warm.take("a", lambda: things.make("a"))
    await asyncio.sleep(0.05)
    assert things.made == ["a"]
    await warm.close()
    assert things.made == ["a"] and things.discarded == []


async def test_what_is_made_for_nobody_is_discarded() -> None:
    things = Things()
    warm: WarmPool[str, str] = WarmPool(0, things.discard)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await warm.take("a", lambda: things.make("a"))
    await warm.close()
    assert things.made == things.discarded == ["a"]


def test_without_a_daemon_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    with pytest.raises(RuntimeError, match=r"no Docker daemon answers \(sudo systemctl start docker"):
        docker_client.connect.__wrapped__()
