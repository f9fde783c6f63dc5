"""One Ray node on this machine, as the head of a cluster or as a member of one, and all its processes with it."""

from __future__ import annotations

import ctypes
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from slime_swe.errors import InfrastructureError
from slime_swe.launch.ray.dashboard import MODE, OVERRIDING, TOKEN, gpus_by_node, ray_version, reaching, wait_until
from slime_swe.launch.ray.network import address_towards, at_address, free_ports
from slime_swe.launch.ray.processes import MARK, deferring, stop_owned

HOST_IP = "SLIME_HOST_IP"  # SLiME's own name: the address at which its router listens
STOP_SECONDS = 10.0
START_LOG = "start.log"
TAIL = 2000  # characters of a node's output in an error message
_PR_SET_PDEATHSIG = 1
_RAY = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats")
_LIMITS = {  # Ray's own give up after half a minute where a busy machine still starts
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}


@dataclass(frozen=True)
class Head:
    """The addresses of a cluster's first node, and the token that it asks for.

    gcs: `host:port` that members join at; dashboard: `http://host:port`.
    """

    gcs: str
    dashboard: str
    token: str = field(repr=False)


class Node:
    """A `ray start --block` that lasts as long as the context is open; it also ends with this process."""

    def __init__(self, address: str, arguments: Sequence[str], token: str) -> None:
        """address: of this machine, as the other nodes see it."""
        self.mark = uuid.uuid4().hex
        self._address, self._arguments, self._token = address, arguments, token

    @classmethod
    def head(cls, host: str, dashboard_host: str, resources: Sequence[str] = ()) -> tuple[Self, Head]:
        """Make the first node of a cluster, on free ports of `host`, with the job server on `dashboard_host`.

        `resources` are words for `ray start`, such as `--num-gpus=8`; Ray looks for itself where there are none.
        """
        gcs, dashboard, client = free_ports(3)
        arguments = [
            *("--head", f"--port={gcs}"),
            *(f"--dashboard-host={dashboard_host}", f"--dashboard-port={dashboard}"),
            f"--ray-client-server-port={client}",
            *resources,
        ]
        reached = Head(f"{host}:{gcs}", f"http://{dashboard_host}:{dashboard}", secrets.token_hex(32))
        return cls(host, arguments, reached.token), reached

    @classmethod
    def member(cls, head: Head, resources: Sequence[str] = ()) -> Self:
        """Make a further node of the cluster, at that address of this machine which reaches the head."""
        return cls(address_towards(head.gcs), [f"--address={head.gcs}", *resources], head.token)

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="swe-ray-", dir="/tmp"))  # short: it holds Unix sockets
        (agent,) = free_ports(1)
        where = (f"--node-ip-address={self._address}", f"--temp-dir={self.folder}")
        own = {**_LIMITS, MARK: self.mark, MODE: "token", TOKEN: self._token}
        with (self.folder / START_LOG).open("wb") as output:
            self._process = subprocess.Popen(
                [*_RAY, *where, f"--dashboard-agent-listen-port={agent}", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment_at(self._address), **own},
                start_new_session=True,  # a terminal's Ctrl-C is for the job, after which the node is stopped
                preexec_fn=_prepare,
            )
        return self

    def __exit__(self, *exc: object) -> None:
        """End every process of the node, and remove its files."""
        with deferring():
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):  # what it leaves is ended below
                self._process.wait(STOP_SECONDS)
            stop_owned(self.mark, STOP_SECONDS)
            self._process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)

    def require_alive(self) -> None:
        """Raise `InfrastructureError` where the node has ended."""
        if self._process.poll() is not None:
            said = (self.folder / START_LOG).read_text(errors="replace").strip()[-TAIL:]
            code = self._process.returncode
            raise InfrastructureError(f"Ray ended on this machine with code {code}. It said:\n{said}")


def environment_at(address: str, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what the processes of a node at this address inherit; what the user has set stays.

    SLiME's router binds to `SLIME_HOST_IP` (`slime/utils/http_utils.py`, `get_host_info`). Without it SLiME takes the
    address of the default route's interface, which the cluster may not know, or where there is none the loopback's.
    """
    host = {} if address.startswith("127.") else {HOST_IP: address}
    kept = {name: value for name, value in inherited.items() if name not in OVERRIDING}
    return {**at_address(address), **host, **kept}


def wait_for_nodes(head: Head, count: int, seconds: float, require_alive: Callable[[], None]) -> list[int]:
    """Return the GPUs of each node, when so many have joined; `require_alive` raises where that can't be any more.

    Raises `InfrastructureError` where it takes longer.
    """

    def complete() -> bool:
        require_alive()
        return ray_version(head.dashboard) is not None and len(gpus_by_node(head.dashboard)) >= count

    with reaching(head.dashboard, head.token):
        if not wait_until(complete, seconds):
            raise InfrastructureError(f"not all of {count} nodes joined the Ray cluster within {seconds:g} s")
        return gpus_by_node(head.dashboard)


def _prepare() -> None:
    """End with the parent, and dump no core: Ray's dashboard agent leaves one of half a gigabyte when it is stopped."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
