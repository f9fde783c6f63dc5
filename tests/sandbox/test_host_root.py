"""What a sandbox's root, who is the host's root where that one starts sandboxes, can't do to the host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from slime_swe.sandbox.pool import SandboxPool

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Opening is all that is tried: what could be written would be this machine's.
OPEN = """
import os, sys
for top in ("/proc", "/sys"):
    for folder, folders, names in os.walk(top):
        if folder == "/proc":
            folders[:] = [name for name in folders if not name.isdigit() and name not in ("self", "thread-self")]
        for name in names:
            try:
                if not os.stat(f"{folder}/{name}").st_mode & 0o222:
                    continue  # the kernel takes nothing there, whoever may open it
                os.close(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_NONBLOCK))
                print("open:", f"{folder}/{name}")
            except OSError:
                pass
"""


async def test_nothing_of_the_host_s_kernel_can_be_set(layered_pool: SandboxPool) -> None:
    async with layered_pool.open({"open.py": OPEN}) as sandbox:
        result = await sandbox.exec("python3 open.py; test -e /proc/sys/kernel/core_pattern && echo looked")
    assert result.output == "looked\n"


async def test_the_host_s_device_files_are_not_a_sandbox_s(layered_pool: SandboxPool) -> None:
    before = [_state(name) for name in DEVICES]
    async with layered_pool.open({}) as sandbox:
        names = " ".join(f"/dev/{name}" for name in DEVICES)
        result = await sandbox.exec(f"touch -c -d @1 {names}; chmod 666 {names}; echo x > /dev/null; echo $?")
        assert result.output.splitlines()[-1] == "0"
        assert (await sandbox.exec("head -c 5 /dev/zero | wc -c; head -c 4 /dev/urandom | wc -c")).output == "5\n4\n"
    assert [_state(name) for name in DEVICES] == before


def _state(name: str) -> tuple[bool, int, int]:
    found = os.stat(Path("/dev", name))
    return stat.S_ISCHR(found.st_mode), found.st_mode, int(found.st_mtime)


READ = """
import os
for name in os.listdir("/proc"):
    path = f"/proc/{name}"
    try:
        if os.path.isfile(path) and not os.stat(path).st_mode & 0o44 and open(path, "rb").read(1):
            print("read:", path)
    except OSError:
        pass
print("looked")
"""


async def test_what_root_alone_may_read_is_closed(
    layered_pool: SandboxPool,
) -> None:
    async with layered_pool.open({"read.py": READ}) as sandbox:
        assert (await sandbox.exec("python3 read.py")).output == "looked\n"
