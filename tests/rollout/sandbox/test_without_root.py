"""The overlay and Apptainer backends of a user who is not root, and has no cgroups."""

from __future__ import annotations

import shutil

import pytest

from tests.rollout.sandbox.nobody import Nobody

SCRIPT = """
import asyncio, sys
from rollout.sandbox import Limits, SandboxPool

async def main():
    limits = Limits(memory_bytes=256 << 20, disk_bytes=16 << 20, processes=24)
    async with SandboxPool(sys.argv[1], limits=limits) as pool, pool.open({"pkg/a.py": "a", "x": "x"}) as sandbox:
        command = "rm -rf pkg; mkdir pkg; echo b > pkg/b.py; echo kept > kept; chmod 000 x pkg; ls /usr/bin | wc -l"
        print((await sandbox.exec(command)).output)
        print(sorted((await sandbox.snapshot()).items()))
        for command in ("rm -rf /usr/share; mkdir /usr/share; ls /usr/share", ":() { : | : & }; :; sleep 5"):
            print((await sandbox.exec(command, timeout=0.5)).exit_code)
        print((await sandbox.exec("head -c 1G /dev/zero > big; for i in 1 2; do cat big >> x; done")).output)
        print((await sandbox.exec("python3 -c \\"b'x' * (1 << 30)\\"")).output)
        await sandbox._container.kill()
        print((await sandbox.exec("cat kept")).output)
asyncio.run(main())
"""


@pytest.mark.parametrize(("backend", "tmpfs"), [("overlay", True), ("overlay", False), ("apptainer", True)])
def test_a_sandbox_over_a_folder_needs_no_root(nobody: Nobody, backend: str, tmpfs: bool) -> None:
    if backend == "apptainer" and shutil.which("apptainer") is None:
        pytest.skip("no apptainer on the PATH")
    old = "" if tmpfs else "import platform; platform.release = lambda: '5.15.0'\n"  # as on a kernel before 6.6
    done = nobody.run(old + SCRIPT, backend)
    assert done.stderr == ""
    lines = done.stdout.split("\n")
    assert int(lines[0]) > 100
    assert "[('kept', b'kept\\n'), ('pkg/b.py', b'b\\n'), ('x', b'x')]" in lines
    assert ("No space left" in done.stdout) == tmpfs
    assert "MemoryError" in done.stdout
    assert done.stdout.endswith("kept\n\n")
    assert not list(nobody.home.glob(".cache/slime-swe/sandbox/scratch/*"))
