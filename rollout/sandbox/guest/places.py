"""`Place`: how a sandbox's first process is forked and cut off from the rest, in a nursery or without one."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from rollout.sandbox.guest import isolation, kernel


class Place(Protocol):
    contained: bool  # whether the sandbox has a pid namespace of its own

    def fork(self) -> int:
        """0 in the new sandbox's first process. Raises `OSError`."""
        ...

    def enter(self, limits: Mapping[str, Any]) -> None:
        """In the child: go where commands run. Raises `OSError`."""
        ...

    def leave(self) -> None:
        """In the child, at its end."""
        ...

    def close(self) -> None:
        """In the supervisor, at its end."""
        ...


class Contained:
    """Sandboxes with namespaces of their own.

    Network namespaces are used again once every process of their sandbox is dead: making one costs more than all the
    rest, and no sandbox has the capability to change its own.
    """

    contained = True

    def __init__(self, outer_id: int | None) -> None:
        self._outer_id = outer_id
        os.environ["PWD"] = isolation.REPOSITORY
        self._pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
        self._free_networks: list[int] = []
        self._networks: dict[int, int] = {}  # pid of a sandbox -> its network namespace

    def fork(self) -> int:
        network = self._enter_network()
        kernel.unshare(kernel.NEWPID)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                kernel.setns(self._pid_namespace, kernel.NEWPID)
        self._networks[pid] = network
        return pid

    def enter(self, limits: Mapping[str, Any]) -> None:
        for fd in (self._pid_namespace, *self._free_networks, *self._networks.values()):
            os.close(fd)
        isolation.enter(int(limits["disk_bytes"]), self._outer_id)

    def leave(self) -> None:
        """Nothing to do: the kernel removes the mounts with the process."""

    def close(self) -> None:
        """Nothing to do: when the supervisor ends, the kernel kills every process of the nursery."""

    def _enter_network(self) -> int:
        self._free_networks += [self._networks.pop(pid) for pid in _dead_children()]
        if self._free_networks:
            network = self._free_networks.pop()
            kernel.setns(network, kernel.NEWNET)
            return network
        kernel.unshare(kernel.NEWNET)
        kernel.bring_up_loopback()
        return os.open("/proc/self/ns/net", os.O_RDONLY)


class Plain:
    """Sandboxes that are ordinary processes with a temporary folder each: the fallback without bubblewrap."""

    contained = False

    def __init__(self, root: str) -> None:
        self._root = root
        self._folder = ""

    def fork(self) -> int:
        for _ in _dead_children():
            pass
        self._folder = tempfile.mkdtemp(prefix="sandbox-", dir=self._root)
        return os.fork()

    def enter(self, limits: Mapping[str, Any]) -> None:
        kernel.become_subreaper()
        repository, temporary = (os.path.join(self._folder, name) for name in ("testbed", "tmp"))
        os.mkdir(repository)
        os.mkdir(temporary)
        os.environ.update(HOME=temporary, TMPDIR=temporary, PWD=repository)
        os.chdir(repository)

    def leave(self) -> None:
        os.spawnlp(os.P_WAIT, "rm", "rm", "-rf", "--", self._folder)  # `rmtree` recurses, and so has a deepest folder

    def close(self) -> None:
        """Wait for the sandboxes, whose sockets the host has closed too, and remove the folder of them all."""
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        shutil.rmtree(self._root, ignore_errors=True)


def _dead_children() -> Iterator[int]:
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            yield pid
