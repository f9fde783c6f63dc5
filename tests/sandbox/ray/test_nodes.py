"""`ray:BACKEND` on a real Ray cluster of several nodes: joining, waiting, dying."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from aiohttp import web

from slime_swe.errors import UserError
from slime_swe.launch.ray.processes import running_ray
from slime_swe.patches import apply_patch
from slime_swe.rollout import slime_plugin
from slime_swe.rollout.agents.toy_task import toy_task
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.episode import StopReason
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.loop_scope import close_loop_scope, sandboxes_for
from slime_swe.rollout.play import Play, Player, run_episode
from slime_swe.rollout.scripted import by_content, scripted_engine, serve
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sample import Sample
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.local import BubblewrapBackend
from slime_swe.sandbox.ray import actor as layers
from slime_swe.sandbox.ray.backend import RayBackend
from tests.rollout.agents.tiny_agent import TinyAgent
from tests.rollout.support import END, FIX, PARAMS, SUBMIT, VIEW, make_args, make_sample, no_reward
from tests.sandbox.conftest import POOLS
from tests.sandbox.ray.cluster import CPUS, RayNodes, place, until_up
from tests.sandbox.test_slots import Machine
from tests.waiting import until, wait_for

if TYPE_CHECKING:
    from slime_swe.sandbox.ray.nodes import Node  # imports Ray

REPOSITORY = Path(__file__).parents[3]
Counts = Callable[[str], int]
Actors = Callable[[], list[int]]
SILENCE = 8.0  # seconds; an actor that lives answers within one, and within some on a busy machine

NODES = pytest.mark.extended("Ray nodes")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.slow, pytest.mark.timeout(600)]


def tight() -> RayBackend:
    """Two sandboxes a node."""
    return RayBackend("bubblewrap", per_cpu=2 / CPUS)


def impatient() -> RayBackend:
    """A short wait for an actor that is silent."""
    return RayBackend("bubblewrap", silence=SILENCE)


def steady() -> RayBackend:
    """As many sandboxes under any pressure."""
    return RayBackend("bubblewrap", least_per_cpu=8.0)


class Pressed(BubblewrapBackend):
    """On a machine whose pressures are files of the test, where it is told of these."""

    def __init__(self) -> None:
        super().__init__()
        self.pressure = Path(os.environ["PRESSURE_OF_NODE"]) if "PRESSURE_OF_NODE" in os.environ else None


def eight_to_two() -> RayBackend:
    return RayBackend(f"{__name__}.Pressed", per_cpu=8 / CPUS, least_per_cpu=2 / CPUS)


class Kind(BubblewrapBackend):
    """What confines differs between nodes with different environments."""

    def fingerprint(self) -> Iterator[str]:
        yield os.environ.get("KIND_OF_NODE", "usual")


@pytest_asyncio.fixture(loop_scope="session")
async def pool(contained_pool: SandboxPool, ray_nodes: RayNodes) -> AsyncIterator[SandboxPool]:
    async with SandboxPool("ray:bubblewrap", concurrency=64) as pool:
        yield pool


@pytest.fixture
def new_actors(ray_nodes: RayNodes, cache: Path) -> Actors:
    """Processes of `NodeSandboxes` on this test run's cluster that were not there before the test."""

    def find() -> list[int]:
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if folder.name.isdigit() and (folder / "cmdline").read_bytes().startswith(b"ray::NodeSandboxes"):
                    found += [int(folder.name)] if str(cache).encode() in (folder / "environ").read_bytes() else []
        return found

    before = find()
    return lambda: [pid for pid in find() if pid not in before]


def nodes_of(pool: SandboxPool) -> list[Node]:
    """Those that it takes sandboxes of, each with its actor: another actor is another `Node`."""
    up: list[Node] = pool._backend._nodes._up()  # type: ignore[attr-defined]
    return up


async def until_lost(nodes: list[Node]) -> None:
    """Where it is not known yet, opening takes a node whose actor has gone, and raises."""
    await until(lambda: not any(node.is_up for node in nodes), "it is known that they are lost")


ALONE = """
import asyncio
from slime_swe.sandbox import SandboxPool
asyncio.run(SandboxPool("ray:local").start())
"""


def test_without_a_cluster_there_are_none() -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'slime-swe[cluster]'")
    if running_ray():
        pytest.skip("another Ray runs on this machine")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["PYTHONPATH"] = f"{REPOSITORY}/src"
    done = subprocess.run([sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, timeout=60)
    assert "UserError: ray sandboxes run on a Ray cluster, and none was found" in done.stderr


async def test_sandboxes_are_spread_and_large_files_are_sent_once(pool: SandboxPool) -> None:
    await until_up(pool, 2)
    seen: Counter[str] = Counter()
    twelve = asyncio.Barrier(12)
    files = {"large.txt": "x" * 300_000, "small.txt": "y"}

    async def episode() -> None:
        async with pool.open(files) as sandbox:
            seen[place(sandbox)] += 1
            await twelve.wait()
            assert (await sandbox.exec("wc -c large.txt; nice")).output == "300000 large.txt\n15\n"

    await asyncio.gather(*(episode() for _ in range(12)))
    assert sorted(seen.values()) == [6, 6]
    assert len(pool._backend._nodes._sent) == 1  # type: ignore[attr-defined]


@pytest.mark.extended("tests/sandbox/ray/test_parts.py::test_calls_in_any_order_leave_no_sandbox")
async def test_a_cancelled_command_ends_there_and_the_sandbox_is_of_use(
    pool: SandboxPool, count_processes: Counts, nap: str
) -> None:
    async with pool.open({}) as sandbox:
        for number in range(40):
            running = asyncio.create_task(sandbox.exec(f"echo {number} > last; sleep {nap}", timeout=300))
            await asyncio.sleep(0.002 * (number % 10))
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert (await asyncio.wait_for(sandbox.exec("echo ok"), 30)).output == "ok\n"
            assert count_processes(f"sleep\0{nap}") == 0


@pytest.mark.extended("tests/sandbox/ray/test_parts.py::test_a_layer_s_copy_is_the_layer")
async def test_what_a_node_lacks_of_a_layer_is_sent_to_it(
    overlay_pool: SandboxPool, ray_nodes: RayNodes, tmp_path: Path
) -> None:
    import ray

    program = tmp_path / "opt/tool/bin/run"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho the tool\n")
    program.chmod(0o755)
    async with SandboxPool("ray:overlay") as pool:
        async with pool.open({}, layers=[tmp_path]) as sandbox:
            assert (await sandbox.exec("/opt/tool/bin/run")).output == "the tool\n"
            node = sandbox._node  # type: ignore[attr-defined]
        wanted = layers.identity(tmp_path)
        assert await node.call("find_layer", tmp_path / "elsewhere", wanted) is None
        copy = await node.call("add_layer", wanted, ray.put(layers.pack(tmp_path)))
        assert await node.call("find_layer", tmp_path / "elsewhere", wanted) == copy != tmp_path
        async with pool.open({}, layers=[copy]) as sandbox:
            assert (await sandbox.exec("/opt/tool/bin/run")).output == "the tool\n"


@pytest.fixture(params=["bubblewrap", *(pytest.param(name, marks=NODES) for name in ("docker", "apptainer"))])
def inner(request: pytest.FixtureRequest, ray_nodes: RayNodes) -> str:
    """A backend that works here."""
    request.getfixturevalue(POOLS[request.param])
    return str(request.param)


async def test_one_of_three_nodes_is_killed_under_its_episodes(
    inner: str, ray_nodes: RayNodes, run_with: Callable[..., Any]
) -> None:
    third, waiting, go_on = ray_nodes.add(), 0, asyncio.Event()
    sandbox, count = (f"{__name__}.steady", 24) if inner == "bubblewrap" else (f"ray:{inner}", 6)
    settings = {
        **{"swe_sandbox": sandbox, "swe_sandbox_concurrency": 64},
        **{"swe_max_attempts": 3, "sglang_server_concurrency": count},
    }
    async with run_with(VIEW, FIX, SUBMIT, swe_time_budget=120, **settings) as (args, engine):

        async def handle(request: web.Request) -> web.StreamResponse:
            nonlocal waiting
            waiting += 1
            await go_on.wait()
            answer: web.StreamResponse = await engine.handle(request)
            return answer

        async with serve(handle) as url:
            args.sglang_router_port = urlsplit(url).port
            used = await sandboxes_for(RolloutSettings.from_args(args))
            await until_up(used, 3)
            player = Player(args, RolloutHooks(slime_plugin.generate, no_reward, None))
            episodes = [
                asyncio.create_task(player.play(Play(make_sample(number)), PARAMS, evaluation=False))
                for number in range(count)
            ]
            await until(
                lambda: waiting >= count or any(map(asyncio.Task.done, episodes)), "all are in their first turn"
            )
            assert not any(map(asyncio.Task.done, episodes))
            ray_nodes.kill(third)
            await until_up(used, 2)  # its processes may outlive it for as long as these episodes take
            go_on.set()
            samples = await asyncio.gather(*episodes)
    await close_loop_scope()
    ray_nodes.wait_for_death(third)
    assert waiting >= count * 3 + count // 3  # as many were played again
    assert Counter(sample.status for sample in samples) == {Sample.Status.COMPLETED: count}
    assert all(sample.metadata["episode"]["stop_reason"] == "submitted" for sample in samples)
    assert all("infrastructure" not in sample.metadata for sample in samples)


@pytest.mark.extended("tests/sandbox/ray/test_parts.py::test_a_server_of_this_process_answers_there")
async def test_an_agent_that_is_a_program_there_calls_its_model_here(
    overlay_pool: SandboxPool, ray_nodes: RayNodes, tokenizer: Any, checkpoint: str, tmp_path: Path
) -> None:
    task, turns = toy_task(), [turn + END for turn in TinyAgent.check_script]
    async with scripted_engine(tokenizer, by_content(*turns)) as engine, SandboxPool("ray:overlay") as pool:
        args = make_args(checkpoint, engine.url, tmp_path, swe_system_prompt="", rollout_max_context_len=400_000)
        settings = RolloutSettings.from_args(args)
        async with TinyAgent.open(settings) as agent:
            sampling = Sampling({**PARAMS, "max_new_tokens": 2000})
            played = (run_episode(agent, task, pool, sampling, time_budget=300) for _ in range(8))
            episodes = await asyncio.gather(*played)
    for episode in episodes:
        assert episode.stop_reason is StopReason.SUBMITTED, episode.detail
        assert b"a + b" in apply_patch(task.workspace.files, episode.patch)["calc.py"]


@pytest.mark.extended("tests/sandbox/ray/test_parts.py::test_a_node_says_how_many_sandboxes_it_bears")
async def test_opening_waits_for_room_in_order_and_a_node_that_joins_has_some(
    contained_pool: SandboxPool, ray_nodes: RayNodes
) -> None:
    async with SandboxPool(f"{__name__}.tight", concurrency=64) as pool:
        await until_up(pool, 2)
        order: list[int] = []
        leave = [asyncio.Event() for _ in range(8)]

        async def episode(number: int) -> str:
            async with pool.open({}) as sandbox:
                order.append(number)
                await leave[number].wait()
                return place(sandbox)

        async def opened(count: int) -> None:
            await until(lambda: len(order) >= count, f"{count} sandboxes are open")

        episodes = [asyncio.create_task(episode(number)) for number in range(8)]
        await opened(4)
        await asyncio.sleep(0.3)
        assert sorted(order) == [0, 1, 2, 3]
        leave[order[0]].set()
        await opened(5)
        assert order[4] == 4
        added = ray_nodes.add()
        await opened(7)
        assert sorted(order) == [0, 1, 2, 3, 4, 5, 6]
        for one in leave:
            one.set()
        assert len(set(await asyncio.gather(*episodes))) == 3
    ray_nodes.remove(added)


@pytest.mark.extended("tests/sandbox/ray/test_nodes.py::test_one_of_three_nodes_is_killed_under_its_episodes")
async def test_an_actor_that_falls_silent_or_dies_is_replaced(
    contained_pool: SandboxPool, ray_nodes: RayNodes, new_actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slime_swe.sandbox.ray.nodes.RETRY_SECONDS", 1.0)
    async with SandboxPool(f"{__name__}.impatient", concurrency=64) as pool:
        await until_up(pool, 2)
        async with pool.open({}) as sandbox:
            time.sleep(SILENCE + 1)  # this process is silent, not the node
            await asyncio.sleep(1.5)
            assert (await sandbox.exec("echo ok")).output == "ok\n"
        both = nodes_of(pool)
        with pytest.raises(SandboxError, match="has not answered for 8 s"):
            async with pool.open({}) as sandbox:
                running = asyncio.create_task(sandbox.exec("sleep 1000", timeout=2000))
                await asyncio.sleep(0.2)
                silent = new_actors()
                for actor in silent:
                    os.kill(actor, signal.SIGSTOP)
                await running
        with pytest.raises(SandboxError, match="not open"):
            await sandbox.exec("true")
        await until_lost(both)
        await until_up(pool, 2)
        both = nodes_of(pool)
        async with pool.open({}) as sandbox:  # of a new actor
            assert (await sandbox.exec("echo again")).output == "again\n"
            await until(lambda: not set(new_actors()) & set(silent), "the silent ones' end")
            for actor in new_actors():
                os.kill(actor, signal.SIGKILL)  # as the kernel does where memory is short
            with pytest.raises(SandboxError, match="are lost: ActorDied"):
                await sandbox.exec("true")
        await until_lost(both)  # the other is pinged
        async with pool.open({}) as sandbox:
            assert (await sandbox.exec("echo again")).output == "again\n"


@pytest.mark.extended("tests/sandbox/ray/test_nodes.py::test_one_of_three_nodes_is_killed_under_its_episodes")
async def test_actors_that_die_while_nothing_is_open_are_replaced_and_a_late_node_has_its_share(
    contained_pool: SandboxPool, ray_nodes: RayNodes, new_actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slime_swe.sandbox.ray.nodes.RETRY_SECONDS", 1.0)
    async with SandboxPool(f"{__name__}.steady", concurrency=64) as pool:
        await until_up(pool, 2)
        dead = new_actors()
        for actor in dead:
            os.kill(actor, signal.SIGKILL)
        added = ray_nodes.add()
        await until(lambda: not set(new_actors()) & set(dead) and len(new_actors()) >= 3, "three new actors")
        await until_up(pool, 3)
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(pool.open({})) for _ in range(9)]
            assert sorted(Counter(map(place, opened)).values()) == [3, 3, 3]
            assert all([(await one.exec("echo ok")).output == "ok\n" for one in opened])
    ray_nodes.remove(added)


@pytest.mark.extended("tests/sandbox/ray/test_parts.py::test_a_node_says_how_many_sandboxes_it_bears")
async def test_a_node_under_pressure_takes_fewer_and_others_what_it_does_not(
    contained_pool: SandboxPool, ray_nodes: RayNodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path)
    async with SandboxPool(f"{__name__}.eight_to_two", concurrency=64) as pool:
        await until_up(pool, 2)
        added = ray_nodes.add(env_vars={"PRESSURE_OF_NODE": str(tmp_path)})
        await until_up(pool, 3)
        third = next(node for node in pool._backend._nodes._up() if node.id == added.node_id)  # type: ignore[attr-defined]

        async def until_room(room: int) -> None:
            await until(lambda: third.room == room, f"room for {room}")

        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(pool.open({})) for _ in range(24)]
            assert third.held == 8
            machine.set(memory=50.0)
            await until_room(6)
            assert f"node {third.name} bears fewer sandboxes: 6 at once" in caplog.text
            assert all([(await one.exec("echo ok")).output == "ok\n" for one in opened])
        await until_room(2)
        async with AsyncExitStack() as stack:
            opened = [await stack.enter_async_context(pool.open({})) for _ in range(18)]
            assert third.held == 2
            waiting = asyncio.create_task(stack.enter_async_context(pool.open({})))
            await asyncio.sleep(0.5)
            assert not waiting.done()
            machine.set()
            await until_room(3)
            assert place(await waiting) == third.id
    ray_nodes.remove(added)


@pytest.mark.extended("tests/sandbox/ray/test_parts.py::test_a_node_that_would_go_on_without_isolation_is_refused")
async def test_a_node_that_is_not_as_the_first_is_not_used(
    contained_pool: SandboxPool, ray_nodes: RayNodes, caplog: pytest.LogCaptureFixture
) -> None:
    async with SandboxPool(f"ray:{__name__}.Kind", concurrency=64) as pool:
        await until_up(pool, 2)
        added = [ray_nodes.add(num_cpus=0), ray_nodes.add(env_vars={"KIND_OF_NODE": "other"})]
        await until(
            lambda: "its sandboxes differ from the first node's: ('other',)" in caplog.text, "it is said of the other"
        )
        async with pool.open({}) as sandbox:
            assert (await sandbox.exec("echo ok")).output == "ok\n"
        assert len(nodes_of(pool)) == 2
        assert added[0].node_id not in pool._backend._nodes._nodes  # type: ignore[attr-defined]
    for node in added:
        ray_nodes.remove(node)


@pytest.mark.extended("tests/sandbox/ray/test_parts.py::test_it_takes_the_backends_of_one_machine")
async def test_a_backend_that_no_node_can_have_says_why(ray_nodes: RayNodes) -> None:
    with pytest.raises(UserError, match=r"no node of the Ray cluster can have \S+ sandboxes: .*nothing works here"):
        async with SandboxPool(f"ray:{__name__}.Nothing") as pool, pool.open({}):
            pass


class Nothing(BubblewrapBackend):
    async def start(self) -> None:
        raise UserError("nothing works here")


DRIVER = """
import asyncio, sys
from slime_swe.sandbox import SandboxPool

async def main():
    async with SandboxPool("ray:bubblewrap") as pool:
        async with pool.open({}) as first, pool.open({}) as second:
            command = f"setsid sleep {sys.argv[1]} & sleep {sys.argv[1]}"
            runs = [asyncio.create_task(one.exec(command, timeout=2000)) for one in (first, second)]
            print("running", flush=True)
            await asyncio.gather(*runs)

asyncio.run(main())
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=NODES)])
def test_nothing_outlives_a_killed_driver(
    contained_pool: SandboxPool,
    ray_nodes: RayNodes,
    count_processes: Counts,
    nap: str,
    new_actors: Actors,
    end: signal.Signals,
) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, nap],  # no job of Ray's
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/src", "RAY_ADDRESS": ray_nodes.address},
    )
    with driver:
        assert driver.stdout is not None
        while line := driver.stdout.readline():  # Ray prints there too, such as that the machine is busy
            if line == b"running\n":
                break
        assert line
        wait_for(lambda: count_processes(f"sleep\0{nap}") == 4, "the commands")
        driver.send_signal(end)
    wait_for(lambda: not count_processes(f"sleep\0{nap}") and not new_actors(), "the end of commands and actors")


UPDATED = """
import asyncio, sys
from pathlib import Path
import ray
from slime_swe.sandbox import SandboxPool

async def main():
    async with SandboxPool("ray:bubblewrap") as pool:
        await pool.start()
        Path(sys.argv[2]).write_text("# newer")
        print("updated", flush=True)
        while True:
            await asyncio.sleep(1)

ray.init(address=sys.argv[1], log_to_driver=False)
asyncio.run(main())
"""


@pytest.mark.extended("tests/sandbox/ray/test_parts.py::test_a_node_that_would_go_on_without_isolation_is_refused")
def test_a_node_with_other_code_is_not_used(contained_pool: SandboxPool, ray_nodes: RayNodes, tmp_path: Path) -> None:
    """One that joins when the checkout has been updated under the run."""
    shutil.copytree(REPOSITORY / "src" / "slime_swe", tmp_path / "slime_swe")
    updated = tmp_path / "slime_swe" / "sandbox" / "newer.py"
    driver = subprocess.Popen(
        [sys.executable, "-c", UPDATED, ray_nodes.address, str(updated)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    with driver:
        assert driver.stdout is not None and driver.stderr is not None
        assert driver.stdout.readline() == "updated\n"
        added = ray_nodes.add()
        assert any("it has other code than this process" in line for line in driver.stderr)
        driver.kill()
    ray_nodes.remove(added)


ROLLOUT_MANAGER = """
import asyncio, sys, threading
import ray
from slime_swe.sandbox import SandboxPool

async def episode():
    async with SandboxPool("ray:bubblewrap") as pool, pool.open({"a": "b"}) as sandbox:
        return (await sandbox.exec("cat a")).output

@ray.remote(num_cpus=1)
class RolloutManager:
    def generate(self):  # in a loop of a thread of its own, as SLiME's
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(episode(), loop).result()

ray.init(address=sys.argv[1], log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": sys.argv[2]}})
print(ray.get(RolloutManager.remote().generate.remote()))
"""


@pytest.mark.extended("tests/sandbox/ray/test_nodes.py::test_sandboxes_are_spread_and_large_files_are_sent_once")
def test_a_rollout_manager_that_is_an_actor_has_them_too(contained_pool: SandboxPool, ray_nodes: RayNodes) -> None:
    command = [sys.executable, "-c", ROLLOUT_MANAGER, ray_nodes.address, f"{REPOSITORY}/src"]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}/src"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "b\n", done.stderr
