"""A Ray cluster whose nodes are all on this machine: real raylets, on its loopback."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import pytest

from slime_swe.sandbox.ray.backend import RaySandbox
from tests.waiting import until, wait_for

CPUS = 8  # of each node, as Ray counts them
_MEMORY = 100_000_000  # bytes of each node's object store
_SETTINGS = {  # a node that is killed is found dead within seconds, not half a minute
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


def short_folder() -> tempfile.TemporaryDirectory[str]:
    """One that Ray's Unix sockets can be in."""
    return tempfile.TemporaryDirectory(prefix="swe-ray-", dir="/tmp", ignore_cleanup_errors=True)


@contextmanager
def ray_writes_to(folder: str) -> Iterator[None]:
    """All that Ray writes and removes, the head's address too, which is else one file of the whole machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        yield


class RayNodes:
    """`count` nodes, the head among them. This process has joined the cluster; it can join but one at a time."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._addresses = itertools.count(2)  # Ray takes 127.0.0.1 for the machine's own address on the network

    def __enter__(self) -> Self:
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'slime-swe[cluster]'")
        import ray
        from ray.cluster_utils import Cluster

        self._folder = short_folder()
        head = {"include_dashboard": False, "no_monitor": True, "_system_config": _SETTINGS} | self._arguments()
        with ray_writes_to(self._folder.name):
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

        wait_for(
            lambda: not any(state["Alive"] for state in ray.nodes() if state["NodeID"] == node.node_id),
            "Ray knows that the node has died",
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()
        self._end()

    def _end(self) -> None:
        with ray_writes_to(self._folder.name):
            self.cluster.shutdown()
        self._folder.cleanup()

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
    await until(lambda: len(pool._backend._nodes._up()) == count, f"{count} nodes take sandboxes")
