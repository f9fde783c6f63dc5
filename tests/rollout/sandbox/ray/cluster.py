"""A Ray cluster whose nodes are all on this machine: real raylets, on its loopback."""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import pytest

from slime_swe.rollout.sandbox.ray.backend import RaySandbox

CPUS = 8  # of each node, as Ray counts them
_MEMORY = 100_000_000  # bytes of each node's object store
_SETTINGS = {  # a node that is killed is found dead within seconds, not half a minute
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


class RayNodes:
    """`count` nodes, the head among them. This process has joined the cluster; it can join but one at a time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._addresses = itertools.count(2)  # Ray takes 127.0.0.1 for the machine's own address on the network

    def __enter__(self) -> Self:
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'slime-swe[cluster]'")
        import ray
        from ray.cluster_utils import Cluster

        self._folder = tempfile.mkdtemp(prefix="swe-ray-", dir="/tmp")  # short: it holds Unix sockets
        head = {"include_dashboard": False, "_system_config": _SETTINGS} | self._arguments()
        with self._own_folder():
            self.cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(self._count - 1):
                self.add()
            self.cluster.wait_for_nodes()
            ray.init(address=self.cluster.address, log_to_driver=False, logging_level=logging.WARNING)
        except BaseException:
            self._end()
            raise
        return self

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **more: Any) -> Any:
        return self.cluster.add_node(**self._arguments() | more)

    def kill(self, node: Any) -> None:
        """As a machine that goes: its raylet gets SIGKILL, and its workers end for want of it."""
        self.cluster.remove_node(node, allow_graceful=False)

    def remove(self, node: Any) -> None:
        self.kill(node)
        self.wait_for_death(node)

    def wait_for_death(self, node: Any) -> None:
        """Until Ray knows of it: in the next test it would count as one that is up."""
        import ray

        while any(state["Alive"] for state in ray.nodes() if state["NodeID"] == node.node_id):
            time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()
        self._end()

    def _end(self) -> None:
        with self._own_folder():
            self.cluster.shutdown()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def _own_folder(self) -> Iterator[None]:
        """For all that Ray writes and removes, the head's address too, which is else one file of the whole machine."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_TMPDIR", self._folder)
            yield

    def _arguments(self) -> dict[str, Any]:
        address = f"127.0.0.{next(self._addresses)}"
        return {"num_cpus": CPUS, "num_gpus": 0, "object_store_memory": _MEMORY, "node_ip_address": address}


def place(sandbox: object) -> str:
    """Ray's name of the node that it is on."""
    assert isinstance(sandbox, RaySandbox) and sandbox._node is not None
    return sandbox._node.id


async def until_up(pool: Any, count: int) -> None:
    """Until so many nodes take sandboxes, and no more."""
    await pool.start()
    while len(pool._backend._nodes._up()) != count:
        await asyncio.sleep(0.05)
