"""The parts of `ray:BACKEND` that need no Ray: one node's sandboxes, its ports, its layers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.plan import Assumptions
from slime_swe.launch.plan.admission import sandbox_nodes, sandboxes_at_once
from slime_swe.launch.plan.images import task_images
from slime_swe.recipes.checks import violations
from slime_swe.sandbox.base import Backend, Limits, SandboxError
from slime_swe.sandbox.local import LocalBackend
from slime_swe.sandbox.pool import make_backend, names_that, on_one_machine
from slime_swe.sandbox.ray import actor
from slime_swe.sandbox.ray.actor import NodeSandboxes
from slime_swe.sandbox.ray.ports import MAX_CONNECTIONS, DriverPorts, NodePorts
from tests.recipes.changes import variant
from tests.sandbox.test_slots import Machine
from tests.waiting import until


class Unprotected(LocalBackend):
    async def start(self) -> None:
        warnings.warn("no isolation here.", RuntimeWarning, stacklevel=1)
        await super().start()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ray", "which one"),
        ("ray:remote:modal", "nothing on"),
        ("ray:ray:local", "nothing on"),
        ("ray:lokal", "did you mean 'local'"),
    ],
)
def test_it_takes_the_backends_of_one_machine(name: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        make_backend(name)


def test_it_can_do_what_the_other_backend_can() -> None:
    for inner in ("local", "subprocess", "overlay", "docker", "docker:python:3.12", "apptainer"):
        ours, other = make_backend(f"ray:{inner}"), make_backend(inner)
        assert (ours.takes_images, ours.takes_layers) == (other.takes_images, other.takes_layers)
        assert [need.name for need in ours.requirements] == ["Ray", *(need.name for need in other.requirements)]
        assert list(ours.fingerprint()) == list(other.fingerprint())
        assert on_one_machine(f"ray:{inner}") == on_one_machine(inner) == inner
    assert "ray" not in names_that("takes_layers")
    assert make_backend("ray:local").isolates == "always"
    assert make_backend("ray:subprocess").isolates == "never"


@pytest.mark.parametrize("inner", ["docker", "apptainer:/images/one.sif"])
def test_recipes_take_containers_on_all_nodes_and_the_planner_counts_them(inner: str) -> None:
    recipe = variant("qwen25_coder_32b", rollout__sandbox=f"ray:{inner}")
    assert violations(recipe) == []
    assert task_images(recipe, Assumptions())
    assert sandbox_nodes(recipe) == recipe.cluster.nodes > 1
    assert sandboxes_at_once(recipe) == 2 * recipe.cluster.nodes * recipe.cluster.cpus_per_node
    serving = variant("qwen3_coder_30b_a3b_async", rollout__sandbox=f"ray:{inner}")
    assert sandbox_nodes(serving) == 4, "two that train, and two that serve"
    assert sandboxes_at_once(variant("qwen3_coder_30b_a3b_async", rollout__sandbox_concurrency=7)) == 7


async def test_a_node_that_would_go_on_without_isolation_is_refused() -> None:
    node = NodeSandboxes(f"{__name__}.Unprotected", 1, 1)
    with pytest.raises(UserError, match=r"no isolation here\. On other machines nobody would see it"):
        await node.start()
    await node.close()


def test_a_node_keeps_its_own_disk_from_filling_up() -> None:
    with pytest.raises(UserError, match="bubblewrap sandboxes remove no images"):
        NodeSandboxes("bubblewrap", 1, 1, keep_free=10)
    assert NodeSandboxes("docker", 1, 1, keep_free=10)._pool._backend.keep_free == 10
    assert make_backend("ray:docker").removes_images and not make_backend("ray:bubblewrap").removes_images


async def test_calls_in_any_order_leave_no_sandbox(
    contained_pool: object, count_processes: Callable[[str], int], nap: str
) -> None:
    node = NodeSandboxes("bubblewrap", 4, 4)
    numbers = itertools.count()

    async def ask(method: str, *args: object) -> object:
        return await node.call(next(numbers), method, *args)

    assert not isinstance(await ask("start"), Exception)
    assert await ask("leave", 1) is None  # as when a cancelled opening's end comes before it
    assert isinstance(await ask("open", 1, {}, Limits(), None, ()), SandboxError)
    opening = asyncio.create_task(ask("open", 2, {}, Limits(), None, ()))
    await asyncio.sleep(0)
    assert await ask("leave", 2) is None
    assert isinstance(await opening, SandboxError)
    assert await ask("open", 3, {"a": b"b"}, Limits(), None, ()) is None
    running = asyncio.create_task(ask("exec", 3, f"sleep {nap}", None))
    await until(lambda: count_processes(f"sleep\0{nap}"), "the command")
    assert await ask("close") is None
    assert count_processes(f"sleep\0{nap}") == 0
    assert isinstance(await running, SandboxError)
    assert isinstance(await ask("exec", 3, "true", None), SandboxError)
    assert isinstance(await ask("read_file", 3, "a"), SandboxError)


async def test_a_cancelled_call_ends_whether_it_has_begun_or_not(
    contained_pool: object, count_processes: Callable[[str], int], nap: str
) -> None:
    node = NodeSandboxes("bubblewrap", 4, 4)
    await node.start()
    await node.open(1, {}, Limits(), None, ())
    await node.cancel(2)  # its end comes before it
    answer = await node.call(2, "exec", 1, f"touch ran; sleep {nap}", None)
    assert isinstance(answer, SandboxError) and "before it began" in str(answer)
    running = asyncio.create_task(node.call(3, "exec", 1, f"sleep {nap}", None))
    await until(lambda: count_processes(f"sleep\0{nap}"), "the command")
    await node.cancel(3)
    assert str(await running) == "the call was cancelled"
    await node.cancel(3)  # it has ended
    assert (await node.call(4, "exec", 1, "ls", None)).output == ""
    assert count_processes(f"sleep\0{nap}") == 0
    await node.close()


@asynccontextmanager
async def far_port() -> AsyncIterator[tuple[DriverPorts, NodePorts, int]]:
    """Both ends of a sandbox's ports, without the sandbox or Ray: its loopback is this machine's."""
    far = NodePorts()

    async def call(method: str, *args: object) -> object:
        return await getattr(far, method)(*args)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        number = listening.getsockname()[1]
        far.add(number, listening)
        near = DriverPorts(call)
        yield near, far, number
        await near.close()
        far.close()


async def test_a_server_of_this_process_answers_there() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read()  # until the client has sent all
        writer.write(asked[::-1])
        await writer.drain()
        writer.close()

    async def ask(number: int, text: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(text)
        writer.write_eof()
        answered = await reader.read()
        writer.close()
        return answered

    async with far_port() as (near, _, number):
        given = near.give(number)
        assert given.getsockname() == ("127.0.0.1", number)
        async with await asyncio.start_server(answer, sock=given):
            texts = [bytes([one]) * (1 << 18) + b"end" for one in range(2 * MAX_CONNECTIONS)]
            answered = await asyncio.gather(*(ask(number, text) for text in texts))
        assert answered == [text[::-1] for text in texts]
        await near.closed()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", number), timeout=2)


async def test_a_connection_that_the_server_drops_is_dropped_there() -> None:
    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with far_port() as (near, far, number), await asyncio.start_server(drop, sock=near.give(number)):
        for _ in range(2 * MAX_CONNECTIONS):  # they don't hold a place for ever
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            assert await reader.read() == b""
            writer.close()
        await until(lambda: not far._connections, "the end of the connections")


async def test_what_is_left_of_ports_is_nothing() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    async with far_port() as (near, _, number):
        given = near.give(number)
        waiting = [await asyncio.open_connection("127.0.0.1", number) for _ in range(4)]
        await asyncio.sleep(0.1)
    assert given.fileno() == -1
    for reader, writer in waiting:
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_layer_s_copy_is_the_layer(cache: Path, tmp_path: Path) -> None:
    program = tmp_path / "opt/tool/bin/run"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o750)
    (tmp_path / "opt/tool/current").symlink_to("/opt/tool/bin")
    wanted = actor.identity(tmp_path)
    assert actor.find(tmp_path, wanted) == tmp_path  # a file system that the node shares
    assert actor.find(tmp_path / "elsewhere", wanted) is None
    copy = actor.unpack(wanted, actor.pack(tmp_path))
    assert (copy / "opt/tool/bin/run").read_text() == "#!/bin/sh\n"
    assert (copy / "opt/tool/bin/run").stat().st_mode & 0o777 == 0o750
    assert os.readlink(copy / "opt/tool/current") == "/opt/tool/bin"
    program.write_text("#!/bin/no\n")  # as many bytes, at another time
    assert actor.identity(tmp_path) != wanted
    assert actor.find(tmp_path / "elsewhere", wanted) == copy


async def test_a_node_says_how_many_sandboxes_it_bears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path)
    monkeypatch.setattr(Backend, "pressure", tmp_path)
    node = NodeSandboxes("subprocess", 8, 2)
    assert await node.ping() == 8
    machine.set(memory=50.0)
    monkeypatch.setattr("slime_swe.sandbox.pool.SECONDS", 0.0)
    assert await node.ping() == 2
    await node.close()
