"""Ports that a sandbox gives out: what runs inside reaches what is served on one, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.sandbox.base import Sandbox, SandboxError
from slime_swe.sandbox.docker import container as docker_container
from slime_swe.sandbox.overlay.backend import OverlayBackend
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.conftest import of, require_here
from tests.sandbox.nobody import NOBODY, REPOSITORY, Nobody

PORT = 8080
ASK = """
import socket, sys
for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=2) as there:
            there.sendall(b"who?\\n")
            print(there.makefile().readline().strip())
    except OSError as error:
        print(error.strerror)
"""


@pytest.fixture
def pool_with_ports(image_pool: SandboxPool) -> SandboxPool:
    if image_pool._name.endswith("docker") and os.geteuid() != 0:
        pytest.skip("docker sandboxes give out ports to root alone")
    return image_pool


@contextlib.asynccontextmanager
async def serving(listening: socket.socket, name: str) -> AsyncIterator[None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{name} heard {(await reader.readline()).decode()}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, sock=listening):
        yield


async def ask(sandbox: Sandbox, *addresses: str) -> list[str]:
    await sandbox.write_file("ask.py", ASK.encode())
    return (await sandbox.exec(f"python3 ask.py {' '.join(addresses)}")).output.splitlines()


async def test_what_is_served_here_is_reached_inside_and_nothing_else(pool_with_ports: SandboxPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("", 0)) as public:
        there = other.getsockname()[1]
        async with pool_with_ports.open({}) as sandbox, serving(await sandbox.listen(PORT), "ours"):
            answers = await ask(sandbox, f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"127.0.0.1:{PORT + 1}")
            assert answers == ["ours heard who?", "ours heard who?", "Connection refused"]
            outside = [f"127.0.0.1:{there}", f"127.0.0.1:{public.getsockname()[1]}", "192.0.2.1:80"]
            assert await ask(sandbox, *outside) == [
                "Connection refused",
                "Connection refused",
                "Network is unreachable",
            ]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", PORT), timeout=2)


async def test_a_port_is_each_sandbox_s_own_and_not_the_host_s(pool_with_ports: SandboxPool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as host:
        port = host.getsockname()[1]
        async with (
            pool_with_ports.open({}) as first,
            pool_with_ports.open({}) as second,
            serving(await first.listen(port), "first"),
            serving(await second.listen(port), "second"),
        ):
            asked = (ask(sandbox, f"127.0.0.1:{port}") for sandbox in (first, second))
            assert await asyncio.gather(*asked) == [["first heard who?"], ["second heard who?"]]
        host.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has connected
            host.accept()


async def test_a_port_can_be_had_once_and_again_when_it_is_closed(pool_with_ports: SandboxPool) -> None:
    async with pool_with_ports.open({}) as sandbox:
        first = await sandbox.listen(PORT)
        assert first.getsockname() == ("127.0.0.1", PORT)
        assert not first.get_inheritable()
        with pytest.raises(OSError) as caught:
            await sandbox.listen(PORT)
        assert caught.value.errno == errno.EADDRINUSE
        first.close()
        async with serving(await sandbox.listen(PORT), "again"):
            assert await ask(sandbox, f"127.0.0.1:{PORT}") == ["again heard who?"]
    with pytest.raises(SandboxError, match="not open"):
        await sandbox.listen(PORT)


async def test_a_port_outlives_the_driver(pool_with_ports: SandboxPool) -> None:
    require_here(pool_with_ports)
    async with pool_with_ports.open({}) as sandbox, serving(await sandbox.listen(PORT), "old"):
        await sandbox._kill()  # type: ignore[attr-defined]
        if isinstance(pool_with_ports._backend, OverlayBackend):
            assert await ask(sandbox, f"127.0.0.1:{PORT}") == ["old heard who?"]
        else:  # its container has another network then
            async with serving(await sandbox.listen(PORT), "new"):
                assert await ask(sandbox, f"127.0.0.1:{PORT}") == ["new heard who?"]


async def test_nothing_is_left_of_ports(pool_with_ports: SandboxPool) -> None:
    async with pool_with_ports.open({}):
        pass  # what the backend opens once
    processes = [os.getpid()]
    if isinstance(pool_with_ports._backend, OverlayBackend):
        assert pool_with_ports._backend._host is not None
        processes.append(pool_with_ports._backend._host.launcher._process.pid)
    before = [_descriptors(pid) for pid in processes]
    async with pool_with_ports.open({}) as sandbox:
        opened = [await sandbox.listen(PORT + number) for number in range(100)]
        for listening in opened[:50]:
            listening.close()
        server = await asyncio.start_server(lambda reader, writer: None, sock=opened[-1])
        assert server.is_serving()
    assert [listening.fileno() for listening in opened] == [-1] * 100
    if isinstance(pool_with_ports._backend, OverlayBackend):  # Docker keeps connections, and makes a spare container
        # Not equal: what an earlier test left to the garbage collector may go in between.
        left = [Counter(_descriptors(pid)) - Counter(had) for pid, had in zip(processes, before, strict=True)]
        assert left == [Counter(), Counter()]
    assert [found for pid in processes for found in _descriptors(pid) if "net:[" in found] == []


def _descriptors(pid: int) -> list[str]:
    """What a process has open, but for the numbers of sockets and pipes."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            found.append(target.partition(":[")[0] if target.startswith(("socket", "pipe")) else target)
    return sorted(found)


async def test_a_cancelled_request_for_a_port_leaves_the_sandbox_usable(pool_with_ports: SandboxPool) -> None:
    async with pool_with_ports.open({}) as sandbox:
        running = asyncio.create_task(sandbox.exec("sleep 1"))
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await sandbox.listen(PORT)
        await running
        async with serving(await sandbox.listen(PORT), "ours"):
            assert await ask(sandbox, f"127.0.0.1:{PORT}") == ["ours heard who?"]


@pytest.mark.parametrize("port", [-1, 0, 65536])
async def test_what_is_no_port_is_refused(imaged: Sandbox, port: int) -> None:
    with pytest.raises(UserError, match=f"is 1 to 65535, got {port}"):
        await imaged.listen(port)


@pytest.fixture(params=["contained_pool", "plain_pool", "remote_pool"])
def pool_without(request: pytest.FixtureRequest) -> SandboxPool:
    pool: SandboxPool = request.getfixturevalue(request.param)
    return pool


async def test_a_backend_without_ports_and_layers_says_which_have_them(
    pool_without: SandboxPool, tmp_path: Path
) -> None:
    async with pool_without.open({}) as sandbox:
        with pytest.raises(UserError, match=r"no port.*set rollout\.sandbox to one of overlay, docker"):
            await sandbox.listen(PORT)
    with pytest.raises(UserError, match=r"no layers.*set rollout\.sandbox to one of overlay, docker"):
        async with pool_without.open({}, layers=[tmp_path]):
            pass


@pytest.mark.extended("tests/sandbox/test_ports.py::test_what_is_served_here_is_reached_inside_and_nothing_else")
async def test_docker_gives_ports_only_where_its_containers_are(docker_pool: SandboxPool) -> None:
    """The daemon's pids are those of its own machine: here they may be anybody's."""
    async with docker_pool.open({}) as sandbox:
        container = sandbox._id  # type: ignore[attr-defined]
        for pid in (os.getpid(), 1 << 22):
            with pytest.raises(SandboxError, match=r"root.*on the daemon's own machine.*rollout\.sandbox=overlay"):
                docker_container.listen(container, pid, PORT)


@pytest.mark.skipif(os.geteuid() != 0, reason="is root no longer")
@pytest.mark.extended("tests/sandbox/test_ports.py::test_what_is_served_here_is_reached_inside_and_nothing_else")
async def test_docker_gives_ports_to_root_alone(docker_pool: SandboxPool) -> None:
    async with docker_pool.open({}) as sandbox:
        container = sandbox  # type: ignore[attr-defined]
        pid = container._client.inspect_container(container._id)["State"]["Pid"]
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
                docker_container.listen(container._id, pid, PORT)
            except SandboxError as error:
                os.write(writer, str(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader, encoding="utf-8") as said:
            assert "Permission denied" in (text := said.read())
            assert "only to root" in text
        os.waitpid(child, 0)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="takes root, and setpriv")
async def test_a_root_who_can_t_bring_up_a_loopback_learns_why(overlay_pool: SandboxPool) -> None:
    start = (
        "import asyncio; from slime_swe.sandbox.pool import make_backend; asyncio.run(make_backend('overlay').start())"
    )
    command = ["setpriv", "--bounding-set=-net_admin", sys.executable, "-c", start]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/src"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "need CAP_NET_ADMIN too" in done.stderr
    assert "--cap-add NET_ADMIN" in done.stderr


WITHOUT_ROOT = """
import asyncio, socket, sys
from pathlib import Path
from slime_swe.sandbox import SandboxPool

async def main():
    layer = Path(sys.argv[2])
    (layer / "opt/tool/bin").mkdir(parents=True)
    (layer / "opt/tool/bin/run").write_text("#!/bin/sh\\necho tool\\n")
    (layer / "opt/tool/bin/run").chmod(0o755)
    (layer / "opt/tool/data").touch()
    async def answer(reader, writer):
        writer.write(b"heard " + await reader.readline())
        await writer.drain()
        writer.close()
    async with SandboxPool(sys.argv[1]) as pool:
        async with pool.open({}, layers=[layer]) as sandbox, pool.open({}) as other:
            servers = [await asyncio.start_server(answer, sock=await one.listen(8080)) for one in (sandbox, other)]
            connect = "exec 5<>/dev/tcp/127.0.0.1/8080; echo who >&5; cat <&5"
            print((await sandbox.exec(connect)).output, (await other.exec(connect)).output, end="")
            change = "/opt/tool/bin/run; echo mine > /opt/tool/bin/run; cat /opt/tool/bin/run"
            print((await sandbox.exec(change)).output, end="")
            print((layer / "opt/tool/bin/run").read_text(), await sandbox.diff(), end="")
            await sandbox._kill()
            print((await sandbox.exec(connect)).output, end="")
            for server in servers:
                server.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("backend", of("overlay", "apptainer"))
def test_ports_and_layers_need_no_root(nobody: Nobody, backend: str) -> None:
    if backend == "apptainer" and shutil.which("apptainer") is None:
        pytest.skip("no apptainer on the PATH")
    done = nobody.run(WITHOUT_ROOT, backend, str(nobody.home / f"layer-{backend}"))
    assert done.stderr == ""
    assert done.stdout.split("\n") == [
        *("heard who", " heard who", "tool", "mine", "#!/bin/sh", "echo tool", " heard who", ""),
    ]
