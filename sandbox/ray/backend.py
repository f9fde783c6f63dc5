"""The `ray:BACKEND` backend: another backend's sandboxes, spread over the nodes of the Ray cluster.

One actor a node opens them there, and commands are calls of that actor. So the process that trains or samples needs no
CPUs for sandboxes, and a run has those of all its nodes. The nodes import the driver's code from the same paths, and
those that have other code are not used.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import itertools
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.sandbox.base import MAX_PORT, Backend, ExecResult, Requirement, SandboxError, SandboxSpec
from slime_swe.sandbox.image.layers import find_layers
from slime_swe.sandbox.pool import BACKENDS, BaseSandbox, make_backend
from slime_swe.sandbox.ray.ports import DriverPorts

if TYPE_CHECKING:
    from slime_swe.sandbox.ray.nodes import Node, Nodes


class RayBackend(Backend):
    """A backend that opens another one's sandboxes on the nodes of a Ray cluster. inner: that one's name, as
    `rollout.sandbox` takes it. It can do what that one can.

    cpus: of each node's that the actor reserves; a node without so many in all is not used. per_cpu: sandboxes that a
    node takes at once for each of its CPUs, as Ray counts them, down to `least_per_cpu` while it bears no more (see
    `Slots`); others wait in order of arrival, for whatever node has room first. silence: seconds without an answer
    after which a node counts as lost.
    """

    wraps = True
    pressure = None  # here; each node's pool looks at its own

    def __init__(
        self,
        inner: str = "",
        *,
        cpus: float = 1.0,
        per_cpu: float = 8.0,
        least_per_cpu: float = 2.0,
        silence: float = 30.0,
    ) -> None:
        if not inner:
            raise UserError(f"sandbox ray: which one on the nodes? ray:BACKEND with one of {', '.join(_INNER)}")
        backend = make_backend(inner)
        if backend.wraps or not backend.runs_here:
            raise UserError(f"sandbox ray:{inner}: {inner} runs nothing on the nodes; one of {', '.join(_INNER)} does")
        self.inner, self._cpus, self._silence = inner, cpus, silence
        self._per_cpu, self._least_per_cpu = per_cpu, least_per_cpu
        self.image_gib, self.shares_layers = backend.image_gib, backend.shares_layers
        self.removes_images = backend.removes_images
        self.takes_images, self.takes_layers = backend.takes_images, backend.takes_layers
        # A node without isolation is refused where the backend would go on with a warning that nobody sees.
        self.isolates = "always" if backend.isolates == "if possible" else backend.isolates
        self.unprotected = backend.unprotected
        self.requirements = (_RAY, *backend.requirements)
        self._nodes: Nodes | None = None
        self._numbers = itertools.count()

    async def start(self) -> None:
        """Join the cluster, and wait for the first node."""
        if self._nodes is None:
            if importlib.util.find_spec("ray") is None:
                raise UserError(f"ray sandboxes need Ray: {_INSTALL}")
            from slime_swe.sandbox.ray.nodes import Nodes  # imports Ray, which takes a second

            nodes = Nodes(
                self.inner, self._cpus, self._per_cpu, self._least_per_cpu, self._silence, keep_free=self.keep_free
            )
            try:
                await nodes.start()
            except BaseException:
                await nodes.close()
                raise
            self._nodes = nodes

    def open(self, spec: SandboxSpec) -> RaySandbox:
        """Return a sandbox to be entered. Raises `SandboxError` before `start`."""
        if self._nodes is None:
            raise SandboxError("the sandbox backend has not been started")
        return RaySandbox(self._nodes, next(self._numbers), spec)

    async def close(self) -> None:
        if self._nodes is not None:
            nodes, self._nodes = self._nodes, None
            await nodes.close()

    def fingerprint(self) -> Iterator[str]:
        return make_backend(self.inner).fingerprint()

    def has_image(self, name: str) -> bool:
        """Say whether this machine has the image: each node has images of its own."""
        return make_backend(self.inner).has_image(name)

    def get_image(self, name: str) -> None:
        make_backend(self.inner).get_image(name)

    def images_gib(self, names: Sequence[str]) -> float | None:
        return make_backend(self.inner).images_gib(names)

    def image_folder(self) -> Path | None:
        return make_backend(self.inner).image_folder()


_INSTALL = "pip install 'slime-swe[cluster]'"
_RAY = Requirement(
    "Ray", (sys.executable, "-c", "import ray; print(ray.__version__)"), _INSTALL, fix=_INSTALL, fatal=True
)
_INNER = [name for name in BACKENDS if name not in ("ray", "remote")]


class RaySandbox(BaseSandbox):
    """A sandbox of another backend, on the node with the most room. It raises what that one raises, and `SandboxError`
    where its node is lost.
    """

    def __init__(self, nodes: Nodes, number: int, spec: SandboxSpec) -> None:
        self._nodes = nodes
        self._number = number
        self._spec = spec
        self._node: Node | None = None
        self._ports: DriverPorts | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._is_asked = self._is_open = False  # the node, to open it

    async def _enter(self) -> None:
        spec = self._spec
        if spec.layers:  # said here, by the names that they have here
            await asyncio.to_thread(find_layers, spec.layers, spec.image or Image(""))
        node = self._node = await self._nodes.take()
        files, layers = self._nodes.sent(spec.files), [await self._nodes.layer(node, one) for one in spec.layers]
        self._is_asked = True
        await node.call("open", self._number, files, spec.limits, spec.image, layers)
        self._ports = DriverPorts(functools.partial(node.call, "port", self._number))
        self._is_open = True

    async def _leave(self) -> None:
        """Leave the sandbox; that goes on where this call is cancelled."""
        self._is_open = False
        if self._node is not None and self._leaving is None:
            self._leaving = asyncio.create_task(self._left(self._node))
        if self._leaving is not None:
            await asyncio.shield(self._leaving)

    async def _left(self, node: Node) -> None:
        try:
            if self._ports is not None:
                await self._ports.close()
            if self._is_asked and not node.lost.done():
                await node.call("leave", self._number, cancels=False)
        except SandboxError:
            if not node.lost.done():  # of a lost one, nothing is left
                raise
        finally:
            self._nodes.release(node)

    async def exec(self, command: str, *, timeout: float | None = None) -> ExecResult:
        result: ExecResult = await self._open_node().call("exec", self._number, command, timeout)
        return result

    async def read_file(self, path: str) -> bytes:
        content: bytes = await self._open_node().call("read_file", self._number, path)
        return content

    async def write_file(self, path: str, content: bytes) -> None:
        await self._open_node().call("write_file", self._number, path, content)

    async def diff(self) -> str:
        patch: str = await self._open_node().call("diff", self._number)
        return patch

    async def listen(self, port: int) -> socket.socket:
        """Return a socket as `Sandbox.listen` does. What is accepted here has come through Ray: see `ports`."""
        if not 0 < port <= MAX_PORT:
            raise UserError(f"a port of a sandbox is 1 to {MAX_PORT}, got {port}")
        node = self._open_node()
        assert self._ports is not None
        await self._ports.closed()
        await node.call("listen", self._number, port)
        return self._ports.give(port)

    def _open_node(self) -> Node:
        if not self._is_open or self._node is None:
            raise SandboxError("the sandbox is not open")
        return self._node
