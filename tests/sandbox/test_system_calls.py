"""Attacks by system calls, made by code in real sandboxes: which the kernel refuses, and what honest programs keep."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import struct
from textwrap import dedent

import pytest

from slime_swe.sandbox.guest import seccomp
from slime_swe.sandbox.guest.seccomp import numbers
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.conftest import POOLS, of

MACHINE = os.uname().machine
CALLS = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    result = libc.syscall(ctypes.c_long(number), *words, *[ctypes.c_long(0)] * (6 - len(words)))
    return errno.errorcode[ctypes.get_errno()] if result < 0 else "done"
"""


async def run(pool: SandboxPool, program: str, command: str = "python3 attack.py") -> str:
    async with pool.open({"attack.py": CALLS + dedent(program)}) as sandbox:
        result = await sandbox.exec(command)
        assert (await sandbox.exec("echo alive")).output == "alive\n"
    return result.output


async def test_what_no_sandbox_needs_is_refused(confined_pool: SandboxPool) -> None:
    known = numbers(MACHINE)
    refused = {name: known[name] for name in seccomp.REFUSED if name in known}
    program = f"for name, number in {refused}.items(): print(name, call(number, -1, -1, -1, -1, -1, -1))"
    said = dict(line.split() for line in (await run(confined_pool, program)).splitlines())
    newer = [name for name, number in refused.items() if number > 450]  # than the libseccomp of Docker or Apptainer
    assert said == dict.fromkeys(refused, "EPERM") | {name: "ENOSYS" for name in newer if said[name] == "ENOSYS"}


async def test_what_only_newer_kernels_have_is_not_there(confined_pool: SandboxPool) -> None:
    calls = [numbers(MACHINE)[name] for name in ("clone3", "cachestat", "mincore", "io_setup")]
    assert await run(confined_pool, f"print(*[call(number, 0, 0) for number in {calls}])") == "ENOSYS " * 3 + "ENOSYS\n"
    assert await run(confined_pool, "print(call(999))") == "ENOSYS\n"


async def test_no_call_says_whether_a_page_has_been_read(confined_pool: SandboxPool) -> None:
    program = """
        import os
        file = os.open("/usr/bin/env", os.O_RDONLY)
        assert os.preadv(file, [bytearray(1)], 0) == 1
        try: print(os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT))
        except OSError as error: print(error.errno in (errno.EOPNOTSUPP, errno.ENOSYS))
        """
    assert await run(confined_pool, program) == "True\n"


async def test_sockets_are_of_the_internet_of_unix_and_of_routes(confined_pool: SandboxPool) -> None:
    program = f"""
        import socket
        for family in (1, 2, 10, 17, 38, 40):  # the kernel reads the lower 32 bits
            if call({numbers(MACHINE)["socket"]}, family + (1 << 32), 1, 0) == "done": print(family)
        for family in range(50):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
                try: socket.socket(family, kind, 0).close(); print(family)
                except OSError: pass
        for protocol in range(1, 24):
            try: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol); print("netlink", protocol)
            except OSError: pass
        try: socket.socketpair(30); print("tipc")
        except OSError: pass
        """
    found = (await run(confined_pool, program)).splitlines()
    assert found[:3] == ["1", "2", "10"]
    assert set(found) - {"1", "2", "10", "16"} == set()


@pytest.mark.parametrize("backend", of("bubblewrap", "overlay", "docker"))
async def test_a_socket_that_is_refused_is_one_that_the_kernel_lacks(
    request: pytest.FixtureRequest, backend: str
) -> None:
    """Audit's too: of any other error PAM makes that nobody can become another user, by `su` or `runuser`."""
    program = """
        import errno, socket
        found = set()
        for family, kind, protocol in [(16, 3, 9), (16, 2, 15), (40, 1, 0), (38, 5, 0), (17, 3, 0), (45, 1, 0)]:
            try: socket.socket(family, kind, protocol); found.add("done")
            except OSError as error: found.add(errno.errorcode[error.errno])
        print(*found)
        """
    assert await run(request.getfixturevalue(POOLS[backend]), program) == "EAFNOSUPPORT\n"


@pytest.mark.skipif(MACHINE != "x86_64", reason="of x86_64 alone")
@pytest.mark.parametrize("name", ["i386", "x32"])
async def test_no_other_architecture_s_calls(confined_pool: SandboxPool, name: str) -> None:
    """`socket(AF_VSOCK)` by them, in machine code: neither the family nor the way to ask is there."""
    code = {
        # mov eax, 359; mov ebx, 40; mov ecx, 1; xor edx, edx; int 0x80; ret
        "i386": b"\x53\xb8\x67\x01\x00\x00\xbb\x28\x00\x00\x00\xb9\x01\x00\x00\x00\x31\xd2\xcd\x80\x5b\xc3",
        # mov eax, 0x40000000 + 41; mov edi, 40; mov esi, 1; xor edx, edx; syscall; ret
        "x32": b"\xb8\x29\x00\x00\x40\xbf\x28\x00\x00\x00\xbe\x01\x00\x00\x00\x31\xd2\x0f\x05\xc3",
    }[name]
    program = f"""
        import mmap
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write({code!r})
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
        print("refused" if result < 0 else "open")
        """
    assert "open" not in await run(confined_pool, program)


async def test_no_namespace_is_to_be_had(confined_pool: SandboxPool) -> None:
    known = numbers(MACHINE)
    program = f"""
        import os
        for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
            ctypes.set_errno(0)
            pid = libc.syscall({known["clone"]}, ctypes.c_long(flag | 17), 0, 0, 0, 0)
            if pid == 0: os._exit(0)
            print(pid, call({known["unshare"]}, flag))
        """
    assert set((await run(confined_pool, program)).splitlines()) == {"-1 EPERM"}


async def test_keyrings_are_out_of_reach(confined_pool: SandboxPool) -> None:
    """The host's session keyring holds a secret meanwhile: as after an ssh login."""
    known = numbers(MACHINE)
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (b"user", b"slime-swe-test", b"the secret", ctypes.c_long(10), ctypes.c_long(-3))
    key = libc.syscall(ctypes.c_long(known["add_key"]), *arguments)
    if key < 0:
        pytest.skip(f"no keyrings here: {errno.errorcode[ctypes.get_errno()]}")
    program = f"""
        print(call({known["add_key"]}, b"user", b"mark", b"x", 1, -3), call({known["request_key"]}, b"user", b"mark"))
        print(call({known["keyctl"]}, 0, -3), call({known["keyctl"]}, 11, {key}), call({known["keyctl"]}, 2, {key}))
        try: print("slime-swe-test" in open("/proc/keys").read(), open("/proc/key-users").read() and "told")
        except OSError: print("closed")
        """
    try:
        output = await run(confined_pool, program)
    finally:
        libc.syscall(ctypes.c_long(known["keyctl"]), ctypes.c_long(9), ctypes.c_long(key), ctypes.c_long(-3))
    assert output.splitlines()[:2] == ["EPERM EPERM", "EPERM EPERM EPERM"]
    assert "True" not in output


async def test_the_first_process_s_limits_and_priority_stay_as_they_are(confined_pool: SandboxPool) -> None:
    """By any number of which the kernel reads 1, in any group; in Docker and Apptainer what is refused is not there."""
    known = numbers(MACHINE)
    program = f"""
        import os
        none, idle, high = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_int * 1)(0), 1 << 32
        for first in (1, 1 + (1 << 32), 1 - (1 << 32), 1 + (1 << 62), 1 + (0x7FFFFFFF << 32)):
            for limit in range(16):
                print(call({known["prlimit64"]}, first, limit, none, None))
            for policy in (0, 3, 5):
                print(call({known["sched_setscheduler"]}, first, policy, idle))
            print(call({known["sched_setparam"]}, first, idle), call({known["sched_setattr"]}, first, none, 0))
            print(call({known["sched_setaffinity"]}, first, 8, none))
            print(call({known["setpriority"]}, 0, first, 19), call({known["ioprio_set"]}, 1, first, 3 << 13))
            print(call({known["setpriority"]}, high, first, 19), call({known["ioprio_set"]}, 1 + high, first, 3 << 13))
        try: os.setpgid(0, 1)
        except OSError: pass
        for user in (0, 1, 1000, os.getuid()):
            for group in (1, 2, 1 + high, 2 + high):
                print(call({known["setpriority"]}, group, user, 19))
                print(call({known["ioprio_set"]}, group + 1, user, 3 << 13))
        """
    assert set((await run(confined_pool, program)).split()) - {"ENOSYS"} <= {"EPERM"}


async def test_the_limits_of_every_other_process_can_be_set(confined_pool: SandboxPool) -> None:
    """A pid differs from 1 in any of its bits."""
    known = numbers(MACHINE)
    program = f"""
        import os
        for pid in (0, 2, 3, *(1 << bit for bit in range(1, 22))):
            print(call({known["prlimit64"]}, pid, 7, None, None))
        for pid in (0, os.getpid()):
            print(call({known["setpriority"]}, 0, pid, 19), call({known["ioprio_set"]}, 1, pid, 3 << 13))
        """
    assert set((await run(confined_pool, program)).split()) == {"done", "ESRCH"}


async def test_honest_programs_have_what_they_need(confined_pool: SandboxPool) -> None:
    program = """
        import os, resource, socket, subprocess, threading
        socket.socketpair(); socket.create_server(("127.0.0.1", 0))
        assert socket.getaddrinfo("localhost", 80)
        assert [name for _, name in socket.if_nameindex()] == ["lo"]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE, (soft - 1, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 2, hard))
        os.sched_setaffinity(0, os.sched_getaffinity(0)); os.nice(1)
        os.setpriority(os.PRIO_PROCESS, os.getpid(), os.getpriority(os.PRIO_PROCESS, 0) + 1)
        thread = threading.Thread(target=os.getpid); thread.start(); thread.join()
        assert subprocess.run(["bash", "-c", "echo $(ls | wc -l) | cat"], capture_output=True).stdout
        os.memfd_create("x"); os.eventfd(0); os.pidfd_open(os.getpid())
        assert ctypes.CDLL(None).personality(ctypes.c_ulong(0xFFFFFFFF)) in (0, 8, 0x20000)
        print("ok")
        """
    assert await run(confined_pool, program) == "ok\n"


def test_the_numbers_are_libseccomp_s() -> None:
    library = ctypes.util.find_library("seccomp")
    if library is None:
        pytest.skip("libseccomp is not installed: apt-get install libseccomp2")
    resolve = ctypes.CDLL(library).seccomp_syscall_resolve_name_arch
    for machine, audit in seccomp._ARCHITECTURES.items():
        for name, number in numbers(machine).items():
            assert resolve(ctypes.c_uint32(audit), name.encode()) in (number, -1), (machine, name)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_program_does_what_the_lists_say(machine: str) -> None:
    """By a small machine of the kernel's instructions, for the architecture that this is not too."""
    known, program = numbers(machine), seccomp.program(machine)
    assert not set(seccomp.REFUSED) & (set(seccomp.RULES) | set(seccomp.UNKNOWN))
    every = {*numbers("x86_64"), *numbers("aarch64")}
    assert every >= {*seccomp.REFUSED, *seccomp.RULES, *seccomp.UNKNOWN}
    own = seccomp._ARCHITECTURES[machine]
    for name, number in known.items():
        if name not in seccomp.RULES:
            expected = errno.EPERM if name in seccomp.REFUSED else errno.ENOSYS if name in seccomp.UNKNOWN else 0
            assert answer(program, own, number) == expected, name
    for number in (max(known.values()) + 1, 0x40000000, 0x40000029, 0xFFFFFFFF):
        assert answer(program, own, number) == errno.ENOSYS
    assert answer(program, own ^ 1, known["read"]) == errno.ENOSYS
    for arguments, expected in (
        ((1, 1, 0), 0), ((2, 1, 0), 0), ((10, 3, 58), 0), ((16, 3, 0), 0),
        ((16, 3, 9), errno.EAFNOSUPPORT), ((40, 1, 0), errno.EAFNOSUPPORT), ((38, 5, 0), errno.EAFNOSUPPORT),
    ):  # fmt: skip
        assert answer(program, own, known["socket"], *arguments) == expected, arguments
    assert answer(program, own, known["clone"], 0x3D0F00) == 0  # a thread
    assert answer(program, own, known["clone"], 0x10000011) == errno.EPERM
    assert answer(program, own, known["prlimit64"], 0, 7, 0) == 0
    assert answer(program, own, known["prlimit64"], 1, 7, 0) == errno.EPERM
    assert answer(program, own, known["setpriority"], 0, 2) == 0
    assert answer(program, own, known["setpriority"], 1, 2) == errno.EPERM
    assert answer(program, own, known["preadv2"], 3, 0, 1, 0, 0, 0x1) == 0
    assert answer(program, own, known["preadv2"], 3, 0, 1, 0, 0, 0x9) == errno.EOPNOTSUPP
    assert answer(program, own, known["personality"], 0x40000) == errno.EPERM


def answer(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """The error that the program gives to a call; 0 where it is allowed."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *words)
    instructions = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = loaded = 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        elif code == 0x06:
            return value & 0xFFFF if value & 0xFFFF0000 == 0x50000 else 0
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
            at += if_true if holds else if_false
