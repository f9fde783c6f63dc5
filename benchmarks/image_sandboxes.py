"""What a sandbox of a task's image costs, beside the plain way to the same.

Each figure is the median of many, in milliseconds. The rival of a fresh overlay workspace is a copy of its repository
(2,000 files); that of a command in an open Docker sandbox is `docker exec`, by the same SDK. "16 at once" is what each
of 16 waits, with a sandbox of its own. Rivals take turns in blocks and not one by one: a copy leaves the disk busy for
a while, and an exec the daemon.

    python -m benchmarks.image_sandboxes [--json] [--check] [--save]
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.command import Laps, run
from slime_swe.data_sources.task import Image
from slime_swe.sandbox import Limits, Sandbox, SandboxPool
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.image import host as host_image

FILES = 2_000
SANDBOXES = 16
COMMAND = "echo hello"
SETTLE_SECONDS = 3.0
BLOCKS = 2
LIMITS = Limits(memory_bytes=256 << 20)
RATIOS = {
    "overlay_open_ms": "copy_ms",
    "overlay_later_command_ms": "docker_exec_ms",
    "docker_command_ms": "docker_exec_ms",
    "docker_command_16_ms": "docker_exec_16_ms",
}


async def measure(rounds: int) -> dict[str, float]:
    laps = Laps()
    with tempfile.TemporaryDirectory() as folder:
        await _measure_overlay(laps, Path(folder), rounds)
    await _measure_docker(laps, rounds)
    return laps.medians()


async def _measure_overlay(laps: Laps, folder: Path, rounds: int) -> None:
    root = folder / "root"
    host_image.write_folder(root)
    for number in range(FILES):
        path = root / "repo" / f"d{number % 50}" / f"f{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x = {number}\n" * 50)
    image = Image(f"dir:{root}", "/repo")
    async with SandboxPool("overlay", limits=LIMITS) as pool:
        for _ in range(rounds):
            await _life(laps, "overlay", pool, image)
    for _ in range(max(1, rounds // 4)):
        await laps.time("copy_ms", asyncio.to_thread(shutil.copytree, root / "repo", folder / "copy"))
        await asyncio.to_thread(shutil.rmtree, folder / "copy")


async def _life(laps: Laps, name: str, pool: SandboxPool, image: Image | None) -> None:
    opening = pool.open({}, image=image)
    sandbox = await laps.time(f"{name}_open_ms", opening.__aenter__())
    await laps.time(f"{name}_first_command_ms", _run(sandbox))
    await laps.time(f"{name}_later_command_ms", _run(sandbox))
    await laps.time(f"{name}_close_ms", opening.__aexit__(None, None, None))


async def _run(sandbox: Sandbox) -> None:
    result = await sandbox.exec(COMMAND)
    assert result.output == "hello\n", result


async def _measure_docker(laps: Laps, rounds: int) -> None:
    async with SandboxPool("docker", concurrency=SANDBOXES, limits=LIMITS) as pool:
        for _ in range(max(1, rounds // 4)):
            await _life(laps, "docker", pool, None)
        async with AsyncExitStack() as stack:
            sandboxes = [await stack.enter_async_context(pool.open({})) for _ in range(SANDBOXES)]
            await _measure_commands(laps, sandboxes, rounds)


async def _measure_commands(laps: Laps, sandboxes: list[Sandbox], rounds: int) -> None:
    client = docker_client.connect()
    ours = [f"{name}={value}" for name, value in docker_client.labels().items()]
    containers = [found["Id"] for found in client.containers(filters={"label": ours})][:SANDBOXES]

    def execute(container: str) -> str:
        started: str = client.exec_create(container, ["bash", "-c", COMMAND])["Id"]
        client.exec_start(started)
        return started

    executed: list[str] = []

    for _ in range(BLOCKS):  # the daemon is busy for a while after each of its own
        await asyncio.sleep(SETTLE_SECONDS)
        for _ in range(rounds):
            await laps.time("docker_command_ms", _run(sandboxes[0]))
        for _ in range(rounds):
            await asyncio.gather(*(laps.time("docker_command_16_ms", _run(sandbox)) for sandbox in sandboxes))
        for _ in range(max(1, rounds // 4)):
            executed.append(await laps.time("docker_exec_ms", asyncio.to_thread(execute, containers[0])))
        for _ in range(max(1, rounds // 10)):
            threads = (laps.time("docker_exec_16_ms", asyncio.to_thread(execute, each)) for each in containers)
            executed += await asyncio.gather(*threads)
    # Not by what they print: asked for sixteen at once, the daemon has given none of one's output.
    codes = [client.exec_inspect(each)["ExitCode"] for each in executed]
    assert codes == [0] * len(executed), codes


if __name__ == "__main__":
    sys.exit(run(__doc__, "image_sandboxes", measure, ratios=RATIOS, rounds=40))
