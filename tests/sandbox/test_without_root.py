"""The sandboxes of a user who is not root, and has no cgroups."""

from __future__ import annotations

import shutil

import pytest

from tests.sandbox.nobody import Nobody

SCRIPT = """
import asyncio, sys
from slime_swe.sandbox import Limits, SandboxPool

WATCHES = "import ctypes; print(sum(ctypes.CDLL(None).inotify_init() >= 0 for _ in range(200)), 0)"

async def main():
    limits = Limits(memory_bytes=256 << 20, disk_bytes=16 << 20, processes=24)
    async with SandboxPool(sys.argv[1], limits=limits) as pool, pool.open({"pkg/a.py": "a", "x": "x"}) as sandbox:
        command = "rm -rf pkg; mkdir pkg; echo b > pkg/b.py; echo kept > kept; chmod 000 x pkg; ls /usr/bin | wc -l"
        print((await sandbox.exec(command)).output)
        print(await sandbox.diff())
        for command in ("rm -rf /usr/share; mkdir /usr/share; ls /usr/share", ":() { : | : & }; :; sleep 5"):
            print((await sandbox.exec(command, timeout=0.5)).exit_code)
        print((await sandbox.exec("head -c 1G /dev/zero > big; for i in 1 2; do cat big >> x; done")).output)
        print((await sandbox.exec("python3 -c \\"b'x' * (1 << 30)\\"")).output)
        print((await sandbox.exec(f"python3 -c '{WATCHES}'")).output)
        await sandbox._kill()
        print((await sandbox.exec("cat kept")).output)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("backend", "tmpfs"),
    [
        ("overlay", True),
        pytest.param("overlay", False, marks=pytest.mark.extended("sandbox backends")),
        pytest.param("apptainer", True, marks=pytest.mark.extended("sandbox backends")),
    ],
)
def test_a_sandbox_over_a_folder_needs_no_root(nobody: Nobody, backend: str, tmpfs: bool) -> None:
    if backend == "apptainer" and shutil.which("apptainer") is None:
        pytest.skip("no apptainer on the PATH")
    old = "" if tmpfs else "import platform; platform.release = lambda: '5.15.0'\n"  # as on a kernel before 6.6
    done = nobody.run(old + SCRIPT, backend)
    assert done.stderr == ""
    lines = done.stdout.split("\n")
    assert int(lines[0]) > 100
    assert {line for line in lines if line.startswith("diff --git")} == {
        f"diff --git a/{path} b/{path}" for path in ("kept", "pkg/a.py", "pkg/b.py")
    }
    assert ("No space left" in done.stdout) == tmpfs
    assert "MemoryError" in done.stdout
    assert "4 0" in lines, "instances of inotify, of the 128 that the user has"
    assert done.stdout.endswith("kept\n\n")
    assert not list(nobody.home.glob(".cache/slime-swe/sandbox/scratch/*"))


KEYS = """
import asyncio, ctypes, os, sys
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.guest.seccomp import numbers

async def main():
    number = numbers(os.uname().machine)["add_key"]
    made = ctypes.CDLL(None).syscall(number, b"user", b"slime-swe-test", b"the secret", ctypes.c_long(10), -4)
    print(made > 0 and "slime-swe-test" in open("/proc/keys").read())
    async with SandboxPool(sys.argv[1]) as pool, pool.open({"a.txt": "a"}) as sandbox:
        command = "cat /proc/keys /proc/key-users; echo b > a.txt; chmod 000 /testbed / 2>/dev/null"
        print(repr((await sandbox.exec(command)).output))
        print((await sandbox.diff()).splitlines()[0])
asyncio.run(main())
"""


@pytest.mark.parametrize("backend", ["bubblewrap", "overlay"])
def test_its_keys_are_listed_nowhere_and_closed_folders_are_read(nobody: Nobody, backend: str) -> None:
    """A sandbox is the user who started it, whose keys the kernel lists to all of that user's processes, and whose
    reader of changes may open no more than what the sandbox has left open."""
    done = nobody.run(KEYS, backend)
    if done.stdout.startswith("False"):
        pytest.skip("no keyrings here")
    assert done.stdout.splitlines() == ["True", "''", "diff --git a/a.txt b/a.txt"], done.stderr
