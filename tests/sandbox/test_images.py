"""Sandboxes that run a task's image: the image's repository, what can't be done in it, and how little the driver is
trusted."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_swe.data_sources.corpora.eval_prologue import END as END_MARK
from slime_swe.data_sources.corpora.eval_prologue import START as START_MARK
from slime_swe.data_sources.corpora.eval_prologue import setup_of
from slime_swe.data_sources.task import Image
from slime_swe.patches import apply_patch, binary_paths
from slime_swe.sandbox.base import Limits, Sandbox, SandboxError
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.overlay.backend import OverlayBackend
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.conftest import require_here
from tests.sandbox.contents import contents
from tests.sandbox.image_support import docker_image, overlay_image

Counter = Callable[[str], int]
START = {
    "pkg/mod.py": b"def f():\n    return 1\n",
    "run.sh": b"#!/bin/sh\necho run\n",
    "data.bin": b"\x00\xff",
    ".gitignore": b"ignored.txt\n",
    "ignored.txt": b"ignored\n",
}


async def test_the_image_s_repository_is_the_start(image_pool: SandboxPool, image: Image) -> None:
    async with image_pool.open({}, image=image) as sandbox:
        assert (await sandbox.exec("pwd; ls; ./run.sh")).output == "/repo\ndata.bin\nignored.txt\npkg\nrun.sh\nrun\n"
        assert await sandbox.diff() == ""
        assert await contents(sandbox) == START


async def test_files_lie_over_the_image_s_and_are_no_change(image_pool: SandboxPool, image: Image) -> None:
    async with image_pool.open({"pkg/mod.py": "x = 1\n", "new/a.py": "y = 2\n"}, image=image) as sandbox:
        assert await sandbox.diff() == ""
        start = {**START, "pkg/mod.py": b"x = 1\n", "new/a.py": b"y = 2\n"}
        assert await contents(sandbox) == start
        await sandbox.exec("rm new/a.py; echo z >> pkg/mod.py; rm data.bin")
        after = {k: v for k, v in start.items() if k not in ("new/a.py", "data.bin")}
        after["pkg/mod.py"] += b"z\n"
        assert await contents(sandbox) == after
        patch = await sandbox.diff()
        assert patch.count("diff --git") == 3
        assert "Binary files a/data.bin and /dev/null differ" in patch


@pytest.mark.parametrize(
    ("command", "gone", "new"),
    [
        ("rm -rf pkg; mkdir pkg; echo 1 > pkg/other.py", ["pkg/mod.py"], {"pkg/other.py": b"1\n"}),
        ("rm -rf pkg; echo 1 > pkg", ["pkg/mod.py"], {"pkg": b"1\n"}),
        ("mv pkg lib", ["pkg/mod.py"], {"lib/mod.py": START["pkg/mod.py"]}),
        ("mv run.sh go.sh; ln -s go.sh run.sh", ["run.sh"], {"go.sh": START["run.sh"]}),
        ("rm -rf pkg; ln -s /etc pkg", ["pkg/mod.py"], {}),
        ("rm run.sh; mkdir run.sh; echo 1 > run.sh/x", ["run.sh"], {"run.sh/x": b"1\n"}),
        ("echo 1 > x; cat run.sh > y; mv y run.sh; chmod 600 data.bin", [], {"x": b"1\n"}),
        ("ln run.sh hard.sh", [], {"hard.sh": START["run.sh"]}),
        ("for i in $(seq 40); do echo $i > many$i; done", [], {f"many{i}": b"%d\n" % i for i in range(1, 41)}),
        ("rm -rf /repo", list(START), {}),
        ("rm -rf /repo; mkdir /repo; echo 1 > /repo/only", list(START), {"only": b"1\n"}),
        ("rm -rf /repo; ln -s /etc /repo", list(START), {}),
        ("rm -rf .git; git init -q; git add -A", [], {}),
        ("mkdir node_modules __pycache__; touch node_modules/a __pycache__/b c.pyc", [], {}),
    ],
)
async def test_what_a_command_does_to_the_image_s_files_is_in_the_patch(
    image_pool: SandboxPool, image: Image, command: str, gone: list[str], new: dict[str, bytes]
) -> None:
    async with image_pool.open({}, image=image) as sandbox:
        await sandbox.exec(command)
        after = {path: content for path, content in START.items() if path not in gone} | new
        patch = await sandbox.diff()
    assert apply_patch(START, patch) == after | {"data.bin": START["data.bin"]}  # which is not text, and only named
    assert binary_paths(patch) == (["data.bin"] if "data.bin" in gone else [])


async def test_writing_keeps_a_file_s_mode(image_pool: SandboxPool, image: Image) -> None:
    async with image_pool.open({}, image=image) as sandbox:
        await sandbox.write_file("run.sh", b"#!/bin/sh\necho changed\n")
        assert (await sandbox.exec("./run.sh")).output == "changed\n"


async def test_setup_is_what_commands_inherit_and_no_change(image_pool: SandboxPool, image: Image) -> None:
    setup = (
        "export TOLD=yes; greet() { echo hello $1; }; cd /tmp; set -eu; echo made > /repo/made.txt; rm /repo/data.bin"
    )
    async with image_pool.open({}, image=dataclasses.replace(image, setup=setup)) as sandbox:
        result = await sandbox.exec("echo $TOLD $UNSET; greet you; pwd; cat made.txt; false; echo on")
        assert result.output == "yes\nhello you\n/repo\nmade\non\n"
        assert await sandbox.diff() == ""
        await sandbox.exec("rm made.txt; touch data.bin")
        assert (await sandbox.diff()).count("diff --git") == 2


async def test_commands_inherit_the_environment_that_an_eval_script_enters(
    image_pool: SandboxPool, image: Image
) -> None:
    """And neither its options nor its folder."""
    enters = (
        "cat > /tmp/conda.sh <<'EOF'\nEOF\nset -euxo pipefail\nconda() { export ENVIRONMENT=$2; }\nconda activate a"
    )
    script = f"cd /repo\n{enters}\ncd /tmp\nrm -rf /repo/pkg\n: '{START_MARK}'\n: '{END_MARK}'\n"
    async with image_pool.open({}, image=dataclasses.replace(image, setup=setup_of(script))) as sandbox:
        result = await sandbox.exec("echo $ENVIRONMENT $UNSET; conda activate b; echo $ENVIRONMENT; pwd; false; ls pkg")
        assert result.output == "a\nb\n/repo\nmod.py\n"
        assert await sandbox.diff() == ""


async def test_no_command_has_a_proxy(image_pool: SandboxPool, image: Image) -> None:
    """There is none in a sandbox, and its loopback would be asked for through it."""
    names = ("http_proxy", "HTTPS_PROXY", "All_Proxy", "no_proxy", "FTP_PROXY", "npm_config_https_proxy")
    setup = "; ".join([*(f"export {name}=http://127.0.0.1:9" for name in names), "export proxy_x=1"])
    async with image_pool.open({}, image=dataclasses.replace(image, setup=setup)) as sandbox:
        assert (await sandbox.exec("env | grep -i proxy; declare -F; set | grep ^__")).output == "proxy_x=1\n"


async def test_docker_s_own_settings_add_no_proxy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not docker_client.answers():
        pytest.skip("no Docker daemon answers")
    proxies = {"httpProxy": "http://127.0.0.1:9", "noProxy": "x"}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": {"default": proxies}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    docker_client.connect.cache_clear()  # it has read the user's
    request.addfinalizer(docker_client.connect.cache_clear)
    async with SandboxPool("docker", concurrency=1) as pool, pool.open({}) as sandbox:
        environment = docker_client.connect().inspect_container(sandbox._id)["Config"]["Env"]  # type: ignore[attr-defined]
        assert [text for text in environment if "proxy" in text.lower()] == []


async def test_a_setup_that_fails_is_a_sandbox_error_that_says_so(image_pool: SandboxPool, image: Image) -> None:
    with pytest.raises(SandboxError, match=r"setup 'echo why; false' ended with 1: why"):
        async with image_pool.open({}, image=dataclasses.replace(image, setup="echo why; false")):
            pass


async def test_the_repository_has_no_later_history(image_pool: SandboxPool, image: Image) -> None:
    async with image_pool.open({}, image=image) as sandbox:
        log = await sandbox.exec("git log --all --format=%s; git status --short; git tag; git branch; git reflog")
        assert log.output.replace("* ", "").split() == ["base", "first", "main"]
        found = await sandbox.exec("git fsck --unreachable; git cat-file --batch-all-objects --batch | cat -v")
        assert "return 1" in found.output
        assert "secret" not in found.output
        assert "future" not in found.output
        assert (await sandbox.exec("git diff HEAD~1 --stat | tail -1")).output.startswith(" 1 file")


async def test_no_network(imaged: Sandbox) -> None:
    connect = (
        "import socket, sys\n"
        "for address in (('192.0.2.1', 80), ('127.0.0.1', int(sys.argv[1]))):\n"
        "    try: socket.create_connection(address, timeout=2); print('connected')\n"
        "    except OSError as error: print(error.strerror)\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        await imaged.write_file("connect.py", connect.encode())
        output = (await imaged.exec(f"python3 connect.py {server.getsockname()[1]}")).output
    assert output == "Network is unreachable\nConnection refused\n"
    await imaged.write_file("own.py", b"import socket\ns = socket.create_server(('localhost', 0))\n"
                            b"socket.create_connection(s.getsockname())\nprint('ok')\n")  # fmt: skip
    assert (await imaged.exec("python3 own.py; ls /sys/class/net 2>/dev/null | grep -v lo")).output == "ok\n"


async def test_the_host_is_not_seen(imaged: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Path(__file__).parents[2]
    assert (await imaged.exec(f"ls {repository}/README.md")).exit_code != 0
    assert str(os.getpid()) not in (await imaged.exec("ls /proc")).output.split()
    assert (await imaged.exec("hostname; echo $HOSTNAME")).output == "sandbox\nsandbox\n"
    assert "XDG_CACHE_HOME" not in (await imaged.exec("env; cat /proc/1/environ")).output
    assert (await imaged.exec("echo x > /proc/sys/kernel/hostname; mount -t tmpfs none /mnt")).exit_code != 0


async def test_no_file_of_the_host_s_is_open(image_pool: SandboxPool, imaged: Sandbox) -> None:
    require_here(image_pool)
    assert (await imaged.exec("ls /proc/1/fd")).output == "0\n1\n2\n3\n"  # the last one brings commands
    assert (await imaged.exec("ls /proc/self/fd")).output == "0\n1\n2\n3\n"  # the last one is of `ls`
    await imaged._kill()  # type: ignore[attr-defined]
    assert (await imaged.exec("ls /proc/1/fd")).output == "0\n1\n2\n3\n"


@pytest.mark.extended("tests/sandbox/test_images.py::test_the_image_s_repository_is_the_start")
async def test_a_docker_image_is_unpacked_for_an_overlay(
    overlay_pool: SandboxPool, docker_pool: SandboxPool, tmp_path: Path
) -> None:
    image = await asyncio.to_thread(docker_image, tmp_path)
    async with overlay_pool.open({"a": "b"}, image=image) as sandbox:
        assert (await sandbox.exec("./run.sh; cat a /etc/hosts; git log --format=%s -1")).output == (
            "run\nb127.0.0.1 localhost\n::1 localhost\nbase\n"
        )
        assert await contents(sandbox) == {**START, "a": b"b"}


async def test_a_fork_bomb_is_bounded_and_swept_away(imaged: Sandbox) -> None:
    await imaged.write_file("bomb.py", b"import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n")
    for command in (":() { : | : & }; :; sleep 5", "python3 bomb.py"):
        result = await imaged.exec(command, timeout=0.5)
        assert result.exit_code != 0
        assert (await imaged.exec("echo alive")).output == "alive\n"
        assert int((await imaged.exec("ls -d /proc/[0-9]* | wc -l")).output) < 6


async def test_a_full_disk_is_an_error_of_the_call_alone(layered_pool: SandboxPool) -> None:
    async with layered_pool.open({"a": "b"}) as sandbox:
        result = await sandbox.exec("for i in 1 2 3 4 5 6; do head -c 4000000 /dev/zero > fill$i || break; done")
        assert "No space left" in result.output
        with pytest.raises(OSError, match="No space left"):
            await sandbox.write_file("more", b"x" * 4_000_000)
        assert "No space left" in (await sandbox.exec("head -c 4000000 /dev/zero > /tmp/fill")).output
        await sandbox.exec("rm fill*")
        await sandbox.write_file("more", b"x")
        assert await sandbox.read_file("more") == b"x"


@pytest.mark.parametrize("seconds", [5.0, 0.3])
async def test_who_reads_the_driver_s_commands_only_hurts_itself(imaged: Sandbox, seconds: float) -> None:
    """A command that takes what the host sends to the driver does not end in an error of the sandbox's."""
    await imaged.exec("echo kept > kept.txt")
    thief = "(exec 9</proc/1/fd/3; cat <&9) & printf 'x setup 4 0\\nexit' > /proc/1/fd/3; sleep 1"
    await imaged.exec(thief, timeout=seconds)
    await imaged.exec("kill -USR1 1; sleep 1", timeout=seconds)
    result = await imaged.exec("cat kept.txt")
    assert (result.exit_code, result.output) == (0, "kept\n")
    assert "+kept" in await imaged.diff()


async def test_a_driver_that_dies_is_a_command_that_was_killed(image_pool: SandboxPool, imaged: Sandbox) -> None:
    require_here(image_pool)
    await imaged.exec("echo kept > kept.txt")
    for attempt in range(2):
        await _kill_driver(imaged)
        await imaged.exec(f"echo {attempt} >> kept.txt")
    assert await imaged.read_file("kept.txt") == b"kept\n0\n1\n"
    assert "+kept" in await imaged.diff()


async def test_a_sandbox_that_can_t_start_again_still_tells_its_files(image_pool: SandboxPool, imaged: Sandbox) -> None:
    require_here(image_pool)
    await imaged.exec("echo kept > kept.txt; rm -f /bin/bash /usr/bin/bash")
    await _kill_driver(imaged)
    result = await imaged.exec("echo alive")
    assert result.exit_code == 137
    assert "does not start again" in result.output
    assert "+kept" in await imaged.diff()
    with pytest.raises(OSError):
        await imaged.read_file("kept.txt")
    with pytest.raises(OSError):
        await imaged.write_file("kept.txt", b"")


async def _kill_driver(sandbox: Sandbox) -> None:
    """From outside, as nothing inside can in every case."""
    await sandbox._kill()  # type: ignore[attr-defined]


async def test_an_image_that_is_not_there_is_an_error_that_says_so(image_pool: SandboxPool) -> None:
    with pytest.raises((ValueError, SandboxError), match=r"no-such-image.*(is no folder|not here)"):
        async with image_pool.open({}, image=Image("/no-such-image" if _has_folders(image_pool) else "no-such-image")):
            pass


def _has_folders(pool: SandboxPool) -> bool:
    return isinstance(pool._backend, OverlayBackend)


async def test_many_at_once(image_pool: SandboxPool, image: Image) -> None:
    async def episode(number: int) -> str:
        async with image_pool.open({"n.txt": f"{number}\n"}, image=image) as sandbox:
            await sandbox.exec("cat n.txt >> pkg/mod.py")
            return await sandbox.diff()

    patches = await asyncio.gather(*(episode(number) for number in range(12)))
    for number, patch in enumerate(patches):
        assert f"+{number}\n" in patch
        assert patch.count("\n+") == 1 + patch.count("\n+++")


async def test_limits_of_memory_are_the_whole_sandbox_s(image_pool: SandboxPool) -> None:
    eat = "import time\nx = b'x' * (100 << 20)\nprint('up', flush=True)\ntime.sleep(1)\nprint('done')\n"
    async with image_pool.open({"eat.py": eat}, Limits(memory_bytes=256 << 20, disk_bytes=1 << 20)) as sandbox:
        if getattr(sandbox, "_group", ...) is None:
            pytest.skip("this user may make no control group: the limit is each process's")
        result = await sandbox.exec("for i in 1 2 3 4; do python3 eat.py & done; wait")
        assert result.output.count("done") < 4
        assert (await sandbox.exec("echo alive")).output == "alive\n"


OWNERS = """
set -e
chown 1001:1002 run.sh; stat -c %u:%g run.sh
tar -cf all.tar --owner=1003 --group=1003 data.bin; rm data.bin; tar -xf all.tar; stat -c %u data.bin
chmod 000 pkg/mod.py; cat pkg/mod.py
python3 -c 'import socket; socket.create_server(("", 80)); print("port")'
python3 -c 'import os; os.setuid(1000); open("by_another", "w"); os.execvp("sleep", ["sleep", "1000"])' &
sleep 0.3; stat -c %u by_another
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may map other users")
async def test_root_uses_the_files_of_other_users(overlay_pool: SandboxPool, cache: Path, tmp_path: Path) -> None:
    """As in a container of Docker, where images have repositories of a user's of their own."""
    image = overlay_image(cache, tmp_path / "root")
    for path in (tmp_path / "root" / "repo", *(tmp_path / "root" / "repo").rglob("*")):
        os.chown(path, 1000, 1000, follow_symlinks=False)
    async with overlay_pool.open({"pkg/mod.py": "x = 1\n", "new/a.py": "y = 2\n"}, image=image) as sandbox:
        await sandbox.write_file("pkg/mod.py", b"x = 2\n")
        result = await sandbox.exec(OWNERS)
        assert result.output == "1001:1002\n1003\nx = 2\nport\n1000\n"
        assert "sleep" not in (await sandbox.exec("cat /proc/[0-9]*/comm")).output
        assert "+x = 2" in await sandbox.diff()
        for attempt in ("mount -t tmpfs none /mnt", "unshare -r true", "date -s @0", "chroot / true", "mknod x b 7 0"):
            assert (await sandbox.exec(attempt)).exit_code != 0, attempt
