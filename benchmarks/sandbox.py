"""What a sandbox costs, beside what it would cost without the fork server.

Each figure is the median of many, in milliseconds. The rival of a sandbox forked from the fork server is one started by
bubblewrap itself; that of a command in the persistent shell is a bubblewrap of its own; that of a test run in a forked
interpreter is the same run in an interpreter started for it. A cycle is what grading costs: a fresh sandbox, its files,
one test run, the end.

    python -m benchmarks.sandbox [--json] [--check] [--save]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from benchmarks.command import Laps, run
from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.base import Sandbox
from slime_swe.sandbox.bubblewrap import system_flags
from slime_swe.sandbox.local import BubblewrapBackend

TESTS = "python3 -I -S -B runtests.py"
STARTED_TESTS = "python3 -I -S -B 'runtests.py'"  # quotes make it a command for the shell, which starts an interpreter
FILES = {
    "runtests.py": (Path(__file__).parents[1] / "data_sources" / "synthetic" / "runtests.py").read_text(),
    "calc.py": "def add(first, second):\n    return first - second\n",
    "tests/test_calc.py": (
        "from calc import add\n\n\ndef test_zero():\n    assert add(1, 0) == 1\n\n\n"
        "def test_sum():\n    assert add(1, 2) == 3\n"
    ),
}
RATIOS = {
    "open_ms": "bwrap_start_ms",
    "command_ms": "bwrap_command_ms",
    "forked_tests_ms": "started_tests_ms",
    "cycle_ms": "bwrap_cycle_ms",
    "cycle_16_ms": "bwrap_cycle_16_ms",
}


async def measure(rounds: int) -> dict[str, float]:
    """Each sandbox beside its rival in every round, so that what else the machine does slows both alike.

    Raises `SandboxError` where bubblewrap does not work.
    """
    laps = Laps()
    for _ in range(3):
        await laps.time("fork_server_start_ms", _start_fork_server())
    async with SandboxPool("bubblewrap", concurrency=16) as pool:
        for _ in range(3):
            await _cycle(pool)
        for number in range(rounds):
            await _life(pool, laps)
            await laps.time("bwrap_start_ms", _bwrap("true"))
            await laps.time("bwrap_command_ms", _bwrap("echo hello"))
            await laps.time("cycle_ms", _cycle(pool))
            await laps.time("bwrap_cycle_ms", _bwrap_cycle())
            if number % 16 == 0:
                await laps.time("cycle_16_ms", asyncio.gather(*(_cycle(pool) for _ in range(16))), 16)
                await laps.time("bwrap_cycle_16_ms", asyncio.gather(*(_bwrap_cycle() for _ in range(16))), 16)
    return laps.medians()


async def _life(pool: SandboxPool, laps: Laps) -> None:
    """The steps of one sandbox's life."""
    opening = pool.open(FILES)
    sandbox = await laps.time("open_ms", opening.__aenter__())
    await laps.time("forked_tests_ms", _run_tests(sandbox, TESTS))
    await laps.time("first_command_ms", sandbox.exec("echo hello"))
    await laps.time("command_ms", sandbox.exec("echo hello"))
    await laps.time("started_tests_ms", _run_tests(sandbox, STARTED_TESTS))
    await laps.time("close_ms", opening.__aexit__(None, None, None))


async def _start_fork_server() -> None:
    backend = BubblewrapBackend()
    await backend.start()
    await backend.close()


async def _run_tests(sandbox: Sandbox, command: str) -> None:
    result = await sandbox.exec(command)
    assert result.exit_code == 1, result
    assert result.output.endswith("1 passed, 1 failed\n"), result


async def _cycle(pool: SandboxPool) -> None:
    async with pool.open(FILES) as sandbox:
        await _run_tests(sandbox, TESTS)


async def _bwrap(command: str, *flags: str) -> bytes:
    argv = ["bwrap", *system_flags(), "--cap-drop", "ALL", *(flags or ("--chdir", "/")), "bash", "-c", command]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    return (await process.communicate())[0]


async def _bwrap_cycle() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for path, text in FILES.items():
            Path(folder, path).parent.mkdir(exist_ok=True)
            Path(folder, path).write_text(text)
        output = await _bwrap(f"exec {TESTS}", "--bind", folder, "/testbed", "--chdir", "/testbed")
    assert output.endswith(b"1 passed, 1 failed\n"), output


if __name__ == "__main__":
    sys.exit(run(__doc__, "sandbox", measure, ratios=RATIOS, rounds=48))
