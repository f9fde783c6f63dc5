"""A run on two nodes, the second of which is lost when the network to it is cut.

Both are network namespaces of this machine: processes and files are common to them, and the network is not. The second
node is started as one of a SLURM job is, and holds one server; all else of the run is on the first.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import PIPE
from typing import ClassVar

from slime_swe.errors import InfrastructureError
from slime_swe.launch.ray.dashboard import MODE, TOKEN
from slime_swe.launch.ray.processes import PROC, deferring, lives
from slime_swe.launch.rehearse.faults.injection import Injection, Processes
from slime_swe.launch.slime.job import Job

FIRST, SECOND = 0, 1
LOG = "second_node.log"  # in the run's folder
STOP = 60.0  # seconds that the second node gets to end its Ray
_ENDING_WITH_US = ("setpriv", "--pdeathsig", "TERM")
_GLOO = "GLOO_SOCKET_IFNAME"  # else it listens at the address that /etc/hosts has for this machine
_NODE = {"SLURM_PROCID": "1", "SLURM_CPUS_ON_NODE": "1", "SLURM_GPUS_ON_NODE": "1"}  # room for one server alone


class LostNode(Injection):
    """Nothing is killed: the second node goes on, and nobody hears of it."""

    ends_within: ClassVar[float] = 300.0  # nobody can end the second node's, which ends by itself without its head
    program: ClassVar = (sys.executable, "-m", "slime_swe.launch.rehearse.faults.first_node")
    network: Network
    second: subprocess.Popen[bytes] | None = None

    @contextmanager
    def prepared(self) -> Iterator[None]:
        self.run.mkdir(parents=True)
        with two_namespaces() as self.network, tempfile.TemporaryDirectory() as self.folder:
            try:
                yield
            finally:
                with deferring():
                    self._end()

    def started(self, job: Job) -> Job:
        """On the first node; the second waits for it."""
        folder = tempfile.mkdtemp(dir=self.folder)  # of this start: the head has another address each time
        environment = {**job.environment, MODE: "token", TOKEN: secrets.token_hex(32), _GLOO: DEVICE}
        self._join(folder, environment)
        program = (*self.network.inside(FIRST), *self.program, folder, job.program[-1])
        return replace(job, program=program, environment=environment)

    def _join(self, folder: str, environment: Mapping[str, str]) -> None:
        member = (sys.executable, "-m", "slime_swe.launch.ray.slurm", "node", folder)
        with (self.run / LOG).open("ab") as output:
            self.second = subprocess.Popen(
                (*_ENDING_WITH_US, *self.network.inside(SECOND), *member),
                cwd=self.run,
                env=os.environ | dict(environment) | _NODE,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def inject(self, processes: Processes) -> None:
        self.network.cut()

    def living(self, mark: str) -> list[int]:
        """Those of the second node too, which no launcher can reach."""
        return [*super().living(mark), *self.network.processes(SECOND)]

    def mend(self) -> None:
        """The network is there again. What is left on the second node ends, as SLURM has it before another job."""
        self._end()
        self.network.mend()

    def _end(self) -> None:
        if self.second is not None:
            self.second.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.second.wait(STOP)
        for pid in self.network.processes(SECOND):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.second is not None:
            self.second.wait()
            self.second = None


# Two network namespaces with a link between them, which can be cut. Making them needs root and iproute2.
#
# This machine's own network has no part in it. A namespace lasts as long as a process is in it, so that none is left
# behind where this process is killed.
ADDRESSES = "10.77.0.1", "10.77.0.2"  # of the nodes, the first the smaller: SLiME puts its trainer there
DEVICE = "eth0"  # the end of the link in each
_HARDWARE = "02:00:00:00:00:01", "02:00:00:00:00:02"
_HOLD = ("unshare", "--net", "sh", "-c", "echo && exec cat")  # until its standard input ends


@dataclass(frozen=True)
class Network:
    """holders: of each node's namespace, the process that has made it."""

    holders: tuple[int, int]

    def inside(self, node: int) -> tuple[str, ...]:
        """The words before a command that have it run on a node, 0 or 1."""
        return "nsenter", f"--net={self._path(node)}"

    def cut(self) -> None:
        """From now on each end drops what it is to send. Connections stay open; nobody is told."""
        self._queue("blackhole")

    def mend(self) -> None:
        self._queue("noqueue")

    def processes(self, node: int) -> list[int]:
        """Those that run on a node."""
        found = (int(path.name) for path in PROC.glob("[0-9]*"))
        own = os.readlink(self._path(node))
        return sorted(pid for pid in found if pid not in self.holders and _namespace(pid) == own and lives(pid))

    def _path(self, node: int) -> Path:
        return PROC / str(self.holders[node]) / "ns" / "net"

    def _queue(self, kind: str) -> None:
        for node in (0, 1):
            _run(*self.inside(node), "tc", "qdisc", "replace", "dev", DEVICE, "root", kind)


@contextmanager
def two_namespaces() -> Iterator[Network]:
    """Raises `InfrastructureError` where this process may make none."""
    with ExitStack() as stack:
        made = Network((_held(stack), _held(stack)))
        first, second = ((DEVICE, "address", address) for address in _HARDWARE)
        peer = ("peer", "name", *second, "netns", str(made.holders[1]))
        _run(*made.inside(0), "ip", "link", "add", *first, "type", "veth", *peer)
        for node, other in ((0, 1), (1, 0)):
            _connect(made, node, other)
        yield made


def _connect(network: Network, node: int, other: int) -> None:
    """Each knows the other's hardware address. Else it would ask for it, and a new connection over a cut link would
    fail after three seconds, as between two nodes with no router between them.
    """
    for words in (
        "ip link set lo up",
        f"ip link set {DEVICE} up",
        f"ip address add {ADDRESSES[node]}/24 dev {DEVICE}",
        f"ip neigh replace {ADDRESSES[other]} lladdr {_HARDWARE[other]} dev {DEVICE} nud permanent",
        f"ip route add default via {ADDRESSES[other]}",  # Ray and SLiME take their address from the route to elsewhere
    ):
        _run(*network.inside(node), *words.split())


def _held(stack: ExitStack) -> int:
    """A process in a namespace of its own, until the stack is unwound."""
    with _needing_root():
        process = subprocess.Popen(_HOLD, start_new_session=True, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        stack.enter_context(process)
        assert process.stdout is not None and process.stderr is not None
        if not process.stdout.readline():
            raise OSError(process.stderr.read().decode(errors="replace").strip())
    return process.pid


def _run(*words: str) -> None:
    with _needing_root():
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def _needing_root() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InfrastructureError(f"a cut network needs root and iproute2, to make a second node's: {error}") from error


def _namespace(pid: int) -> str:
    """Of a process; empty where it has ended."""
    with suppress(OSError):
        return os.readlink(PROC / str(pid) / "ns" / "net")
    return ""
