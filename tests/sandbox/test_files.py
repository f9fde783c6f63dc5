"""Reading, writing and diffs, the same in every backend."""

from __future__ import annotations

import pytest

from slime_swe.patches import OVERSIZED, apply_patch, binary_paths
from slime_swe.sandbox.base import Limits, Sandbox
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.conftest import of
from tests.sandbox.contents import contents

FILES = {"hello.txt": "hello\n", "pkg/mod.py": "def f():\n    return 1\n", "data.bin": b"\x00\xff"}
STARTED = {path: text.encode() if isinstance(text, str) else text for path, text in FILES.items()}


async def test_a_sandbox_starts_with_its_files(sandbox: Sandbox) -> None:
    assert await contents(sandbox) == STARTED
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
    await sandbox.exec("mkfifo pipe; ln -s pipe to_pipe; ln -s /dev/zero zero; ln -s loop loop")
    await sandbox.exec("python3 -c 'import socket; socket.socket(1).bind(\"socket\")'")
    for path in ("pipe", "to_pipe", "zero", "socket"):
        with pytest.raises(FileNotFoundError, match="not a regular file"):
            await sandbox.read_file(path)
    with pytest.raises(OSError, match="symbolic links"):
        await sandbox.read_file("loop")
    assert await sandbox.read_file("hello.txt") == b"hello\n"


async def test_a_diff_holds_regular_files_and_no_caches(sandbox: Sandbox) -> None:
    await sandbox.exec(
        "mkdir -p __pycache__ pkg/__pycache__ .git/objects; touch __pycache__/a.pyc pkg/__pycache__/b .git/HEAD c.pyc"
        "; ln -s hello.txt link; ln -s / root; mkfifo pipe; mkdir empty; echo new > empty/.hidden; rm data.bin"
    )
    after = {**STARTED, "empty/.hidden": b"new\n"}  # data.bin is not text, and only named
    assert apply_patch(FILES, await sandbox.diff()) == after


@pytest.mark.parametrize("name", [".git", ".GIT"])
async def test_a_diff_leaves_out_what_git_takes_for_a_repository_s_own(sandbox: Sandbox, name: str) -> None:
    """A worktree or a submodule has a file of that name, a repository a folder; git refuses both in any case."""
    await sandbox.exec(
        f"mkdir -p .claude/a lib/{name}/refs b; echo 'gitdir: /testbed/.git/worktrees/a' > .claude/a/{name}"
        f"; echo ref > lib/{name}/HEAD; ln -s ../lib/{name} b/{name}; echo 1 > lib/{name}x; echo '# end' >> pkg/mod.py"
    )
    after = {**STARTED, "pkg/mod.py": STARTED["pkg/mod.py"] + b"# end\n", f"lib/{name}x": b"1\n"}
    assert apply_patch(FILES, await sandbox.diff()) == after


async def test_a_diff_turns_the_start_into_the_end(sandbox: Sandbox) -> None:
    await sandbox.exec("rm hello.txt; echo '# end' >> pkg/mod.py; mkdir a; printf 'no newline' > a/b")
    assert apply_patch(FILES, await sandbox.diff()) == await contents(sandbox)


async def test_a_large_repository_passes_whole(pool: SandboxPool) -> None:
    files = {f"d{number % 50}/f{number}.txt": f"{number}\n" * 200 for number in range(1000)}
    async with pool.open(files) as sandbox:
        await sandbox.exec("echo more >> d7/f7.txt")
        assert (await sandbox.exec("find . -type f | wc -l")).output == "1000\n"
        assert (await sandbox.diff()).count("diff --git") == 1


@pytest.mark.parametrize("command", ["chmod 000 hello.txt", "chmod 000 pkg", "chmod 000 .", "mkdir -m 000 closed"])
async def test_what_may_not_be_read_is_read_all_the_same(sandbox: Sandbox, command: str) -> None:
    await sandbox.exec(f"echo '# end' >> pkg/mod.py; echo more >> hello.txt; {command}")
    after = {**STARTED, "pkg/mod.py": STARTED["pkg/mod.py"] + b"# end\n", "hello.txt": b"hello\nmore\n"}
    assert apply_patch(FILES, await sandbox.diff()) == after


async def test_a_repository_that_is_gone_is_a_patch_that_deletes_it(sandbox: Sandbox) -> None:
    await sandbox.exec('rm -rf "$PWD"')
    assert (await sandbox.diff()).count("deleted file mode") == len(FILES)


@pytest.mark.parametrize("pool", of("bubblewrap", "subprocess", "overlay", "docker", "apptainer"), indirect=True)
async def test_deep_folders_are_in_the_patch_and_those_too_deep_to_open_are_not(pool: SandboxPool) -> None:
    nest = 'python3 -c \'import os\nfor i in range({0}): os.mkdir("d"); os.chdir("d")\nopen("end", "w").write("x\\n")\''
    async with pool.open(FILES) as sandbox:
        await sandbox.exec(nest.format(1200))
        deep = apply_patch(FILES, await sandbox.diff())
        assert deep == {**STARTED, "d/" * 1200 + "end": b"x\n"}
        assert (await sandbox.exec("mkdir long; cd long; " + nest.format(3000))).exit_code == 0
        assert apply_patch(FILES, await sandbox.diff()) == deep
    async with pool.open(deep) as sandbox:
        assert await sandbox.diff() == ""


async def test_a_file_with_holes_is_only_named(contained_pool: SandboxPool) -> None:
    async with contained_pool.open(FILES, Limits()) as sandbox:
        await sandbox.exec("for i in $(seq 300); do truncate -s 60M hole$i; done; echo more >> hello.txt")
        patch = await sandbox.diff()
        assert sorted(binary_paths(patch)) == sorted(f"hole{i}" for i in range(1, 301))
        assert apply_patch(FILES, patch) == {**STARTED, "hello.txt": b"hello\nmore\n"}
        with pytest.raises(OSError, match="more than"):
            await sandbox.read_file("hole1")
        await sandbox.exec("rm hole*; for i in $(seq 9); do truncate -s 3M part$i; done")
        assert len(binary_paths(await sandbox.diff())) == 9


async def test_a_file_of_four_mebibytes_is_given_in_full_and_no_larger_one(contained_pool: SandboxPool) -> None:
    most = 4 << 20
    async with contained_pool.open(FILES, Limits()) as sandbox:
        await sandbox.exec(f"yes | head -c {most} > most; yes | head -c {most + 1} > larger")
        assert len(await sandbox.read_file("most")) == most
        with pytest.raises(OSError, match="more than"):
            await sandbox.read_file("larger")
        await sandbox.exec("rm most")
        assert binary_paths(await sandbox.diff()) == ["larger"]
        await sandbox.exec(f"rm larger; yes | head -c {most} > most")
        assert await sandbox.diff() == OVERSIZED, "so all of it was read"


@pytest.mark.parametrize(
    "command",
    [
        "yes | head -c 3000000 > text",
        "for i in $(seq 6); do yes | head -c 1500000 > text$i; done",
        "name=$(printf %0250d 0); mkdir -p $name/$name/$name; cd $name/$name/$name; seq 12000 | xargs touch",
    ],
)
async def test_a_patch_of_any_size_is_bounded(contained_pool: SandboxPool, command: str) -> None:
    async with contained_pool.open(FILES, Limits()) as sandbox:
        assert (await sandbox.exec(command)).exit_code == 0
        assert await sandbox.diff() == OVERSIZED
        assert apply_patch(FILES, OVERSIZED) == STARTED
        assert (await sandbox.exec("echo alive")).output == "alive\n"


async def test_a_large_file_may_change_a_little(contained_pool: SandboxPool) -> None:
    files = {f"data{number}.txt": f"{number}\n" * 2_000_000 for number in range(2)}  # more lines than are compared
    async with contained_pool.open(files, Limits()) as sandbox:
        await sandbox.exec("for file in data*; do echo end >> $file; done")
        after = {path: text.encode() + b"end\n" for path, text in files.items()}
        assert apply_patch(files, await sandbox.diff()) == after


async def test_a_name_that_is_no_text_passes(sandbox: Sandbox) -> None:
    await sandbox.exec("echo 1 > $'\\xff.py'; echo 2 > $'b\\303.py'")
    patch = await sandbox.diff()
    patch.encode()
    assert (
        apply_patch(FILES, patch) == await contents(sandbox) == {**STARTED, "\udcff.py": b"1\n", "b\udcc3.py": b"2\n"}
    )


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
