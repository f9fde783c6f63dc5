"""Two open sandboxes: nothing that one does is to be seen in the other, and what one uses up nobody else lacks.

docs/sandboxes.md has the table of the ways that are tried here, and of those that stay open.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable
from textwrap import dedent

import pytest

from slime_swe.sandbox.base import Sandbox
from slime_swe.sandbox.bubblewrap import _users
from slime_swe.sandbox.docker.backend import DockerBackend
from slime_swe.sandbox.guest import processes
from slime_swe.sandbox.guest.seccomp import numbers
from slime_swe.sandbox.local import BubblewrapBackend
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.conftest import POOLS, of
from tests.sandbox.nobody import Nobody
from tests.waiting import until

PLACES = """
import ctypes, errno, fcntl, json, os, resource, select, signal, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)

def places():
    found = ["/", "/usr", "/usr/bin", "/usr/bin/env", "/bin/sh", "/etc", "/etc/passwd", "/etc/ld.so.cache", "/run"]
    found += [sys.prefix, os.__file__, "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/pts"]
    found += ["/proc", "/proc/locks", "/proc/version", "/proc/sys", "/proc/sys/kernel/ostype", "/proc/sys/fs/file-nr"]
    found += ["/proc/keys", "/proc/fs", "/proc/irq", "/proc/bus", "/proc/pressure", "/proc/sys/net", "/dev", "/tmp"]
    with open("/proc/self/mountinfo") as file:
        found += [line.split()[4] for line in file]
    inodes = {}
    for place in filter(os.path.exists, found):
        inodes.setdefault((os.stat(place).st_dev, os.stat(place).st_ino), place)
    return list(inodes.values())

def opened():
    for place in places():
        for mode in (os.O_RDWR, os.O_RDONLY):
            try: yield place, os.open(place, mode | os.O_NONBLOCK | os.O_NOCTTY)
            except OSError: continue
            break
"""
HOLD = """
for place, fd in opened():
    os.set_inheritable(fd, True)
    for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
        try: fcntl.lockf(fd, kind | fcntl.LOCK_NB)
        except OSError: continue
        break
    try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError: pass
    try: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError: pass
own = os.open("own", os.O_RDWR | os.O_CREAT)
fcntl.fcntl(own, 37, struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_SETLK
os.set_inheritable(own, True)
with open("own.txt", "w") as file: subprocess.run([sys.executable, "probe.py"], stdout=file)
"""
PROBE = """
for place, fd in opened():
    try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK: print("flock", place)
    asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
    for name, command in (("lock", fcntl.F_GETLK), ("open-file lock", 36)):
        try:
            if struct.unpack("hhqqi", fcntl.fcntl(fd, command, asked))[0] != fcntl.F_UNLCK: print(name, place)
        except OSError: pass
for place in places():
    try: os.close(os.open(place, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK: print("lease", place)
print(open("/proc/locks").read(), end="")
"""
ACT = """
if os.fork() == 0:
    while True:
        for place, fd in opened():
            try: os.read(fd, 1)
            except OSError: pass
            try: os.utime(place)
            except OSError: pass
            if os.path.isdir(place): os.listdir(place)
            os.close(fd)
"""
WATCH = """
own, watching = libc.inotify_init(), libc.inotify_init()
libc.inotify_add_watch(own, b"/usr/bin", 0xFFF)
os.listdir("/usr/bin")
watched = {libc.inotify_add_watch(watching, place.encode(), 0xFFF): place for place in places()}
seen = set()
for _ in range(100):
    if not select.select([watching], [], [], 1.0)[0]: break
    data = os.read(watching, 65536)
    while data:
        watch, _, _, size = struct.unpack_from("iIII", data)
        seen.add(watched.get(watch))
        data = data[16 + size:]
print(json.dumps([bool(select.select([own], [], [], 0)[0]), sorted(map(str, seen))]))
"""
TIMES = "print(json.dumps([(at, (os.stat(at).st_mtime_ns, os.stat(at).st_atime_ns)) for at in places()]))"


def program(text: str, nap: str = "") -> str:
    """Places, then what is done with them; with a nap, the process then sleeps as long, with its files open."""
    asleep = f"os.execvp('sleep', ['sleep', '{nap}'])" if nap else ""
    return PLACES + dedent(text) + asleep


def kept_apart(pool: SandboxPool, places: Iterable[str]) -> set[str]:
    """Of these places, those that each sandbox has for itself: all if root starts them, as Docker's daemon does."""
    if os.geteuid() == 0 or isinstance(pool._backend, DockerBackend):
        return set(places)
    shared = ("/dev/",) if isinstance(pool._backend, BubblewrapBackend) else ("/dev/", "/proc/")
    return {place for place in places if not place.startswith(shared)}


@contextlib.asynccontextmanager
async def doing(sandbox: Sandbox, text: str, nap: str, count_processes: Callable[[str], int]) -> AsyncIterator[None]:
    """Meanwhile the sandbox has done what the text says, and goes on."""
    await sandbox.write_file("doing.py", program(text, nap).encode())
    running = asyncio.create_task(sandbox.exec("python3 'doing.py'"))
    try:
        await until(lambda: running.done() or count_processes(nap) > 0, "it is done and sleeps")
        assert not running.done(), running.result()
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def output(sandbox: Sandbox, text: str) -> list[str]:
    await sandbox.write_file("asked.py", program(text).encode())
    return (await sandbox.exec("python3 'asked.py'")).output.splitlines()


async def test_a_lock_is_seen_in_its_own_sandbox_alone(
    confined_pool: SandboxPool, nap: str, count_processes: Callable[[str], int]
) -> None:
    """Of processes and of open files, by `flock`, and a lease: on everything that a sandbox can open."""
    async with confined_pool.open({"probe.py": program(PROBE)}) as first, confined_pool.open({}) as second:
        async with doing(first, HOLD, nap, count_processes):
            assert kept_apart(confined_pool, [row.split()[-1] for row in await output(second, PROBE)]) == set()
        seen = (await first.read_file("own.txt")).decode()
    for kind in ("flock /usr/bin/env", "flock /dev/null", "lock /dev/null", "lock /proc/sys/kernel/ostype"):
        assert kind in seen


async def test_what_one_sandbox_opens_and_touches_no_other_notices(
    confined_pool: SandboxPool, nap: str, count_processes: Callable[[str], int]
) -> None:
    async with confined_pool.open({}) as first, confined_pool.open({}) as second:
        before = dict(json.loads((await output(second, TIMES))[0]))
        async with doing(first, ACT, nap, count_processes):
            watches, seen = json.loads((await output(second, WATCH))[0])
            after = dict(json.loads((await output(second, TIMES))[0]))
    assert watches
    assert kept_apart(confined_pool, seen) == set()
    assert kept_apart(confined_pool, {place for place in before if before[place] != after[place]}) == set()


async def test_no_counter_tells_what_another_sandbox_has_open(
    confined_pool: SandboxPool, nap: str, count_processes: Callable[[str], int]
) -> None:
    counters = """
        for name in ("fs/file-nr", "fs/inode-nr", "fs/inode-state", "fs/dentry-state", "kernel/pty/nr"):
            print(open("/proc/sys/" + name).read(), end="")
        """
    open_many = """
        for number in range(500): os.dup(os.open("/testbed/" + str(number), os.O_CREAT))
        for number in range(8): os.openpty()
        """
    async with confined_pool.open({}) as first, confined_pool.open({}) as second:
        before = await output(second, counters)
        async with doing(first, open_many, nap, count_processes):
            assert await output(second, counters) == before


TAKE = """
def most(make):
    made = []
    try:
        while len(made) < 50_000: made.append(make())
    except OSError: pass
    return made

def inotify():
    fd = libc.inotify_init()
    if fd < 0: raise OSError
    os.set_inheritable(fd, True)
    return fd

def keep(fd):
    os.set_inheritable(fd, True)
    return fd

kept = most(inotify)
terminals = most(os.openpty)
with open("taken.txt", "w") as file: print(len(kept), len(terminals), file=file)
for pair in terminals: os.close(pair[0]); os.close(pair[1])
for number in range(6):
    if os.fork() == 0:
        most(lambda: os.open("/dev/null", os.O_RDONLY))
        signal.pause()
for fd in most(lambda: keep(os.open("/dev/null", os.O_RDONLY)))[:9]: os.close(fd)
"""


@pytest.mark.parametrize("backend", of("bubblewrap", "overlay"))
async def test_what_one_sandbox_takes_nobody_else_lacks(
    request: pytest.FixtureRequest, backend: str, nap: str, count_processes: Callable[[str], int]
) -> None:
    """In Docker, and in Apptainer that root starts, sandboxes share root's inotify instances."""
    pool: SandboxPool = request.getfixturevalue(POOLS[backend])
    libc = ctypes.CDLL(None)
    async with pool.open({}) as first, pool.open({}) as second:
        async with doing(first, TAKE, nap, count_processes):
            own = libc.inotify_init()
            assert own >= 0
            os.close(own)
            for fd in os.openpty():
                os.close(fd)
            asked = "print(libc.inotify_init() >= 0, len(os.openpty()), len(os.pipe()))"
            assert await output(second, asked) == ["True 2 2"]
        watches, terminals = map(int, (await first.read_file("taken.txt")).split())
        files = (await first.exec("ulimit -n; ulimit -i; ulimit -q; ulimit -l")).output.split()
    assert (watches, files) == (4, [str(processes.OPEN_FILES), "1024", "131072", "1024"])
    assert terminals <= processes.OPEN_FILES // 2


async def test_the_shares_of_a_user_are_a_sandbox_s_own(
    contained_pool: SandboxPool, nap: str, count_processes: Callable[[str], int]
) -> None:
    """Started by root, each is another user: of one who has 1,024 full pipes, the kernel makes further ones short."""
    users = _users() if os.geteuid() == 0 else None
    if users is None or users[1] == 1:
        pytest.skip("only root can give each sandbox a user of its own")
    asked = "print(fcntl.fcntl(os.pipe()[0], 1032))"  # F_GETPIPE_SZ
    take = """
        for number in range(1500):
            for fd in os.pipe(): os.set_inheritable(fd, True)
        with open("own.txt", "w") as file: print(fcntl.fcntl(os.pipe()[0], 1032), file=file)
        """
    async with contained_pool.open({}) as first, contained_pool.open({}) as second:
        async with doing(first, take, nap, count_processes):
            assert await output(second, asked) == ["65536"]
        assert int(await first.read_file("own.txt")) < 65536


FUTEX = f"""
libc.mmap.restype = ctypes.c_void_p
page = libc.mmap(None, ctypes.c_size_t(4096), 1, 1, os.open("/usr/bin/env", os.O_RDONLY), ctypes.c_long(0))
def futex(operation, value, seconds=None):
    word, until = ctypes.c_void_p(page), (ctypes.c_long * 2)(seconds, 0) if seconds else None
    return libc.syscall({numbers(os.uname().machine)["futex"]}, word, operation, ctypes.c_uint32(value), until, None, 0)
"""
WAIT = FUTEX + "print(futex(0, ctypes.c_uint32.from_address(page).value, 15))"
WAKE = FUTEX + "import time\nwhile not futex(1, 9): time.sleep(0.01)"


async def test_pages_of_the_system_are_shared(confined_pool: SandboxPool) -> None:
    """A way that is open: whoever waits for a futex on a page of a shared file is woken by another sandbox."""
    async with confined_pool.open({}) as first, confined_pool.open({}) as second:
        waited, _ = await asyncio.gather(output(first, WAIT), output(second, WAKE))
    assert waited == ["0"]


WITHOUT_ROOT = """
import asyncio, pathlib, sys
from slime_swe.sandbox import SandboxPool
backend, hold, probe, nap = sys.argv[1:]
def sleeps():
    for place in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if place.read_bytes() == b"sleep\\0" + nap.encode() + b"\\0": return True
        except OSError: pass
async def main():
    async with SandboxPool(backend) as pool, pool.open({"hold.py": hold, "probe.py": probe}) as first:
        async with pool.open({"probe.py": probe}) as second:
            holding = asyncio.create_task(first.exec("python3 'hold.py'"))
            while not holding.done() and not sleeps(): await asyncio.sleep(0.05)
            print((await second.exec("python3 'probe.py'")).output)
            holding.cancel()
asyncio.run(main())
"""


@pytest.mark.extended("tests/sandbox/test_channels.py::test_a_lock_is_seen_in_its_own_sandbox_alone")
@pytest.mark.parametrize(("backend", "shared"), [("bubblewrap", ("/dev/",)), ("overlay", ("/dev/", "/proc/"))])
def test_without_root_device_files_are_shared(nobody: Nobody, nap: str, backend: str, shared: tuple[str, ...]) -> None:
    """Nobody but root can make device files, or mount the /proc that an overlay's read-only parts are taken from."""
    done = nobody.run(WITHOUT_ROOT, backend, program(HOLD, nap), program(PROBE), nap)
    places = [line.split()[-1] for line in done.stdout.splitlines() if line]
    assert "/dev/null" in places, done.stderr
    assert [place for place in places if not place.startswith(shared)] == []
