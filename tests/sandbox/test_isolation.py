"""What a contained sandbox can't see, reach, keep or exceed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_swe.sandbox.base import Limits, Sandbox
from slime_swe.sandbox.pool import SandboxPool

CONNECT = """
import socket, sys
for family, address in ((socket.AF_INET, ("192.0.2.1", 80)), (socket.AF_INET, ("127.0.0.1", int(sys.argv[1])))):
    try:
        socket.create_connection(address, timeout=2)
        print("connected")
    except OSError as error:
        print(error.strerror)
"""
SERVE = """
import socket, time
tcp = socket.create_server(("127.0.0.1", 8765))
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0meet")
abstract.listen()
print("up", flush=True)
time.sleep(float(__import__("sys").argv[1]))
"""
CONNECT_TO_ANOTHER = """
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", 8765)), (socket.AF_UNIX, "\\0meet")):
    try:
        socket.socket(family).connect(address)
        print("connected")
    except ConnectionRefusedError:
        print("refused")
"""
NAMESPACES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for flag in (0x10000000, 0x20000, 0x40000000):
    print(libc.unshare(flag))
print(libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None), libc.umount2(b"/testbed", 2), libc.prctl(39, 0, 0, 0, 0))
"""


async def test_no_network_but_its_own_loopback(contained: Sandbox) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        await contained.write_file("connect.py", CONNECT.encode())
        output = (await contained.exec(f"python3 connect.py {server.getsockname()[1]}")).output
    assert output == "Network is unreachable\nConnection refused\n"
    result = await contained.exec(
        'python3 -c \'import socket; s=socket.create_server(("127.0.0.1", 0)); '
        'socket.create_connection(s.getsockname()); print("ok")\''
    )
    assert result.output == "ok\n"


async def test_the_host_s_files_and_environment_are_not_there(
    contained: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = await contained.exec(
        "env; ls /; ls /home /root /srv /opt /mnt /boot /sys /var /run 2>&1; cat /etc/shadow 2>&1"
    )
    assert os.environ.get("USER", "no user") not in result.output
    for word in ("HOSTNAME", "shadow:", "container_info"):
        assert word not in result.output.replace("/etc/shadow:", "")
    listed = (await contained.exec("ls /")).output.split()
    assert set(listed) <= {
        *"bin dev etc lib lib32 lib64 libx32 proc root run sbin testbed tmp usr var home opt".split()
    }
    repository = Path(__file__).parents[2]
    assert (await contained.exec(f"ls {repository}/README.md")).exit_code != 0
    found = await contained.exec("find / -xdev -path /proc -prune -o -writable -type d -print 2>/dev/null")
    assert sorted(found.output.split()) == ["/testbed", "/tmp"]


async def test_the_system_is_read_only(contained: Sandbox) -> None:
    for path in ("/x", "/usr/x", "/etc/x", "/dev/x", "/run/x", "/var/x", "/proc/sys/kernel/hostname", "/run/guest/x"):
        assert (await contained.exec(f"echo x > {path}")).exit_code != 0, path
    for path in ("/tmp/x", "/dev/shm/x", "/var/tmp/x", "/testbed/x", "x", "$HOME/x", "/dev/null"):
        assert (await contained.exec(f"echo x > {path}")).exit_code == 0, path


async def test_no_capability_is_left_nor_to_be_had(contained: Sandbox) -> None:
    await contained.write_file("ns.py", NAMESPACES.encode())
    for command in ("python3 ns.py", "python3 -I -S -B ns.py"):
        assert (await contained.exec(command)).output == "-1\n-1\n-1\n-1 -1 1\n", command
    status = (await contained.exec("grep -E 'Cap|NoNewPrivs' /proc/self/status")).output.split()
    assert dict(zip(status[::2], status[1::2], strict=True)) == {
        **{f"Cap{kind}:": "0" * 16 for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")},
        "NoNewPrivs:": "1",
    }


async def test_the_first_process_can_t_be_looked_into(contained: Sandbox) -> None:
    result = await contained.exec("ls /proc/1/fd; cat /proc/1/environ; cat /proc/1/mem; echo end")
    assert result.output.count("Permission denied") == 3
    await contained.write_file("fds.py", b"import os\nprint(sorted(os.listdir('/proc/self/fd')))")
    assert (await contained.exec("python3 -I -S -B fds.py")).output == "['0', '1', '2', '3']\n"
    assert (await contained.exec("ls /proc/self/fd")).output == "0\n1\n2\n3\n"


async def test_siblings_do_not_see_each_other(contained_pool: SandboxPool) -> None:
    async with (
        contained_pool.open({"serve.py": SERVE}) as first,
        contained_pool.open({"meet.py": CONNECT_TO_ANOTHER}) as second,
    ):
        await first.write_file("/tmp/secret", b"x")
        import asyncio

        serving = asyncio.create_task(first.exec("echo x > secret; exec python3 serve.py 3"))
        await asyncio.sleep(1)
        assert (await second.exec("python3 meet.py")).output == "refused\nrefused\n"
        listing = (
            await second.exec("ls /tmp /testbed /dev/shm/; ls /proc | grep -c '^[0-9]'; ipcs -m | grep -c x")
        ).output
        assert "secret" not in listing
        assert "serve.py" not in (await second.exec("cat /proc/*/cmdline")).output
        assert (await serving).output == "up\n"


async def test_a_used_network_is_as_good_as_new(contained_pool: SandboxPool) -> None:
    for _ in range(3):
        async with contained_pool.open({"serve.py": SERVE}) as sandbox:
            assert (await sandbox.exec("python3 serve.py 0")).output == "up\n"


COUNTERS = "tail -n +3 /proc/net/dev; grep -h -E '[1-9]' /proc/net/snmp | grep -v Forwarding"
TRAFFIC = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.sendall(b"x" * 10_000)
"""


async def test_no_counter_of_a_network_outlives_its_sandbox(confined_pool: SandboxPool) -> None:
    seen = set()
    for _ in range(4):
        async with confined_pool.open({"traffic.py": TRAFFIC}) as sandbox:
            before = (await sandbox.exec(COUNTERS)).output
            seen.add(before)
            await sandbox.exec("python3 traffic.py")
            assert (await sandbox.exec(COUNTERS)).output != before
    assert len(seen) == 1


async def test_no_path_of_the_host_is_in_the_list_of_mounts(layered_pool: SandboxPool) -> None:
    async with layered_pool.open({}) as sandbox:
        listed = (await sandbox.exec("cat /proc/self/mountinfo /proc/self/mounts")).output
    assert "lowerdir=" in listed
    for word in ("slime-swe/sandbox", os.path.expanduser("~/"), "cache", "/tmp/"):
        assert word not in listed


async def test_the_list_of_mounts_names_no_place_that_is_not_there(contained: Sandbox) -> None:
    """Each mount is a whole file system, but for device files and what stands for the machine's counters."""
    listed = (await contained.exec("cat /proc/self/mountinfo")).output
    assert str(Path(__file__).parents[2]) not in listed
    mounts = [line.split()[3:5] for line in listed.splitlines()]
    elsewhere = [(root, point) for root, point in mounts if root != "/" and not point.endswith(root)]
    assert {point.split("/")[1] for _, point in elsewhere} <= {"dev", "proc"}
    assert {root.split("/")[1] for root, _ in elsewhere} <= {
        "slime-swe-devices",
        "run",
        *"null zero full random urandom tty".split(),
    }
    assert "/etc/" not in listed
    assert (await contained.exec("ls -A /run/guest/*")).output == ""


async def test_a_fork_bomb_is_bounded_and_swept_away(contained: Sandbox, count_processes: Callable[[str], int]) -> None:
    await contained.write_file("bomb.py", b"import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n")
    for command in (":() { : | : & }; :; sleep 5", "python3 -I -S -B bomb.py", "python3 bomb.py"):
        result = await contained.exec(command, timeout=0.5)
        assert (await contained.exec("ls -d /proc/[0-9]* | wc -l")).output.strip() in ("4", "5", "6")
        assert (await contained.exec("echo alive")).output == "alive\n", result


async def test_processes_are_counted_for_each_sandbox_alone(contained_pool: SandboxPool) -> None:
    limits = Limits(processes=12)
    many = "for i in $(seq 9); do sleep 2 & done; echo started; wait"
    async with contained_pool.open({}, limits) as first, contained_pool.open({}, limits) as second:
        import asyncio

        results = await asyncio.gather(first.exec(many), second.exec(many))
    assert [result.output for result in results] == ["started\n"] * 2


async def test_the_user_is_not_root_and_has_a_name(contained: Sandbox) -> None:
    assert (await contained.exec("whoami; id -u; echo ~; stat -c %U hello.txt")).output == "agent\n1000\n/tmp\nagent\n"
