"""`Nodes`: which nodes of the Ray cluster have room, which have joined, which are lost. Imports Ray."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import os
import site
import sys
import warnings
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from slime_swe.errors import InfrastructureError, UserError
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.ray.actor import Facts, NodeSandboxes, code, pack
from slime_swe.sandbox.ray.actor import identity as identity_of

BEAT_SECONDS = 1.0
START_SECONDS = 300.0  # until the first node is up, or one again after all were lost
RETRY_SECONDS = 10.0  # before a node whose actor did not start, or was lost, is tried again
SENT_FILES = 64 << 10  # bytes; a task's larger files go into the object store, and to each node once
SENT_TASKS = 64  # of which the object store keeps the files

_log = logging.getLogger(__name__)


class Nodes:
    """Keeps the nodes with an actor that is up; it belongs to one event loop. Its arguments are `RayBackend`'s."""

    def __init__(
        self,
        inner: str,
        cpus: float,
        per_cpu: float,
        least_per_cpu: float,
        silence: float,
        *,
        keep_free: float = 0.0,
    ) -> None:
        self._inner, self._cpus, self._silence, self._keep_free = inner, cpus, silence, keep_free
        self._per_cpu, self._least_per_cpu = per_cpu, least_per_cpu
        self._nodes: dict[str, Node] = {}  # by Ray's id: starting or up
        self._refused: dict[str, str] = {}  # why, by name
        self._again: dict[str, float] = {}  # not before this time, by id
        self._code = ""
        self._confinement: tuple[str, ...] | None = None  # of the first node
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._watches: set[asyncio.Task[None]] = set()
        self._asked = 0.0  # when `_ask` last did
        self._joined = False
        self._sent: OrderedDict[bytes, Any] = OrderedDict()
        self._packed: dict[Path, Any] = {}

    async def start(self) -> None:
        """Join the cluster and wait until some node is up. Raises `UserError` where there is no cluster, or where no
        node can have sandboxes; `SandboxError` where none is up in time.
        """
        if not ray.is_initialized():
            try:
                ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
            except (ConnectionError, ray.exceptions.RayError) as error:
                raise UserError(
                    "ray sandboxes run on a Ray cluster, and none was found: start the run in a Ray job (engine=slime "
                    "does), or `ray start --head` on this machine; RAY_ADDRESS names one elsewhere"
                ) from error
            self._joined = True
        self._code, self._asked = await asyncio.to_thread(code), asyncio.get_running_loop().time()
        self._watches = {asyncio.create_task(self._every_beat(step)) for step in (self._look, self._ask)}
        await self._until_some_is_up()

    async def take(self) -> Node:
        """Take the node with the most room, in order of arrival. Raises `SandboxError` where there is none for long."""
        async with self._turn:
            while True:
                up = self._up()
                if not up:
                    await self._until_some_is_up()
                    continue
                node = min(up, key=lambda one: one.held / one.room)
                if node.held < node.room:
                    node.held += 1
                    return node
                await self._change()

    def release(self, node: Node) -> None:
        node.held -= 1
        self._changed.set()

    def sent(self, files: Mapping[str, bytes]) -> Any:
        """Return the files, or the reference that the actor gets them by."""
        if sum(map(len, files.values())) < SENT_FILES:
            return files
        digest = hashlib.sha256()
        for path, content in files.items():
            digest.update(f"{path}\0{len(content)}\0".encode("utf-8", "replace") + content)
        key = digest.digest()
        if key not in self._sent:
            self._sent[key] = ray.put(dict(files))
            if len(self._sent) > SENT_TASKS:
                self._sent.popitem(last=False)
        self._sent.move_to_end(key)
        return self._sent[key]

    async def layer(self, node: Node, folder: Path) -> Path:
        """Return the folder in which the node has this layer."""
        return await node.layer(folder, self._packed)

    async def close(self) -> None:
        """Leave every sandbox, and end the actors. Raises `SandboxError`."""
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        nodes, self._nodes = list(self._nodes.values()), {}
        try:
            for node in nodes:
                if not node.is_up:
                    node.lose("the pool is closed")
            await asyncio.gather(*(node.close() for node in nodes))
        finally:
            self._sent.clear()
            self._packed.clear()
            if self._joined:
                self._joined = False
                ray.shutdown()

    def _up(self) -> list[Node]:
        return [node for node in self._nodes.values() if node.is_up]

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _until_some_is_up(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while not self._up():
                    for watch in self._watches:
                        if watch.done():
                            watch.result()  # raises what ended it
                    if self._confinement is None and self._refused and not self._nodes:
                        reasons = "; ".join(f"{name}: {why}" for name, why in self._refused.items())
                        raise UserError(f"no node of the Ray cluster can have {self._inner} sandboxes: {reasons}")
                    await self._change()
        except TimeoutError as error:
            waiting = ", ".join(node.name for node in self._nodes.values()) or "none"
            raise SandboxError(
                f"no node of the Ray cluster had sandboxes up within {START_SECONDS:g} s. Nodes that were asked and "
                f"have not answered: {waiting}. Each needs {self._cpus:g} CPUs that Ray counts as free"
            ) from error

    async def _every_beat(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                await step()
                await asyncio.sleep(BEAT_SECONDS)
        except asyncio.CancelledError:
            raise
        except BaseException:  # or calls would wait for a node that nobody watches
            for node in self._nodes.values():
                node.lose("the watch over it has failed")
            self._changed.set()
            raise

    async def _look(self) -> None:
        """Take in what has joined, and let go of what Ray reports as dead."""
        try:
            states = {state["NodeID"]: state for state in await asyncio.to_thread(ray.nodes) if state["Alive"]}
        except ray.exceptions.RayError as error:  # the head does not answer; the nodes may
            _log.warning("the Ray cluster's nodes are not known: %s", error)
            return
        now = asyncio.get_running_loop().time()
        for identity, node in list(self._nodes.items()):
            if identity not in states:
                node.lose("Ray reports the node as dead")
                self._drop(node, node.lost.result())
        for identity, state in states.items():
            if identity not in self._nodes and now >= self._again.get(identity, 0.0):
                self._add(state)

    async def _ask(self) -> None:
        """Ask the nodes whether they live. Time in which this process itself was busy is no silence of theirs."""
        now = asyncio.get_running_loop().time()
        late = max(0.0, now - self._asked - BEAT_SECONDS)
        self._asked = now
        for node in list(self._nodes.values()):
            node.answered += late
            if node.is_up and now - node.answered > self._silence:
                node.lose(f"its actor has not answered for {self._silence:g} s")
            if node.lost.done():
                self._drop(node, node.lost.result())
            elif node.is_up and (node.pinging is None or node.pinging.done()):
                node.pinging = asyncio.create_task(node.ping())
                node.pinging.add_done_callback(lambda _: self._changed.set())  # it may have more room

    def _add(self, state: Mapping[str, Any]) -> None:
        cpus = float(state["Resources"].get("CPU", 0.0))
        if cpus < max(self._cpus, 1.0):
            return
        most, least = (max(1, int(cpus * each)) for each in (self._per_cpu, self._least_per_cpu))
        node = Node(state, self._inner, self._cpus, most, min(most, least), self._keep_free)
        self._nodes[node.id] = node
        node.starting = asyncio.create_task(self._start(node))
        node.starting.add_done_callback(self._note_start)

    async def _start(self, node: Node) -> Facts:
        """Start the node's actor. Raises `InfrastructureError` or `UserError` where the node can't be used, which
        `_drop` remembers.
        """
        try:
            answer: tuple[Facts, list[str]] = await node.call("start")
            found, said = answer
            if found.code != self._code:
                raise UserError(
                    f"it has other code than this process ({found.code}, and here {self._code}): give all nodes one "
                    "image, or one checkout on a file system that they share"
                )
            if self._confinement is None:
                self._confinement = found.confinement
            if found.confinement != self._confinement:
                raise UserError(
                    f"its sandboxes differ from the first node's: {found.confinement} for {self._confinement}"
                )
        except (InfrastructureError, UserError) as error:
            node.lose(str(error))
            self._drop(node, str(error))
            raise
        for text in said:
            warnings.warn(f"node {node.name}: {text}", RuntimeWarning, stacklevel=1)
        self._refused.pop(node.name, None)
        node.answered = asyncio.get_running_loop().time()
        return found

    def _note_start(self, started: asyncio.Task[Facts]) -> None:
        if not started.cancelled():
            started.exception()  # `_drop` has said it
        self._changed.set()

    def _drop(self, node: Node, why: str) -> None:
        if self._nodes.pop(node.id, None) is not None:
            self._again[node.id] = asyncio.get_running_loop().time() + RETRY_SECONDS
            if self._refused.get(node.name) != why:
                _log.warning("no sandboxes on node %s: %s", node.name, why)
            self._refused[node.name] = why
            self._changed.set()


# `Node`: one node of the Ray cluster as the driver sees it, and its actor. Imports Ray.
CALLS_AT_ONCE = 100_000  # of one actor: waiting ones cost it little, and no call may wait for another
CLOSE_SECONDS = 60.0


class Node:
    """One node of the cluster. state: what `ray.nodes()` says of it. most: sandboxes that it takes; least: if it bears
    no more. room: how many, by its last answer; held: those that it has. keep_free: see `SandboxPool`.
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
        self._calls = itertools.count()
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
        """Call a method of the actor and return what it returns. Raises what it raised, and `SandboxError` where the
        node has gone.

        cancels: whether the method ends where this call is cancelled.
        """
        if self.lost.done():
            raise SandboxError(self.lost.result())
        number = next(self._calls)
        asked = self._actor.call.remote(number, method, *args)
        answering = asyncio.ensure_future(_answer(asked))
        try:
            await asyncio.wait({answering, self.lost}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            answering.cancel()
            if cancels and not self.lost.done():
                self._actor.cancel.remote(number)
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
        """Give the node up: every call that waits for it raises `SandboxError`; what it held is forgotten."""
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
        """Return the node's folder of this layer, sent there where it has none. `packed`: a cache of what was sent."""
        if folder not in self._layers:
            self._layers[folder] = asyncio.create_task(self._layer(folder, packed))
        try:
            return await asyncio.shield(self._layers[folder])
        except BaseException:
            if self._layers[folder].done():
                self._layers.pop(folder, None)  # and try again with the next
            raise

    async def _layer(self, folder: Path, packed: dict[Path, Any]) -> Path:
        wanted = await asyncio.to_thread(identity_of, folder)
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
    """List the folders that this process imports from and that another with the same interpreter would not."""
    its_own = [sys.prefix, sys.base_prefix, *site.getsitepackages(), site.getusersitepackages()]
    paths = [os.path.abspath(path) for path in sys.path]
    return [path for path in dict.fromkeys(paths) if not any(Path(path).is_relative_to(own) for own in its_own)]
