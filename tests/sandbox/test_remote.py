"""What only the remote backend does: deployments, servers that die, keys, and what a command can do to what runs it.

Beyond these, test_commands, test_files and test_lifecycle run on it. Left out of the suite of images: limits of a whole
sandbox and the lack of a network, which are the cloud's to give.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.patches import OVERSIZED, apply_patch, binary_paths
from slime_swe.sandbox import remote as remote_backend
from slime_swe.sandbox.base import Limits, Sandbox, SandboxError, SandboxSpec
from slime_swe.sandbox.pool import SandboxPool
from slime_swe.sandbox.remote import RemoteBackend
from tests.sandbox.contents import contents
from tests.sandbox.image_support import make_repository
from tests.sandbox.remote_support import server_deployment
from tests.waiting import until

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


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def opened(remote_pool: SandboxPool) -> AsyncIterator[Sandbox]:
    async with remote_pool.open({"a.txt": "a\n"}) as sandbox:
        yield sandbox


@pytest_asyncio.fixture(loop_scope="session")
async def remote(opened: Sandbox) -> Sandbox:
    """One for all of these tests, with its files as they were."""
    await opened.exec("find . -mindepth 1 -delete; echo a > a.txt; rm -rf /tmp/other ~/.gitconfig")
    return opened


async def test_the_token_of_the_server_is_not_in_the_environment(remote: Sandbox) -> None:
    assert "SWEREX" not in (await remote.exec("env")).output


async def test_a_patch_has_nothing_of_elsewhere_and_does_as_no_setting_of_git_says(remote: Sandbox) -> None:
    await remote.exec("mkdir -p /tmp/other; echo 1 > /tmp/other/x; ln -s /tmp/other other; ln a.txt b.txt")
    await remote.exec("echo '*.txt binary' > .gitattributes; echo b.txt > .gitignore; echo '[core' > ~/.gitconfig")
    await remote.exec("printf 'caf\\351\\n' > latin; mkdir sub; cd sub; git init -q; echo 2 > y; chmod +x y ../a.txt")
    patch = await remote.diff()
    assert binary_paths(patch) == ["latin"]
    after = {"a.txt": b"a\n", "b.txt": b"a\n", ".gitattributes": b"*.txt binary\n", ".gitignore": b"b.txt\n"}
    assert apply_patch({"a.txt": b"a\n"}, patch) == {**after, "sub/y": b"2\n"}


async def test_what_runs_commands_may_be_killed_and_its_command_was(
    remote: Sandbox, count_processes: Counter, nap: str
) -> None:
    await remote.exec("echo b >> a.txt")
    result = await remote.exec(f"setsid sleep {nap} & sleep 0.1; kill -9 $PPID; sleep {nap}")
    assert result.exit_code == 137
    assert (await remote.exec("cat a.txt")).output == "a\nb\n"
    assert count_processes(f"sleep\0{nap}") == 0
    assert "+b" in await remote.diff()
    await remote.exec("kill -9 $PPID")
    assert await remote.read_file("a.txt") == b"a\nb\n"


async def test_a_stopped_process_that_runs_commands_is_killed_at_the_limit(remote: Sandbox) -> None:
    assert (await remote.exec("kill -STOP $PPID", timeout=0.5)).exit_code is None
    assert (await remote.exec("echo alive")).output == "alive\n"


async def test_who_removes_what_runs_commands_only_hurts_itself(remote_pool: SandboxPool) -> None:
    async with remote_pool.open({"a.txt": "a\n"}) as hurt:
        await hurt.exec("rm -rf /tmp/slime-swe-*")
        assert (await hurt.exec("echo alive")).exit_code == 137
        assert await hurt.diff() == OVERSIZED
        for operation in (hurt.read_file("a.txt"), hurt.write_file("a.txt", b"")):
            with pytest.raises(OSError, match="Input/output error"):
                await operation


@pytest.mark.parametrize("answer", ["", "0 1", "[1]", "-"])
async def test_a_forged_answer_ends_the_command_and_is_no_error(
    remote: Sandbox, answer: str, count_processes: Counter, nap: str
) -> None:
    place = remote._state  # type: ignore[attr-defined]
    forge = f"cd {place}/run-*[^a-z]; rm -f output head; echo '{answer}' > code; echo x > rest; kill -9 $PPID"
    result = await remote.exec(f"setsid sleep {nap} & {forge}; sleep {nap}")
    assert result.exit_code == 137
    assert count_processes(nap) == 0
    assert (await remote.exec("echo alive")).output == "alive\n"


async def test_a_large_file_is_only_named(remote_pool: SandboxPool) -> None:
    async with remote_pool.open({"a.txt": "a\n"}, Limits()) as sandbox:
        await sandbox.exec(f"yes | head -c {(4 << 20) + 1} > large; echo b >> a.txt")
        patch = await sandbox.diff()
    assert binary_paths(patch) == ["large"]
    assert apply_patch({"a.txt": b"a\n"}, patch) == {"a.txt": b"a\nb\n"}


async def test_what_is_written_and_read_may_be_large(remote: Sandbox) -> None:
    content = os.urandom(3 << 20)
    await remote.write_file("large", content)
    assert await remote.read_file("large") == content


@pytest.mark.slow
async def test_a_server_that_dies_during_a_command_is_a_sandbox_error(
    remote_pool: SandboxPool, count_processes: Counter, nap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_backend, "ANSWER_SECONDS", 2.0)

    async def ends(how: str, command: str) -> None:
        with pytest.raises(SandboxError, match="does not answer"):
            async with remote_pool.open({}) as sandbox:
                running = asyncio.create_task(sandbox.exec(command))
                await until(lambda: running.done() or count_processes(command.replace(" ", "\0")), "the command")
                getattr(sandbox._deployment._server, how)()  # type: ignore[attr-defined]
                await running

    await asyncio.gather(ends("stop", f"sleep {nap}1"), ends("freeze", f"sleep {nap}2"))


@pytest.mark.slow
async def test_the_image_s_repository_is_the_start(remote_pool: SandboxPool, image: Image) -> None:
    setup = "export TOLD='a b' Http_PROXY=x; greet() { echo hello $1; }; cd /tmp; set -eu; echo made > /repo/made.txt"
    image_with_setup = Image(image.name, image.folder, setup)
    async with remote_pool.open({"pkg/new.py": "x = 1\n"}, image=image_with_setup) as sandbox:
        start = {**START, "made.txt": b"made\n", "pkg/new.py": b"x = 1\n"}
        assert await sandbox.diff() == ""
        assert await contents(sandbox) == start
        result = await sandbox.exec(
            "pwd; echo $PWD $TOLD $UNSET $Http_PROXY; greet you; false; ./run.sh; echo ${OLDPWD-none}"
        )
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
    remote_pool: SandboxPool, image: Image, count_processes: Counter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def fails(setup: str, problem: str) -> None:
        with pytest.raises(SandboxError, match=f"setup '{setup}' {problem}"):
            async with remote_pool.open({}, image=Image(image.name, image.folder, setup)):
                pass

    await asyncio.gather(
        fails("echo why; false", "ended with 1: why"), fails("set -e; echo so; false", "ended with 1: so")
    )
    assert count_processes(str(tmp_path)) == 0


async def test_a_deployment_that_does_not_start_is_a_sandbox_error(remote_pool: SandboxPool) -> None:
    with pytest.raises(SandboxError, match=r"deployment failed: FileNotFoundError: no image /none"):
        async with remote_pool.open({}, image=Image("/none")):
            pass


@pytest.mark.slow
async def test_nothing_is_left_of_a_deployment(
    image: Image, count_processes: Counter, nap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its episode ends, is cancelled while it starts, has its server killed, or is still open at the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(remote_backend, "ANSWER_SECONDS", 2.0)
    backend = RemoteBackend(deploy=server_deployment)
    await backend.start()

    async def ends() -> None:
        async with backend.open(SandboxSpec({}, Limits(), image)) as sandbox:
            await sandbox.exec(f"setsid sleep {nap} &")

    async def is_cancelled() -> None:
        starting = asyncio.create_task(backend.open(SandboxSpec({}, Limits(), image)).__aenter__())
        await asyncio.sleep(0.2)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    async def is_killed() -> None:
        with pytest.raises(SandboxError):
            async with backend.open(SandboxSpec({}, Limits(), image)) as sandbox:
                assert (await sandbox.exec("kill -9 -1")).exit_code == 137

    await asyncio.gather(ends(), is_cancelled(), is_killed())
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


async def test_without_swe_rex_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "swerex"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "swerex", None)
    with pytest.raises(UserError, match=r"need swerex: pip install 'slime-swe\[remote\]'"):
        await RemoteBackend("modal").start()


async def test_what_a_deployment_needs_more_is_said() -> None:
    with pytest.raises(UserError, match=r"pip install 'slime-swe\[remote\]' 'swe-rex\[daytona\]==1\.4\.0'"):
        await RemoteBackend("daytona").start()


@pytest.fixture
def modal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Modal's library, with an account that isn't one."""
    pytest.importorskip("modal", reason="modal is not installed: pip install 'swe-rex[modal]==1.4.0'")
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-test")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-test")


def test_modal_s_configuration_is_swe_rex_s_own() -> None:
    from swerex.deployment.config import ModalDeploymentConfig

    found = remote_backend.configuration(
        "modal", "python:3.12", {"deployment_timeout": 900, "modal_sandbox_kwargs": {}}
    )
    assert isinstance(found, ModalDeploymentConfig)
    assert (found.image, found.deployment_timeout, found.startup_timeout) == ("python:3.12", 900, 180)
    with pytest.raises(UserError, match="remote:modal does not take these options: cpus: Extra inputs"):
        remote_backend.configuration("modal", "", {"cpus": 4})


def test_a_key_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAYTONA_API_KEY", raising=False)
    with pytest.raises(UserError, match="DAYTONA_API_KEY"):
        remote_backend.configuration("daytona", "", {})
    monkeypatch.setenv("DAYTONA_API_KEY", "the-secret")
    assert remote_backend.configuration("daytona", "python:3.12", {}).api_key == "the-secret"
    with pytest.raises(UserError, match="port") as raised:
        remote_backend.configuration("daytona", "", {"port": "the-other-secret"})
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
