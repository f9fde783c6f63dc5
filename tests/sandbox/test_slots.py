"""How many sandboxes of a pool are open, on a machine whose pressures are files of the test."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar

import pytest

from slime_swe.errors import UserError
from slime_swe.rollout.loop_scope import close_loop_scope, sandboxes_for
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sandbox import pool as slots
from slime_swe.sandbox.base import Backend, Sandbox, SandboxSpec
from slime_swe.sandbox.local import BubblewrapBackend, LocalSandbox
from slime_swe.sandbox.pool import SandboxPool, Slots, read_pressure
from tests.rollout.support import make_args
from tests.sandbox.conftest import POOLS, of
from tests.waiting import until

_REST = "avg60=0.00 avg300=0.00 total=0\n"


class Machine:
    """Its pressures, as Linux writes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.set()

    def set(self, *, cpu: float = 0.0, memory: float = 0.0) -> None:
        for name, per_cent in (("cpu", cpu), ("memory", memory)):
            half = self.folder / "half"
            half.write_text(f"some avg10={per_cent:.2f} {_REST}full avg10=0.00 {_REST}")
            half.rename(self.folder / name)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The one that the backends are on, looked at often."""
    monkeypatch.setattr(slots, "SECONDS", 0.01)
    monkeypatch.setattr(Backend, "pressure", tmp_path)
    return Machine(tmp_path)


class Crowd:
    """Holds sandboxes of a pool, the first ones that came, and lets them go."""

    def __init__(self, pool: SandboxPool) -> None:
        self.pool = pool
        self.waiting: list[asyncio.Task[Sandbox]] = []
        self.open: list[tuple[AsyncExitStack, Sandbox]] = []

    def come(self, count: int) -> None:
        self.waiting += [asyncio.create_task(self._enter()) for _ in range(count)]

    async def _enter(self) -> Sandbox:
        stack = AsyncExitStack()
        sandbox = await stack.enter_async_context(self.pool.open({"a": "b"}))
        self.open.append((stack, sandbox))
        return sandbox

    async def leave(self, count: int) -> None:
        for _ in range(count):
            await self.open.pop(0)[0].aclose()

    async def until_open(self, count: int) -> None:
        await until(lambda: len(self.open) >= count, f"{count} are open")

    async def until_limit(self, limit: int) -> None:
        await until(lambda: self.pool.slots.limit == limit, f"a limit of {limit}")


@pytest.fixture(params=of("bubblewrap", "overlay"))
def backend(request: pytest.FixtureRequest) -> str:
    """One that works here."""
    request.getfixturevalue(POOLS[request.param])
    return str(request.param)


async def test_where_memory_is_short_fewer_are_open_and_none_is_ended(
    machine: Machine, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    threads, tasks = threading.active_count(), len(asyncio.all_tasks())
    async with SandboxPool(backend, concurrency=8, least=3) as pool:
        crowd = Crowd(pool)
        crowd.come(8)
        await crowd.until_open(8)
        machine.set(memory=40.0)
        crowd.come(8)
        await crowd.until_limit(6)
        assert "6 at once from now on, 8 before, 8 were open" in caplog.text and "40 % for memory" in caplog.text
        for _, sandbox in crowd.open:
            assert (await sandbox.exec("cat a")).output == "b"
        await crowd.leave(2)
        await crowd.until_limit(4)  # it still is
        await crowd.leave(2)
        await crowd.until_limit(3)
        await asyncio.sleep(0.2)
        assert pool.slots.limit == 3 and pool.slots.in_use == 4 == len(crowd.open)
        await crowd.leave(2)  # one that was too many, and one in whose place another comes
        await crowd.until_open(3)
        machine.set(memory=5.0)
        await crowd.until_open(8)
        await crowd.leave(8)
        await crowd.until_open(2)
        await crowd.leave(2)
        assert all(task.done() for task in crowd.waiting)
        assert pool.slots.in_use == 0
    assert (threading.active_count(), len(asyncio.all_tasks())) <= (threads + 1, tasks)


class Late(BubblewrapBackend):
    """Its sandboxes open as late as the test says."""

    seconds: ClassVar = 0.0

    def open(self, spec: SandboxSpec) -> LocalSandbox:
        assert self._server is not None
        return LateSandbox(self._server, spec)


class LateSandbox(LocalSandbox):
    async def _enter(self) -> None:
        await asyncio.sleep(Late.seconds)
        await super()._enter()


async def test_where_processors_are_short_and_sandboxes_open_slowly_fewer_are_open(
    contained_pool: SandboxPool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SandboxPool(f"{__name__}.Late", concurrency=4, least=1) as pool:
        crowd = Crowd(pool)
        crowd.come(4)
        await crowd.until_open(4)
        machine.set(cpu=90.0)
        monkeypatch.setattr(Late, "seconds", 1.5)
        await crowd.leave(1)
        crowd.come(2)  # one opens, and one waits and looks
        await crowd.until_limit(3)
        machine.set()
        await crowd.until_open(4)
        await crowd.leave(1)
        await crowd.until_open(4)
        await crowd.leave(4)


@pytest.mark.parametrize("text", [None, "", "some avg10=", "Operation not supported"])
async def test_where_the_kernel_tells_no_pressure_the_limit_stays(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        for name in ("cpu", "memory"):
            (tmp_path / name).write_text(text)
    found = Slots(4, 1, tmp_path)
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(found.slot())
        assert found.look() == 4


@pytest.mark.parametrize("least", [0, 9])
def test_bounds_that_cross_are_refused(least: int) -> None:
    with pytest.raises(UserError, match="must be 1 to concurrency=8"):
        SandboxPool("local", concurrency=8, least=least)


@pytest.mark.parametrize("backend", ["ray:bubblewrap", "remote:modal"])
def test_this_machine_s_pressure_is_no_matter_of_sandboxes_elsewhere(machine: Machine, backend: str) -> None:
    machine.set(cpu=90.0, memory=90.0)
    assert SandboxPool(backend, concurrency=8, least=1).slots.look() == 8
    assert SandboxPool("local", concurrency=8, least=1).slots.look() == 1


async def test_a_run_s_sandboxes_adapt_down_to_a_quarter(machine: Machine) -> None:
    machine.set(memory=90.0)
    args = make_args("no checkpoint", "http://127.0.0.1:1", machine.folder, swe_sandbox_concurrency=10)
    used = await sandboxes_for(RolloutSettings.from_args(args))
    assert isinstance(used, SandboxPool)
    assert used.slots.look() == 3
    await close_loop_scope()


def test_linux_tells_pressures_in_this_form() -> None:
    if (found := read_pressure(Backend.pressure)) is None:
        pytest.skip("this kernel tells none")
    assert all(0 <= share <= 1 for share in found)


async def test_slots_are_given_in_order_of_arrival_and_who_is_cancelled_leaves_none_behind() -> None:
    found, order = Slots(2), []
    go_on = asyncio.Event()

    async def use(number: int) -> None:
        async with found.slot():
            order.append(number)
            await go_on.wait()

    users = [asyncio.create_task(use(number)) for number in range(8)]
    await asyncio.sleep(0.01)
    assert order == [0, 1]
    for number in (2, 3, 5):  # the one that is first in line among them
        users[number].cancel()
    users[0].cancel()
    await asyncio.sleep(0.01)
    assert order == [0, 1, 4]
    go_on.set()
    await asyncio.gather(*users, return_exceptions=True)
    assert order == [0, 1, 4, 6, 7]
    assert found.in_use == 0


async def test_what_sandboxes_give_is_the_same_under_any_limit(contained_pool: SandboxPool, machine: Machine) -> None:
    found = []
    for memory in (0.0, 90.0):
        machine.set(memory=memory)
        async with SandboxPool("bubblewrap", concurrency=12, least=1) as pool:
            most = 0

            async def episode(number: int, pool: SandboxPool = pool) -> tuple[str, str]:
                nonlocal most
                async with pool.open({"calc.py": f"x = {number}\n"}) as sandbox:
                    most = max(most, pool.slots.in_use)
                    done = await sandbox.exec(f"echo y = {number} >> calc.py; cat calc.py; ls")
                    return done.output, await sandbox.diff()

            found.append(await asyncio.gather(*(episode(number) for number in range(12))))
        assert most == (1 if memory else 12)
    assert found[0] == found[1]
