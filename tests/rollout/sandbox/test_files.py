"""Reading, writing, snapshots and diffs, the same in every backend."""

from __future__ import annotations

import pytest

from rollout.patch import apply_patch
from rollout.sandbox.base import Sandbox
from rollout.sandbox.pool import SandboxPool

FILES = {"hello.txt": "hello\n", "pkg/mod.py": "def f():\n    return 1\n", "data.bin": b"\x00\xff"}
STARTED = {path: text.encode() if isinstance(text, str) else text for path, text in FILES.items()}


async def test_a_sandbox_starts_with_its_files(sandbox: Sandbox) -> None:
    assert await sandbox.snapshot() == STARTED
    assert await sandbox.diff() == ""
    assert (await sandbox.exec("cat pkg/mod.py")).output == FILES["pkg/mod.py"]


async def test_what_is_written_is_read(sandbox: Sandbox) -> None:
    for path, content in (("new/deep/é.txt", b"\x00\xff" * 100_000), ("hello.txt", b""), ("./pkg/../x y", b"1")):
        await sandbox.write_file(path, content)
        assert await sandbox.read_file(path) == content
    assert (await sandbox.exec("ls; wc -c < new/deep/é.txt")).output == "data.bin\nhello.txt\nnew\npkg\nx y\n200000\n"


async def test_what_is_wrong_with_a_path_is_said(sandbox: Sandbox) -> None:
    for path in ("none", "", "a\0b", "\udcff", "\ud800", "hello.txt/x", "none/none"):
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            await sandbox.read_file(path)
    with pytest.raises(IsADirectoryError):
        await sandbox.read_file("pkg")
    with pytest.raises(IsADirectoryError):
        await sandbox.write_file("pkg", b"")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        await sandbox.write_file("hello.txt/x", b"")
    await sandbox.exec("mkfifo pipe; ln -s /dev/zero zero; ln -s loop loop")
    for path in ("pipe", "zero"):
        with pytest.raises(FileNotFoundError, match="not a regular file"):
            await sandbox.read_file(path)
    with pytest.raises(OSError, match="symbolic links"):
        await sandbox.read_file("loop")
    assert await sandbox.read_file("hello.txt") == b"hello\n"


async def test_a_snapshot_holds_regular_files_and_no_caches(sandbox: Sandbox) -> None:
    await sandbox.exec(
        "mkdir -p __pycache__ pkg/__pycache__ .git/objects; touch __pycache__/a.pyc pkg/__pycache__/b .git/HEAD c.pyc"
        "; ln -s hello.txt link; ln -s / root; mkfifo pipe; mkdir empty; echo new > empty/.hidden; rm data.bin"
    )
    snapshot = await sandbox.snapshot()
    assert snapshot == {**{k: v for k, v in STARTED.items() if k != "data.bin"}, "empty/.hidden": b"new\n"}


async def test_a_diff_turns_the_start_into_the_end(sandbox: Sandbox) -> None:
    await sandbox.exec("rm hello.txt; echo '# end' >> pkg/mod.py; mkdir a; printf 'no newline' > a/b")
    assert apply_patch(FILES, await sandbox.diff()) == await sandbox.snapshot()


async def test_a_large_repository_passes_whole(pool: SandboxPool) -> None:
    files = {f"d{number % 50}/f{number}.txt": f"{number}\n" * 200 for number in range(1000)}
    async with pool.open(files) as sandbox:
        await sandbox.exec("echo more >> d7/f7.txt")
        assert len(await sandbox.snapshot()) == 1000
        assert (await sandbox.diff()).count("diff --git") == 1


async def test_a_link_leads_no_further_than_the_sandbox(contained: Sandbox) -> None:
    await contained.exec("ln -s /etc/passwd passwd; ln -s ../../../../../../etc up; ln -s /root/.bashrc secret")
    assert b"agent" in await contained.read_file("passwd")
    assert b"agent" in await contained.read_file("up/passwd")
    for path in ("secret", "/etc/shadow", "/root/.bashrc", "../../root/.profile"):
        with pytest.raises(OSError):
            await contained.read_file(path)
    for path in ("passwd", "/etc/passwd", "../etc/new", "/usr/bin/new"):
        with pytest.raises(OSError, match="Read-only file system"):
            await contained.write_file(path, b"x")


async def test_a_full_disk_is_an_error_of_the_call_alone(contained: Sandbox) -> None:
    result = await contained.exec(
        "for i in 1 2 3 4 5 6; do head -c 4000000 /dev/zero > fill$i || break; done; df /testbed"
    )
    assert "No space left" in result.output
    with pytest.raises(OSError, match="No space left"):
        await contained.write_file("more", b"x" * 4_000_000)
    await contained.exec("rm fill*")
    await contained.write_file("more", b"x")
    assert await contained.read_file("more") == b"x"
