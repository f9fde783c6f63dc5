"""`Node`: one node of the Ray cluster as the driver sees it, and its actor. Imports Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import site
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slime_swe.rollout.sandbox.base import SandboxError
from slime_swe.rollout.sandbox.ray.actor import Facts, NodeSandboxes
from slime_swe.rollout.sandbox.ray.layers import identity, pack

CALLS_AT_ONCE = 100_000  # of one actor: waiting ones cost it little, and no call may wait for another
CLOSE_SECONDS = 60.0

_log = logging.getLogger(__name__)


class Node:
    """state: what `ray.nodes()` says of it. most: sandboxes that it takes; least: if it bears no more. room: how many,
    by its last answer; held: those that it has. keep_free: see `SandboxPool`.
    """

    def __init__(
        self, state: Mapping[str, Any], backend: str, cpus: float, most: int, least: int, keep_free: float = 0.0
    ) -> None:
        self.id: str = state["NodeID"]
        self.name = f"{state['NodeManagerHostname']} ({state['NodeManagerAddress']}, {self.id[:8]})"
        self.room, self.held = most, 0
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # why
        self.starting: asyncio.Task[Facts] | None = None
        self.pinging: asyncio.Task[None] | None = None
        self.answered = asyncio.get_running_loop().time()
        self._layers: dict[Path, asyncio.Task[Path]] = {}
        where = NodeAffinitySchedulingStrategy(node_id=self.id, soft=False)
        self._actor: Any = (
            ray.remote(NodeSandboxes)
            .options(
                num_cpus=cpus,
                max_concurrency=CALLS_AT_ONCE,
                max_restarts=0,
                scheduling_strategy=where,
                runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(own_paths())}},
            )
            .remote(backend, most, least, keep_free)
        )

    async def call(self, method: str, *args: Any, cancels: bool = True) -> Any:
        """What the actor's method returns. Raises what it raised, and `SandboxError` where the node has gone.

        cancels: whether the method ends where this call is cancelled.
        """
        if self.lost.done():
            raise SandboxError(self.lost.result())
        asked = getattr(self._actor, method).remote(*args)
        answering = asyncio.ensure_future(_answer(asked))
        try:
            await asyncio.wait({answering, self.lost}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            answering.cancel()
            if cancels and not self.lost.done():
                ray.cancel(asked)
            raise
        if not answering.done():
            answering.cancel()
            raise SandboxError(self.lost.result())
        try:
            answer = answering.result()
        except (ray.exceptions.RayTaskError, ray.exceptions.TaskCancelledError):
            raise
        except ray.exceptions.RayError as error:  # of the actor, its node, or the way there: it can't be relied upon
            self.lose(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}")
            raise SandboxError(self.lost.result()) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def ping(self) -> None:
        """Note when the actor has answered, and how many sandboxes it takes."""
        with contextlib.suppress(SandboxError):
            room: int = await self.call("ping")
            if room < self.room:
                _log.warning("node %s bears fewer sandboxes: %d at once from now on", self.name, room)
            self.room = room
            self.answered = asyncio.get_running_loop().time()

    @property
    def is_up(self) -> bool:
        if self.lost.done() or self.starting is None or not self.starting.done() or self.starting.cancelled():
            return False
        return self.starting.exception() is None

    def lose(self, why: str) -> None:
        """Every call that waits for this node raises `SandboxError`; what it held is forgotten."""
        if not self.lost.done():
            self.lost.set_result(f"the sandboxes of the Ray cluster's node {self.name} are lost: {why}")
            ray.kill(self._actor)

    async def close(self) -> None:
        """Leave its sandboxes and end its actor. Raises `SandboxError` where the backend does."""
        if self.lost.done():
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.call("close", cancels=False)
        except TimeoutError as error:
            raise SandboxError(
                f"the node {self.name} did not close its sandboxes within {CLOSE_SECONDS:g} s"
            ) from error
        except SandboxError:
            if not self.lost.done():  # if it has gone meanwhile, so have its sandboxes
                raise
        finally:
            self.lose("the pool is closed")

    async def layer(self, folder: Path, packed: dict[Path, Any]) -> Path:
        """Where the node has this layer; it is sent there where it has not. `packed`: a cache of what was sent."""
        if folder not in self._layers:
            self._layers[folder] = asyncio.create_task(self._layer(folder, packed))
        try:
            return await asyncio.shield(self._layers[folder])
        except BaseException:
            if self._layers[folder].done():
                self._layers.pop(folder, None)  # and try again with the next
            raise

    async def _layer(self, folder: Path, packed: dict[Path, Any]) -> Path:
        wanted = await asyncio.to_thread(identity, folder)
        found: Path | None = await self.call("find_layer", folder, wanted)
        if found is None:
            if folder not in packed or _has_failed(packed[folder]):
                packed[folder] = asyncio.create_task(asyncio.to_thread(lambda: ray.put(pack(folder))))
            found = await self.call("add_layer", wanted, await asyncio.shield(packed[folder]))
        return found


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _answer(asked: Any) -> Any:
    return await asked


def own_paths() -> list[str]:
    """Folders that this process imports from and that another with the same interpreter would not."""
    its_own = [sys.prefix, sys.base_prefix, *site.getsitepackages(), site.getusersitepackages()]
    paths = [os.path.abspath(path) for path in sys.path]
    return [path for path in dict.fromkeys(paths) if not any(Path(path).is_relative_to(own) for own in its_own)]
