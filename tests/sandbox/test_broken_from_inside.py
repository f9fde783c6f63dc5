"""Whatever code in a sandbox does to it ends as a command's exit code or as the policy's own failure: never as an error
of the sandbox, which would be taken for the machine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_swe.sandbox import local
from slime_swe.sandbox.base import Sandbox, SandboxError
from slime_swe.sandbox.bubblewrap import children
from slime_swe.sandbox.guest.seccomp import numbers
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.conftest import kill_fork_server
from tests.waiting import until

EAT = "x = []\nwhile True: x.append(bytes(1 << 20))\n"
LIMITS_OF_OTHERS = """
import itertools, os, resource, sys
for pid, kind in itertools.product((1, os.getppid(), *map(int, sys.argv[1:])), range(16)):
    try: resource.prlimit(pid, kind, (0, 0))
    except (OSError, ValueError): pass
"""
DEEP = "import os\nfor _ in range(3000):\n    os.mkdir('d' * 200); os.chdir('d' * 200)\n"
ODD = """
import os, socket
os.mkfifo("fifo"); socket.socket(1).bind("socket"); os.symlink("loop", "loop"); os.symlink("/proc/1/mem", "memory")
os.symlink("/dev/zero", "zeros"); os.truncate(os.open("hole", 65), 4 << 20); open(b"\\xff\\n", "w").write("x")
"""
FILL = "for f in /testbed/a /tmp/a /dev/shm/a; do for i in $(seq 12); do head -c 3M /dev/zero >$f$i; done; done"
ATTACKS = {
    "limits of the first process": "python3 limits.py",
    "limits of the shell": "python3 limits.py $PPID $$; for i in $(seq 16); do prlimit --pid $PPID --nofile=0; done",
    "kills all": "kill -9 -1",
    "kills the shell": "kill -9 $PPID",
    "kills all by Python": "python3 -c 'import os; os.kill(-1, 9)'",
    "stops all": "kill -STOP 1; kill -STOP $PPID; kill -STOP -1",
    "every signal to the first": "for s in $(seq 64); do kill -$s 1; done",
    "every signal to all": "trap '' $(seq 31); for s in $(seq 64); do kill -$s -1; done",
    "priority of the first": "renice 19 1; chrt -i -p 0 1; ionice -c 3 -p 1; echo 19 >/proc/1/autogroup",
    "out of memory": "echo -17 >/proc/self/oom_score_adj; echo 1000 >/proc/1/oom_score_adj; python3 eat.py",
    "processes": ":() { : | : & }; :; sleep 0.3",
    "disk": FILL,
    "inodes": 'python3 -c \'for i in range(210000): open(f"/tmp/{i}", "w")\' 2>&1 | tail -1',
    "deep folders": "python3 deep.py",
    "odd files": "python3 odd.py",
    "no permissions": "chmod -R 000 /testbed /tmp; chmod 000 /",
    "no programs": "rm -rf /bin/bash /usr/bin/bash /lib64 /usr/lib64 /usr/bin /usr/lib; rm -rf /testbed /tmp",
    "another repository": "cd /; rm -rf /testbed; ln -s / /testbed; mv /tmp /testbed",
    "the first's files": "for f in /proc/1/fd/*; do (echo x >$f) 2>/dev/null; (timeout 0.2 cat $f) >/dev/null; done",
}


async def use(sandbox: Sandbox) -> None:
    """As an episode goes on: any outcome is one, but for a `SandboxError`."""
    result = await sandbox.exec("echo alive", timeout=2)
    assert result.exit_code is None or result.exit_code >= 0
    for operation in (
        sandbox.read_file("hello.txt"),
        sandbox.write_file("new/file", b"new"),
        sandbox.read_file("hole"),
    ):
        with contextlib.suppress(OSError):
            await operation
    assert isinstance(await sandbox.diff(), str)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_an_attack_on_the_sandbox_is_no_error_of_the_sandbox(confined_pool: SandboxPool, attack: str) -> None:
    files = {"hello.txt": "hello\n", "limits.py": LIMITS_OF_OTHERS, "eat.py": EAT, "deep.py": DEEP, "odd.py": ODD}
    async with confined_pool.open(files) as sandbox:
        result = await sandbox.exec(ATTACKS[attack], timeout=2)
        assert result.exit_code is None or result.exit_code >= 0
        await use(sandbox)
    async with confined_pool.open(files) as sandbox:  # and it is no other sandbox's either
        assert (await sandbox.exec("cat hello.txt")).output == "hello\n"


async def test_the_first_process_writes_nothing_of_its_own_in_proc(forked: Sandbox) -> None:
    """The file tools are that process: a slack of an hour, say, would let it oversleep every time limit."""
    await forked.exec("ln -s /proc/self/timerslack_ns slack; ln -s /proc/self/oom_score_adj score")
    for path in ("slack", "score", "/proc/self/timerslack_ns", "/proc/thread-self/comm"):
        with pytest.raises(PermissionError):
            await forked.write_file(path, b"1000")
    assert (await forked.exec("sleep 30", timeout=0.2)).timed_out


async def first_process(pool: SandboxPool) -> int:
    """The newest sandbox's, by the time of its start: on a busy machine the numbers of processes begin anew."""
    server = pool._backend._server._process.pid  # type: ignore[attr-defined]
    (init,) = children(server)
    (supervisor,) = children(init)
    return max(children(supervisor), key=_started)


def _started(pid: int) -> int:
    """In ticks since the machine's start."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


async def gone(sandbox: Sandbox) -> None:
    for _ in range(2):
        result = await sandbox.exec("echo alive")
        assert (result.exit_code, result.output) == (137, "[the sandbox's shell was killed and does not start again]\n")
    with pytest.raises(OSError, match="killed from inside"):
        await sandbox.read_file("hello.txt")
    with pytest.raises(OSError, match="killed from inside"):
        await sandbox.write_file("hello.txt", b"")
    assert await sandbox.diff() == ""


async def test_a_first_process_that_dies_is_the_policy_s_doing(contained_pool: SandboxPool) -> None:
    async with contained_pool.open({"hello.txt": "hello\n"}) as sandbox:
        running = asyncio.create_task(sandbox.exec("echo x > new.txt; sleep 20"))
        await asyncio.sleep(0.2)
        os.kill(await first_process(contained_pool), signal.SIGKILL)
        assert (await running).exit_code == 137
        await gone(sandbox)


async def test_a_first_process_that_falls_silent_is_killed(
    contained_pool: SandboxPool, monkeypatch: pytest.MonkeyPatch, count_processes: Callable[[str], int], nap: str
) -> None:
    async with contained_pool.open({"hello.txt": "hello\n"}) as sandbox:
        monkeypatch.setattr(local, "ANSWER_SECONDS", 0.5)
        running = asyncio.create_task(sandbox.exec(f"sleep {nap}", timeout=3))
        await until(lambda: count_processes(f"sleep\0{nap}"), "the command")
        os.kill(await first_process(contained_pool), signal.SIGSTOP)
        assert (await running).exit_code == 137
        await gone(sandbox)
        await until(lambda: not count_processes(f"sleep\0{nap}"), "the command's end")


async def test_a_fork_server_that_dies_is_none_of_it() -> None:
    async with SandboxPool("bubblewrap") as pool, pool.open({}) as sandbox:
        await sandbox.exec("true")
        kill_fork_server(pool)
        for operation in (sandbox.exec("true"), sandbox.diff(), sandbox.read_file("a")):
            with pytest.raises(SandboxError):
                await operation


async def test_a_request_that_we_cut_is_none_of_it(contained_pool: SandboxPool) -> None:
    async with contained_pool.open({}) as sandbox:
        writing = asyncio.create_task(sandbox.write_file("a", bytes(15 << 20)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
        with contextlib.suppress(SandboxError):
            assert (await sandbox.exec("echo alive")).output == "alive\n"


FORGE = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = os.getppid()
for _ in range(3):  # the sub-shell, the shell, the first process
    for number in range(64):
        fd = libc.syscall({numbers(os.uname().machine)["pidfd_getfd"]}, os.pidfd_open(pid), number, 0)
        if fd >= 0 and os.readlink("/proc/self/fd/%d" % fd).startswith("socket"):
            os.write(fd, bytes.fromhex(open("forged").read()))
            print("forged", flush=True)
    pid = int(open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[1])
"""


def frame(text: bytes, blob: bytes = b"", *, more: int = 0) -> str:
    return (struct.pack(">IQ", len(text), len(blob) + more) + text + blob).hex()


@pytest.mark.parametrize(
    "forged",
    [
        frame(b"not json"),
        frame(b"[]"),
        frame(b"[" * 100_000),
        frame(b'{"exit_code": "zero"}'),
        frame(b'{"seconds": 1' + b"0" * 5000 + b"}"),
        frame(b'{"exit_code": 0, "head": -3, "missing": -1, "seconds": -1e308}', b"output"),
        frame(json.dumps({"files": [["a", -5], ["b", 9]], "deleted": ["../../x", "\udcff"]}).encode(), b"four") * 2,
        frame(json.dumps({"files": [["a", 9]]}).encode()) * 2,
        frame(b"{}", more=1 << 62),
        struct.pack(">IQ", 1 << 31, 0).hex(),
    ],
)
async def test_a_forged_answer_is_no_error_of_the_sandbox(plain_pool: SandboxPool, forged: str) -> None:
    """Without bubblewrap a command reaches its first process and that one's socket."""
    async with plain_pool.open({"hello.txt": "hello\n", "forge.py": FORGE, "forged": forged}) as sandbox:
        result = await sandbox.exec("python3 forge.py; echo $?", timeout=5)
        assert result.exit_code == 137 or result.output != "forged\n0\n"  # it was an answer indeed
        await use(sandbox)
