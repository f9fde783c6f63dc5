"""Starting, ending, dying: of a sandbox, of the fork server, of the host."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_swe.sandbox import open_sandbox
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.local import ForkServer, LocalBackend
from slime_swe.sandbox.pool import BACKENDS, SandboxPool
from tests.sandbox.conftest import kill_fork_server, of
from tests.waiting import until, wait_for

REPOSITORY = Path(__file__).parents[2]
Counter = Callable[[str], int]


async def test_the_pool_bounds_how_many_are_open(pool: SandboxPool) -> None:
    now = 0
    eight = asyncio.Barrier(8)

    async def use() -> None:
        nonlocal now
        async with pool.open({"a": "b"}) as sandbox:
            now += 1
            assert now <= 8
            assert (await sandbox.exec("cat a")).output == "b"
            await eight.wait()
            now -= 1

    await asyncio.gather(*(use() for _ in range(24)))


async def test_an_error_in_the_body_ends_the_sandbox(pool: SandboxPool, count_processes: Counter) -> None:
    with pytest.raises(ZeroDivisionError):
        async with pool.open({}) as sandbox:
            await sandbox.exec("true")
            raise ZeroDivisionError
    with pytest.raises(SandboxError, match="not open"):
        await sandbox.exec("true")


async def test_cancelling_an_episode_leaves_nothing(pool: SandboxPool, count_processes: Counter, nap: str) -> None:
    async def episode() -> None:
        async with pool.open({"a": "b"}) as sandbox:
            await sandbox.exec(f"setsid sleep {nap} & sleep {nap}")

    tasks = [asyncio.create_task(episode()) for _ in range(4)]
    await until(lambda: count_processes(f"sleep\0{nap}") == 8, "the commands")
    for task in tasks:
        task.cancel()
    assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
    assert count_processes(f"sleep\0{nap}") == 0


async def test_cancelling_while_a_sandbox_starts_leaves_nothing(pool: SandboxPool) -> None:
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008):

        async def episode() -> None:
            async with pool.open({"a": "b" * 1_000_000}) as sandbox:
                await sandbox.exec("sleep 1011")

        task = asyncio.create_task(episode())
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with pool.open({}) as sandbox:
        assert (await sandbox.exec("echo ok")).output == "ok\n"


async def test_files_that_can_t_be_written_are_a_sandbox_error(pool: SandboxPool) -> None:
    with pytest.raises(SandboxError, match="could not write its files"):
        async with pool.open({"a": "1", "a/b": "2"}):
            pass


@pytest.mark.parametrize("backend", ["bubblewrap", "subprocess"])
async def test_a_dead_fork_server_is_a_sandbox_error_and_is_replaced(contained_pool: SandboxPool, backend: str) -> None:
    async with SandboxPool(backend) as pool:
        with pytest.raises(SandboxError):
            async with pool.open({}) as sandbox:
                running = asyncio.create_task(sandbox.exec("sleep 1012"))
                await asyncio.sleep(0.2)
                kill_fork_server(pool)
                if backend == "subprocess":  # there its sandboxes are not killed with it
                    running.cancel()
                    raise SandboxError("as an episode would end")
                await running
        async with pool.open({}) as sandbox:
            assert (await sandbox.exec("echo again")).output == "again\n"


@pytest.mark.parametrize("contained", [True, False])
async def test_a_fork_server_outlives_the_thread_that_started_it(contained_pool: SandboxPool, contained: bool) -> None:
    servers: list[ForkServer] = []
    thread = threading.Thread(target=lambda: servers.append(ForkServer(contained=contained)))
    thread.start()
    thread.join()
    await asyncio.sleep(0.2)  # the kernel's signal would come with the thread's end
    assert servers[0].alive
    servers[0].close()


async def test_a_closed_backend_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with SandboxPool("subprocess") as pool, pool.open({"a": "b"}) as sandbox:
        assert list(tmp_path.rglob("testbed/a"))
        nest = "import os\nfor i in range(3000): os.mkdir('d'); os.chdir('d')"
        assert (await sandbox.exec(f'python3 -c "{nest}"')).exit_code == 0
    assert list(tmp_path.iterdir()) == []


HOST = """
import asyncio, sys
from slime_swe.sandbox import SandboxPool
async def main():
    async with SandboxPool(sys.argv[1]) as pool, pool.open({}) as first, pool.open({}) as second:
        command = f"setsid sleep {sys.argv[2]} & sleep {sys.argv[2]}"
        runs = [asyncio.create_task(sandbox.exec(command)) for sandbox in (first, second)]
        print("running", flush=True)
        await asyncio.gather(*runs)
asyncio.run(main())
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("backend", of("bubblewrap", "subprocess", "overlay", "apptainer"))
def test_nothing_outlives_a_killed_host(
    request: pytest.FixtureRequest,
    count_processes: Counter,
    nap: str,
    tmp_path: Path,
    backend: str,
    end: signal.Signals,
) -> None:
    request.getfixturevalue(f"{backend}_pool" if backend in ("overlay", "apptainer") else "contained_pool")  # or skip
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, backend, nap],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/src", "TMPDIR": str(tmp_path)},
    )
    with host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"running\n"
        wait_for(lambda: count_processes(f"sleep\0{nap}") == 4, "the commands")
        host.send_signal(end)
    for marker in (f"sleep\0{nap}", str(tmp_path)):
        wait_for(lambda marker=marker: not count_processes(marker), "the end of all processes")
    wait_for(lambda: not list(tmp_path.iterdir()), "the removal of its folders")


async def test_without_bubblewrap_the_fallback_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with SandboxPool("local") as pool:
            for _ in range(2):
                async with pool.open({}) as sandbox:
                    assert (await sandbox.exec("echo ok")).output == "ok\n"
            await pool.close()
            async with pool.open({}) as sandbox:
                await sandbox.exec("true")
    messages = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    assert len(messages) == 1
    for word in ("network", "host's files", "processes", "disk", "bwrap"):
        assert word in messages[0]


async def test_a_sandbox_that_was_contained_is_not_replaced_by_one_that_is_not(
    contained_pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SandboxPool("local") as pool:
        async with pool.open({}):
            kill_fork_server(pool)
        with monkeypatch.context() as path:
            path.setenv("PATH", "/nonexistent")
            with pytest.raises(SandboxError, match="did not start"):
                async with pool.open({}):
                    pass
        async with pool.open({}) as sandbox:
            assert (await sandbox.exec("pwd")).output == "/testbed\n"


async def test_bubblewrap_that_must_be_there_is_an_error_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxError, match="did not start"):
        async with open_sandbox("bubblewrap", {}):
            pass


async def test_a_machine_whose_calls_are_not_known_confines_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.uname", lambda: os.uname_result(("Linux", "host", "6.12", "#1", "riscv64")))
    with pytest.raises(SandboxError, match="no list of riscv64's system calls"):
        async with open_sandbox("bubblewrap", {}):
            pass
    with pytest.raises(ValueError, match=r"overlay sandboxes can't be confined.*riscv64"):
        async with open_sandbox("overlay", {}):
            pass


def test_an_unknown_backend_says_which_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown sandbox 'bublewrap'; did you mean 'bubblewrap'.*local, bubblewrap"):
        SandboxPool("bublewrap")
    with pytest.raises(ValueError, match=r"unknown sandbox 'no\.such\.module'"):
        SandboxPool("no.such.module")
    with pytest.raises(ValueError, match=r"local takes no image; overlay, docker, apptainer, remote do"):
        SandboxPool("local:python:3.12-slim")
    with pytest.raises(ValueError, match="at least 1"):
        SandboxPool("local", concurrency=0)
    assert isinstance(SandboxPool(BACKENDS["local"])._backend, LocalBackend)
