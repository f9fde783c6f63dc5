"""What a sandbox on another node costs, beside one of this process, and 64 of them on three nodes.

Each figure is the median of many, in milliseconds. The nodes are raylets of a Ray cluster that is started for this, all
on this machine: so what is measured is Ray's calls, not a network, and 64 at once have this machine's processors. "64"
is what each of 64 waits, with a sandbox of its own; of these, spread_64 is the most that one of the three nodes has.

    python -m benchmarks.ray_sandboxes [--json] [--check] [--save]
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.command import Laps, run
from slime_swe.errors import UserError
from slime_swe.sandbox import Sandbox, SandboxPool

NODES = 3
MANY = 64
CPUS = 8  # of each node, as Ray counts them: room for all 64
FILES = {"calc.py": "def add(first, second):\n    return first + second\n"}
STORE_BYTES = 100_000_000


async def measure(rounds: int) -> dict[str, float]:
    """Raises `UserError` where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("this benchmark needs Ray: pip install 'slime-swe[cluster]'")
    with _cluster():
        laps = Laps()
        async with (
            SandboxPool("bubblewrap", concurrency=MANY) as here,
            SandboxPool("ray:bubblewrap", concurrency=MANY) as there,
        ):
            await laps.time("first_open_ms", there.start())
            await _all_up(there)
            for _ in range(rounds):  # by turns, so that what else the machine does slows both alike
                for name, pool in (("local", here), ("ray", there)):
                    await _life(laps, name, pool)
            most = [await _many(laps, name, pool) for name, pool in (("local", here), ("ray", there))]
    figures = laps.medians()
    figures["extra_command_ms"] = figures["ray_command_ms"] - figures["local_command_ms"]
    return figures | {"spread_64": float(most[-1])}


@contextmanager
def _cluster() -> Iterator[None]:
    import ray
    from ray.cluster_utils import Cluster

    addresses = itertools.count(2)  # Ray takes 127.0.0.1 for the machine's own address on the network

    def node() -> dict[str, Any]:
        where = f"127.0.0.{next(addresses)}"
        return {"num_cpus": CPUS, "num_gpus": 0, "object_store_memory": STORE_BYTES, "node_ip_address": where}

    folder = tempfile.mkdtemp(prefix="swe-ray-", dir="/tmp")  # short: it holds Unix sockets
    os.environ["RAY_TMPDIR"] = folder  # of the head's address too, which is else one file of the whole machine
    cluster: Any = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **node()})
    try:
        for _ in range(NODES - 1):
            cluster.add_node(**node())
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.WARNING)
        yield
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


async def _all_up(pool: Any) -> None:
    while len(pool._backend._nodes._up()) < NODES:
        await asyncio.sleep(0.1)


async def _life(laps: Laps, name: str, pool: SandboxPool) -> None:
    opening = pool.open(FILES)
    sandbox = await laps.time(f"{name}_open_ms", opening.__aenter__())
    await sandbox.exec("true")  # the first starts the shell
    for _ in range(4):
        await laps.time(f"{name}_command_ms", _run(sandbox))
    await laps.time(f"{name}_close_ms", opening.__aexit__(None, None, None))


async def _many(laps: Laps, name: str, pool: SandboxPool) -> int:
    """The most that one node has."""
    places: Counter[str] = Counter()
    together = asyncio.Barrier(MANY)

    async def episode() -> None:
        opening = pool.open(FILES)
        sandbox: Any = await laps.time(f"{name}_open_64_ms", opening.__aenter__())
        places[sandbox._node.id if name == "ray" else name] += 1
        await together.wait()
        for _ in range(8):
            await laps.time(f"{name}_command_64_ms", _run(sandbox))
        await opening.__aexit__(None, None, None)

    await asyncio.gather(*(episode() for _ in range(MANY)))
    return max(places.values())


async def _run(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo hello")
    assert result.output == "hello\n", result


if __name__ == "__main__":
    limits = {"extra_command_ms": 3.0, "spread_64": 22.0}
    sys.exit(run(__doc__, "ray_sandboxes", measure, ratios={"ray_open_ms": "local_open_ms"}, limits=limits, rounds=48))
