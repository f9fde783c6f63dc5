"""What only the remote backend does: deployments, servers that die, keys, and what a command can do to what runs it.

Beyond these, test_commands, test_files and test_lifecycle run on it, on servers of both kinds. Left out of the suite of
images: limits of a whole sandbox and the lack of a network, which are the cloud's to give.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tests.rollout.sandbox.contents import contents
from tests.rollout.sandbox.image_support import make_repository
from tests.rollout.sandbox.remote_support import RemoteServer, server_deployment

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.patches import OVERSIZED, apply_patch
from slime_swe.rollout.sandbox import remote
from slime_swe.rollout.sandbox.base import Limits, Sandbox, SandboxError, SandboxSpec
from slime_swe.rollout.sandbox.guest import wire
from slime_swe.rollout.sandbox.pool import SandboxPool
from slime_swe.rollout.sandbox.remote import RemoteBackend, RemoteSandbox

pytest.importorskip("swerex", reason="SWE-ReX is not installed: pip install 'slime-swe[remote]'")
Counter = Callable[[str], int]
START = {
    "pkg/mod.py": b"def f():\n    return 1\n",
    "run.sh": b"#!/bin/sh\necho run\n",
    "data.bin": b"\x00\xff",
    ".gitignore": b"ignored.txt\n",
    "ignored.txt": b"ignored\n",
}


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory, contained_pool: SandboxPool) -> Image:
    folder = tmp_path_factory.mktemp("repository")
    make_repository(folder)
    return Image(str(folder), "/repo")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def own_pool() -> AsyncIterator[SandboxPool]:
    async with SandboxPool("tests.rollout.sandbox.remote_support.own_servers") as pool:
        yield pool


@pytest_asyncio.fixture(loop_scope="session")
async def confined(confined_pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with confined_pool.open({"a.txt": "a\n"}) as sandbox:
        yield sandbox


async def test_commands_have_namespaces_of_their_own_where_that_works(
    remote_pool: SandboxPool, confined_pool: SandboxPool
) -> None:
    async with remote_pool.open({}) as contained, confined_pool.open({}) as plain:
        assert (contained.contained, plain.contained) == (True, False)  # type: ignore[attr-defined]
        assert "swerex" not in (await contained.exec("cat /proc/*/cmdline")).output
        assert (await contained.exec("kill -9 -1; echo no")).exit_code == 137
        assert (await contained.exec("kill -9 1; umount /proc; echo alive")).output.endswith("alive\n")
        route = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=2)"
        assert "Network is unreachable" in (await contained.exec(f'python3 -c "{route}"')).output


async def test_the_token_of_the_server_is_not_in_the_environment(remote_pool: SandboxPool) -> None:
    async with remote_pool.open({}) as sandbox:
        assert "SWEREX" not in (await sandbox.exec("env; cat /proc/*/environ")).output


async def test_what_runs_commands_may_be_killed_and_its_command_was(
    confined: Sandbox, count_processes: Counter, nap: str
) -> None:
    await confined.exec("echo b >> a.txt")
    result = await confined.exec(f"setsid sleep {nap} & sleep 0.1; kill -9 $PPID; sleep {nap}")
    assert result.exit_code == 137
    assert (await confined.exec("cat a.txt")).output == "a\nb\n"
    assert count_processes(f"sleep\0{nap}") == 0
    assert "+b" in await confined.diff()
    await confined.exec("kill -9 $PPID")
    assert await confined.read_file("a.txt") == b"a\nb\n"


async def test_a_stopped_process_that_runs_commands_is_killed_at_the_limit(
    confined: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "GRACE_SECONDS", 1.0)
    assert (await confined.exec("kill -STOP $PPID", timeout=0.5)).exit_code == 137
    assert (await confined.exec("echo alive")).output == "alive\n"


async def test_who_removes_what_runs_commands_only_hurts_itself(confined: Sandbox) -> None:
    await confined.exec("rm -rf ../slime_swe_guest")
    result = await confined.exec("echo alive")
    assert (result.exit_code, "nothing can be run" in result.output) == (137, True)
    assert await confined.diff() == OVERSIZED
    for operation in (confined.read_file("a.txt"), confined.write_file("a.txt", b"")):
        with pytest.raises(OSError, match="was killed"):
            await operation


async def test_a_forged_answer_is_a_command_that_was_killed(confined: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for forged in ("{}", "[1]", '{"exit_code": 0, "head": "a", "seconds": 0, "missing": 0}', "x", "[" * 100_000):
        answer = wire.PREFIX.pack(len(forged), 0) + forged.encode()
        # As a command of the same user may leave it in the file where the next answer is looked for.
        monkeypatch.setattr(RemoteSandbox, "_execute", lambda *args, answer=answer: _printed(answer))
        assert (await confined.exec("true")).exit_code == 137
        assert await confined.diff() == OVERSIZED
    monkeypatch.undo()


async def _printed(answer: bytes) -> str:
    return base64.b64encode(answer).decode()


async def test_what_runs_commands_is_short_in_a_list_of_processes(confined: Sandbox) -> None:
    assert len((await confined.exec("ps -ww -o args= -p $(ps -o ppid= -p $PPID) -p $PPID")).output) in range(100, 4000)


async def test_what_is_written_and_read_may_be_large(confined: Sandbox) -> None:
    content = os.urandom(3 << 20)
    await confined.write_file("large", content)
    assert await confined.read_file("large") == content


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_a_server_that_dies_during_a_command_is_a_sandbox_error(
    contained_pool: SandboxPool, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(remote, "ALIVE_SECONDS", 0.5)
    server = RemoteServer(confined=True)
    try:
        server.wait()
        monkeypatch.setenv(remote.TOKEN, server.token)
        async with SandboxPool(f"remote:{server.url}") as pool:
            with pytest.raises(SandboxError, match="does not answer"):
                async with pool.open({}) as sandbox:
                    running = asyncio.create_task(sandbox.exec("sleep 1006"))
                    await asyncio.sleep(0.3)
                    if how == "killed":
                        server.stop()
                    else:
                        server.freeze()
                    await running
            with pytest.raises(SandboxError, match="no SWE-ReX server answers"):
                async with pool.open({}):
                    pass
    finally:
        server.stop()


@pytest.mark.slow
async def test_the_image_s_repository_is_the_start(own_pool: SandboxPool, image: Image) -> None:
    setup = "export TOLD='a b'; greet() { echo hello $1; }; cd /tmp; set -eu; echo made > /repo/made.txt"
    image_with_setup = Image(image.name, image.folder, setup)
    async with own_pool.open({"pkg/new.py": "x = 1\n"}, image=image_with_setup) as sandbox:
        start = {**START, "made.txt": b"made\n", "pkg/new.py": b"x = 1\n"}
        assert await sandbox.diff() == ""
        assert await contents(sandbox) == start
        result = await sandbox.exec("pwd; echo $PWD $TOLD $UNSET; greet you; false; ./run.sh; echo ${OLDPWD-none}")
        assert result.output == "/repo\n/repo a b\nhello you\nrun\nnone\n"
        log = await sandbox.exec("git log --all --format=%s; git status --short; git tag; git branch; git reflog")
        assert log.output.replace("* ", "").split() == ["base", "first", "??", "made.txt", "??", "pkg/new.py", "main"]
        await sandbox.exec("rm -rf run.sh pkg/mod.py; echo more >> made.txt; mkdir run.sh; echo 1 > run.sh/x")
        patch = await sandbox.diff()
        after = {**start, "made.txt": b"made\nmore\n", "run.sh/x": b"1\n"}
        del after["run.sh"], after["pkg/mod.py"]
        assert apply_patch(start, patch) == await contents(sandbox) == after


@pytest.mark.slow
async def test_a_setup_that_fails_is_a_sandbox_error_that_says_so(
    own_pool: SandboxPool, image: Image, count_processes: Counter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for setup, problem in (("echo why; false", "ended with 1: why"), ("set -e; echo so; false", "ended with 1: so")):
        with pytest.raises(SandboxError, match=f"setup '{setup}' {problem}"):
            async with own_pool.open({}, image=Image(image.name, image.folder, setup)):
                pass
    assert count_processes(str(tmp_path)) == 0


async def test_a_deployment_that_does_not_start_is_a_sandbox_error(own_pool: SandboxPool) -> None:
    with pytest.raises(SandboxError, match=r"deployment failed: FileNotFoundError: no image /none"):
        async with own_pool.open({}, image=Image("/none")):
            pass


@pytest.mark.slow
async def test_nothing_is_left_of_a_deployment(
    image: Image, count_processes: Counter, nap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its episode ends, is cancelled while it starts, has its server killed, or is still open at the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 2.0)
    backend = RemoteBackend(deploy=server_deployment)
    await backend.start()
    async with backend.open(SandboxSpec({}, Limits(), image)) as sandbox:
        await sandbox.exec(f"setsid sleep {nap} &")
    starting = asyncio.create_task(backend.open(SandboxSpec({}, Limits(), image)).__aenter__())
    await asyncio.sleep(0.2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(SandboxError):
        async with backend.open(SandboxSpec({}, Limits(), image)) as sandbox:
            assert (await sandbox.exec("kill -9 -1")).exit_code == 137
    assert await backend.open(SandboxSpec({}, Limits(), image)).__aenter__()
    assert count_processes(str(tmp_path)) > 0
    await backend.close()
    assert list(tmp_path.iterdir()) == []
    assert count_processes(str(tmp_path)) == count_processes(nap) == 0


def test_an_unknown_deployment_says_which_there_are() -> None:
    with pytest.raises(UserError, match=r"remote:nowhere: no such deployment.*modal, daytona, fargate, docker"):
        SandboxPool("remote:nowhere")
    with pytest.raises(UserError, match="no such deployment"):
        SandboxPool("remote")


async def test_a_server_takes_no_image(remote_pool: SandboxPool, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"take no layers .*overlay, docker"):
        async with remote_pool.open({}, layers=[tmp_path]):
            pass
    with pytest.raises(UserError, match=r"needs the image django.*remote:KIND"):
        async with remote_pool.open({}, image=Image("django")):
            pass


async def test_without_swe_rex_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "swerex"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "swerex", None)
    for where in ("modal", "http://127.0.0.1:1"):
        with pytest.raises(UserError, match=r"need swerex: pip install 'slime-swe\[remote\]'"):
            await RemoteBackend(where).start()


async def test_what_a_deployment_needs_more_is_said() -> None:
    with pytest.raises(UserError, match=r"pip install 'slime-swe\[remote\]' 'swe-rex\[daytona\]==1\.4\.0'"):
        await RemoteBackend("daytona").start()


async def test_a_server_s_token_comes_from_the_environment_or_a_file(
    remote_pool: SandboxPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = remote_pool._backend._url  # type: ignore[attr-defined]
    token = remote_pool._backend._token  # type: ignore[attr-defined]
    monkeypatch.delenv(remote.TOKEN, raising=False)
    with pytest.raises(UserError, match="SWEREX_AUTH_TOKEN_FILE"):
        await RemoteBackend(url).start()
    monkeypatch.setenv(f"{remote.TOKEN}_FILE", str(tmp_path / "token"))
    with pytest.raises(UserError, match="can't be read"):
        await RemoteBackend(url).start()
    (tmp_path / "token").write_text(f"{token}\n")
    async with SandboxPool(f"remote:{url}") as pool, pool.open({}) as sandbox:
        assert (await sandbox.exec("echo ok")).output == "ok\n"
    (tmp_path / "token").write_text("wrong-secret\n")
    with pytest.raises(SandboxError) as raised:
        async with SandboxPool(f"remote:{url}") as pool, pool.open({}):
            pass
    assert "wrong-secret" not in str(raised.value)
    with pytest.raises(UserError, match="without a user") as refused:
        await RemoteBackend("http://me:secret@127.0.0.1:1").start()
    assert "secret" not in str(refused.value)


@pytest.fixture
def modal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Modal's library, with an account that isn't one."""
    pytest.importorskip("modal", reason="modal is not installed: pip install 'swe-rex[modal]==1.4.0'")
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-test")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-test")


def test_modal_s_configuration_is_swe_rex_s_own() -> None:
    from swerex.deployment.config import ModalDeploymentConfig

    found = remote.configuration("modal", "python:3.12", {"deployment_timeout": 900, "modal_sandbox_kwargs": {}})
    assert isinstance(found, ModalDeploymentConfig)
    assert (found.image, found.deployment_timeout, found.startup_timeout) == ("python:3.12", 900, 180)
    with pytest.raises(UserError, match="remote:modal does not take these options: cpus: Extra inputs"):
        remote.configuration("modal", "", {"cpus": 4})


def test_a_key_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAYTONA_API_KEY", raising=False)
    with pytest.raises(UserError, match="DAYTONA_API_KEY"):
        remote.configuration("daytona", "", {})
    monkeypatch.setenv("DAYTONA_API_KEY", "the-secret")
    assert remote.configuration("daytona", "python:3.12", {}).api_key == "the-secret"
    with pytest.raises(UserError, match="port") as raised:
        remote.configuration("daytona", "", {"port": "the-other-secret"})
    assert "secret" not in str(raised.value)


async def test_modal_needs_an_account(modal: None, monkeypatch: pytest.MonkeyPatch) -> None:
    await RemoteBackend("modal:python:3.12").start()
    monkeypatch.delenv("MODAL_TOKEN_ID")
    with pytest.raises(UserError, match="modal setup"):
        await RemoteBackend("modal").start()


async def test_a_deployment_that_can_t_be_made_is_a_sandbox_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxError, match=r"deployment failed: FileNotFoundError.*docker"):
        async with SandboxPool("remote:docker:none") as pool, pool.open({}):
            pass
