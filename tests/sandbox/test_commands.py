"""What a command does and leaves behind, the same in every backend."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_swe.sandbox.base import Limits, Sandbox
from slime_swe.sandbox.guest.processes import OPEN_FILES
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.conftest import POOLS, of
from tests.waiting import until

REPOSITORY = Path(__file__).parents[2]
Counter = Callable[[str], int]


OUTCOMES = [
    ("cat hello.txt", 0, "hello\n"),
    ("exit 7", 7, ""),
    ("false", 1, ""),
    ("printf 'é\\n日本'", 0, "é\n日本"),
    ("printf '\\377x'", 0, "�x"),
    ("echo out; echo err >&2; echo out", 0, "out\nerr\nout\n"),
    ("cat", 0, ""),
    ("kill -9 $BASHPID", 137, ""),
    ("kill 0", 143, ""),
    ("nonexistent-command 2>/dev/null", 127, ""),
    ("echo $__command$1$#; echo '$HOME' \"a  b\" # c", 0, "0\n$HOME a  b\n"),
    ("cat <<'X'\n$a `b`\nX\n", 0, "$a `b`\n"),
    ("if true\nthen echo yes\nfi", 0, "yes\n"),
    ("set -e; false; echo no", 1, ""),
]


async def test_a_command_s_output_and_exit_code(sandbox: Sandbox) -> None:
    for command, code, output in OUTCOMES:
        result = await sandbox.exec(command)
        assert (result.exit_code, result.output, result.timed_out, result.truncated) == (code, output, False, False), (
            command
        )


async def test_a_syntax_error_is_the_command_s_own(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("echo 'open")).exit_code not in (0, None)
    assert (await sandbox.exec("if")).exit_code not in (0, None)
    assert (await sandbox.exec("echo \0")).exit_code == 126
    assert (await sandbox.exec("echo \ud800")).exit_code == 0
    assert (await sandbox.exec("echo fine")).output == "fine\n"


async def test_cwd_and_environment_do_not_outlive_a_command(sandbox: Sandbox) -> None:
    await sandbox.exec("cd /; export LEAK=1; alias cat=false; ulimit -n 10; cat() { echo no; }")
    assert (
        await sandbox.exec("echo ${LEAK-unset}; cat hello.txt; ls")
    ).output == "unset\nhello\ndata.bin\nhello.txt\npkg\n"


async def test_a_command_may_kill_the_shell_it_runs_in(forked: Sandbox) -> None:
    for command, code in (("kill -9 $$", 137), ("kill 0", 143)):
        assert (await forked.exec(command)).exit_code == code, command
        assert (await forked.exec("echo alive")).output == "alive\n"


@pytest.mark.parametrize(
    "command", ["echo x > /proc/$$/fd/9", "echo 0 > /proc/$$/fd/9", "printf 7 > /proc/$$/fd/9; sleep NAP"]
)
async def test_a_forged_exit_status_is_the_end_of_the_shell(
    forked: Sandbox, count_processes: Counter, nap: str, command: str
) -> None:
    assert (await forked.exec(f"{command.replace('NAP', nap)}; exit 3")).exit_code == 137
    assert count_processes(nap) == 0
    for code in range(3):
        assert (await forked.exec(f"echo alive; exit {code}")).exit_code == code


async def test_a_command_does_not_see_what_its_status_comes_with(forked: Sandbox) -> None:
    assert (await forked.exec("set | grep '^__'; echo $_")).output.strip() == "__command"


async def test_a_command_can_t_kill_what_runs_it(contained: Sandbox) -> None:
    for command in ("kill -9 1", "kill -STOP 1", "kill -INT 1", "kill -9 -1"):
        await contained.exec(command)
        await contained.exec(f"{command}; python3 -I -S -B -m this >/dev/null")
        assert (await contained.exec("echo alive")).output == "alive\n"


async def test_a_long_command_passes_whole(sandbox: Sandbox) -> None:
    text = "x" * 90_000
    assert (await sandbox.exec(f"cat <<X | wc -c\n{text}\nX")).output.strip() == "90001"


async def test_long_output_is_cut_in_the_middle_and_says_so(pool: SandboxPool) -> None:
    async with pool.open({}, Limits(output_bytes=1000)) as sandbox:
        result = await sandbox.exec("echo begin; head -c 50000000 /dev/zero | tr '\\0' x; echo end")
    assert result.truncated
    assert result.output.startswith("begin\n")
    assert result.output.endswith("end\n")
    assert f"[truncated: {50_000_010 - 1000} bytes missing here]" in result.output
    assert len(result.output) < 1100


async def test_output_is_not_cut_within_a_character(pool: SandboxPool) -> None:
    async with pool.open({}, Limits(output_bytes=101)) as sandbox:
        result = await sandbox.exec("for i in $(seq 200); do printf é; done")
    assert result.truncated
    assert "�" not in result.output


HANGING = [
    "sleep NAP",
    "sleep NAP & sleep NAP",
    "(setsid sleep NAP &) ; sleep NAP",
    "trap '' TERM INT HUP; while true; do sleep 0.1; done",
    "setsid bash -c 'setsid sleep NAP & exec sleep NAP' & wait",
    "yes",
    "python3 -I -S -B hangNAP.py",
]


async def test_a_hung_command_dies_with_its_whole_tree(sandbox: Sandbox, count_processes: Counter, nap: str) -> None:
    await sandbox.write_file(
        f"hang{nap}.py", b"import os, time\nif os.fork() == 0:\n    os.setsid(); os.fork()\ntime.sleep(1000)"
    )
    for command in HANGING:
        result = await sandbox.exec(command.replace("NAP", nap), timeout=0.3)
        assert (result.timed_out, result.exit_code) == (True, None), command
        assert (await sandbox.exec("pgrep -c yes; echo alive")).output.endswith("alive\n"), command
        assert count_processes(nap) == 0, command


async def test_nothing_that_a_command_started_outlives_it(sandbox: Sandbox, count_processes: Counter, nap: str) -> None:
    for command in (
        f"sleep {nap} &",
        f"(setsid sleep {nap} &)",
        f"nohup sleep {nap} & disown",
        "python3 -I -S -B daemon.py",
    ):
        await sandbox.write_file(
            "daemon.py", f"import os\nif os.fork() == 0:\n    os.execvp('sleep', ['sleep', '{nap}'])".encode()
        )
        result = await sandbox.exec(f"{command}")
        assert result.exit_code == 0
        assert count_processes(nap) == 0, command


async def test_a_cancelled_command_dies_and_the_sandbox_lives(
    sandbox: Sandbox, count_processes: Counter, nap: str
) -> None:
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await sandbox.exec(f"setsid sleep {nap} & sleep {nap}")
        assert (await sandbox.exec("echo next")).output == "next\n"
        assert count_processes(f"sleep\0{nap}") == 0


async def test_concurrent_calls_wait_for_each_other(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.exec(f"echo {number}") for number in range(10)))
    assert [result.output for result in results] == [f"{number}\n" for number in range(10)]


async def test_memory_is_limited(sandbox: Sandbox) -> None:
    await sandbox.write_file("eat.py", b"x = b'x' * (1 << 30)\nprint('eaten')")
    for command in ("python3 -I -S -B eat.py", "python3 eat.py"):
        result = await sandbox.exec(command)
        assert result.exit_code in (1, 137)  # a MemoryError, or killed
        assert "eaten" not in result.output
        assert (await sandbox.exec("echo alive")).output == "alive\n"


async def test_file_size_is_limited(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 5000000 /dev/zero > big; echo $?; stat -c %s big")
    assert result.output.endswith(f"\n{4 << 20}\n")


async def test_cpu_time_is_limited(pool: SandboxPool) -> None:
    async with pool.open({"spin.py": "while True: pass"}, Limits(cpu_seconds=1)) as sandbox:
        result = await sandbox.exec("python3 -I -S -B spin.py", timeout=60)
    assert result.exit_code == 137
    assert not result.timed_out


async def test_ending_while_a_command_runs_leaves_nothing(
    pool: SandboxPool, count_processes: Counter, nap: str
) -> None:
    async with pool.open({}) as sandbox:
        task = asyncio.create_task(sandbox.exec(f"setsid sleep {nap} & sleep {nap}"))
        await until(lambda: count_processes(f"sleep\0{nap}") == 2, "the commands")
        task.cancel()
    assert count_processes(f"sleep\0{nap}") == 0


async def test_no_file_descriptor_and_no_process_is_leaked(pool: SandboxPool) -> None:
    async def hurt() -> None:
        async with pool.open({"a": "b"}) as sandbox:
            await sandbox.exec("true")
            for _ in range(3):
                await sandbox.exec("kill -9 $$")
            assert int((await sandbox.exec("ls /proc/$PPID/fd 2>/dev/null | wc -l")).output) < 20

    for _ in range(3):  # Docker: spare containers, and connections that the SDK keeps
        await hurt()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(8):
        await hurt()
    assert len(os.listdir("/proc/self/fd")) < before + 8


async def test_commands_are_the_first_to_go_where_memory_is_short(confined_pool: SandboxPool) -> None:
    async with confined_pool.open({"score.py": "print(open('/proc/self/oom_score_adj').read(), end='')"}) as sandbox:
        for command in ("cat /proc/self/oom_score_adj", "python3 -I -S -B score.py"):
            assert (await sandbox.exec(command)).output == "1000\n"


STARTED_ODDLY = """
import asyncio, os, signal, sys
from slime_swe.sandbox import SandboxPool
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2, signal.SIGCHLD, signal.SIGRTMIN):
    signal.signal(number, signal.SIG_IGN)  # as `nohup` and a shell's background leave them
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
os.umask(0o077)
async def main():
    files = {"status.py": "print(open('/proc/self/status').read())"}
    async with SandboxPool(sys.argv[1]) as pool, pool.open(files) as box:
        for command in ("cat /proc/self/status", "python3 -I -S -B status.py", "python3 -I -S -B 'status.py'"):
            print((await box.exec(command)).output)
        print((await box.exec("stat -c %a /; umask; ulimit -Sn; ulimit -Hn")).output)
asyncio.run(main())
"""
PYTHON_S = (1 << signal.SIGPIPE - 1) | (1 << signal.SIGXFSZ - 1)


@pytest.mark.parametrize("backend", of("bubblewrap", "overlay", "subprocess", "apptainer", "docker"))
def test_a_command_starts_the_same_however_the_host_was_started(request: pytest.FixtureRequest, backend: str) -> None:
    request.getfixturevalue(POOLS[backend])  # or skip
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/src"}
    command = [sys.executable, "-c", STARTED_ODDLY, backend]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    words = [line.split() for line in done.stdout.splitlines()]
    ignored = [int(line[1], 16) for line in words if line[:1] == ["SigIgn:"]]
    assert ignored == [0, PYTHON_S, PYTHON_S]
    assert [int(line[1], 16) for line in words if line[:1] == ["SigBlk:"]] == [0, 0, 0]
    files = str(min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert [line[0] for line in words if line][-4:] == ["755", "0022", files, files]
    assert int(files) > 1024
