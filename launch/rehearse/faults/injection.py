"""How a part of a drilled run is made to fail, and what the run needs for that."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import PIPE
from typing import ClassVar

from slime_swe.errors import InfrastructureError
from slime_swe.launch.ray.dashboard import MODE, TOKEN
from slime_swe.launch.ray.processes import PROC, deferring, lives, owned
from slime_swe.launch.rehearse.faults import PARTS, Drill, Moment, Part
from slime_swe.launch.slime.job import Job


@dataclass
class Injection:
    """A fault that sends the part's signal to its processes. A part that fails in another way has a subclass.

    run: the run's folder, which is not there before. ends_within: seconds in which the run's processes must follow its
    driver.
    """

    ends_within: ClassVar[float] = 10.0
    drill: Drill
    run: Path

    @contextmanager
    def prepared(self) -> Iterator[None]:
        """Provide the folder, and what else the run needs, until the drill is over.

        Raises `InfrastructureError` where this machine does not give it.
        """
        self.run.mkdir(parents=True)
        yield

    def started(self, job: Job) -> Job:
        """Return the job as it is started, the first time and to resume."""
        return job

    def inject(self, processes: Processes) -> None:
        """Let the part fail. Raises `InfrastructureError` where the run has no such process."""
        part = PARTS[self.drill.part]
        found = processes.of(part)
        if not found:
            raise InfrastructureError(f"{self.drill.name}: no process of the run is a {self.drill.part}")
        while found:
            strike(found, part)
            found = [] if part.title else processes.of(part)  # what was being started meanwhile

    def living(self, mark: str) -> list[int]:
        """List the run's processes. mark: that of those which its job has started."""
        return owned(mark)

    def mend(self) -> None:
        """Undo what has failed, before the run is resumed."""


# The processes of one run that the drill has started, told apart by what they call themselves.
SCAN = 1.0  # seconds between looks for new processes


def title(pid: int) -> str:
    """Read a process's title, without its folder and arguments; empty where it has ended."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return words[0].decode(errors="replace").strip().rpartition("/")[2]


def parent(pid: int) -> int | None:
    """Find the parent of a process; None where the process has ended."""
    try:
        return int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


class Processes:
    """Processes whose environment holds `mark`; new ones are looked for every `SCAN` seconds, as that takes long."""

    def __init__(self, mark: str) -> None:
        self.mark, self._found, self._looked = mark, list[int](), 0.0

    def titles(self) -> dict[int, str]:
        """Map each process to its title as it is now, the oldest first."""
        if time.monotonic() - self._looked > SCAN:
            self._found, self._looked = sorted(owned(self.mark)), time.monotonic()
        return {pid: title(pid) for pid in self._found}

    def of(self, part: Part) -> list[int]:
        """List the processes that fail with the part: one of those that it names, or all where it names none.

        A process is left out whose parent has such a title too: it was forked, to save or to route. Known are those
        that were there at the last look, since a moment may be over before another look is.
        """
        if not part.title:
            return owned(self.mark)
        found = [pid for pid, name in self.titles().items() if name.startswith(part.title)]
        return [pid for pid in found if parent(pid) not in found][-1:]


class Watch:
    """Sees a moment come: a process in a method, and files of a run that are there and that are not yet."""

    def __init__(self, moment: Moment, run: Path, processes: Processes) -> None:
        self.moment, self.run, self.processes = moment, run, processes
        self._since: float | None = None

    def has_come(self) -> bool:
        """Say whether the moment has lasted as long as it must; to be asked again and again."""
        if not self.lasts():
            self._since = None
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= self.moment.seconds

    def lasts(self) -> bool:
        moment = self.moment
        there = (self.run / moment.there).exists() and not (self.run / moment.missing).exists()
        return there and moment.title in self.processes.titles().values()


def strike(pids: list[int], part: Part) -> None:
    """Send the part's signal to each that still lives."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, part.number)


def left_after(living: Callable[[], list[int]], seconds: float) -> list[str]:
    """Return the titles of processes that still live after `seconds`; it returns at once when none is left."""
    deadline = time.monotonic() + seconds
    while living() and time.monotonic() < deadline:
        time.sleep(0.2)
    return sorted(title(pid) for pid in living())


# A small disk of its own for a run's folder, which can be filled: a tmpfs, which needs root to be mounted.
BYTES = 64 << 20
_FILLER, _BLOCKS = "filler", 64  # the last blocks are written one by one, as others write meanwhile


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small disk at `folder`, which is made; afterwards the folder holds what was written, on its own disk.

    Raises `InfrastructureError` where this process may mount nothing.
    """
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={BYTES}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"a full disk needs root, to mount a small one: {done.stderr.strip()}")
    kept = folder.with_name(f"{folder.name}.kept")
    try:
        yield
        empty(folder)
        shutil.copytree(folder, kept, symlinks=True)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()
    kept.rename(folder)


def fill(folder: Path) -> None:
    """Leave no byte free."""
    free = os.statvfs(folder)
    with (folder / _FILLER).open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, max(1, (free.f_bavail - _BLOCKS) * free.f_frsize))
        with suppress(OSError):  # it is full
            while file.write(bytes(free.f_frsize)):
                pass


def empty(folder: Path) -> None:
    """Make the room again, as a user does who is told that the disk is full."""
    (folder / _FILLER).unlink(missing_ok=True)


class FullDisk(Injection):
    """The disk of the run's folder is full."""

    @contextmanager
    def prepared(self) -> Iterator[None]:
        with small_disk(self.run):
            yield

    def inject(self, processes: Processes) -> None:
        fill(self.run)

    def mend(self) -> None:
        empty(self.run)


# A run on two nodes, the second of which is lost when the network to it is cut.
#
# Both are network namespaces of this machine: processes and files are common to them, and the network is not. The
# second node is started as one of a SLURM job is, and holds one server; all else of the run is on the first.
FIRST, SECOND = 0, 1
NODE_LOG = "second_node.log"  # in the run's folder
NODE_STOP = 60.0  # seconds that the second node gets to end its Ray
_ENDING_WITH_US = ("setpriv", "--pdeathsig", "TERM")
_GLOO = "GLOO_SOCKET_IFNAME"  # else it listens at the address that /etc/hosts has for this machine
_NODE = {"SLURM_PROCID": "1", "SLURM_CPUS_ON_NODE": "1", "SLURM_GPUS_ON_NODE": "1"}  # room for one server alone


class LostNode(Injection):
    """A cut network: nothing is killed, the second node goes on, and nobody hears of it."""

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
        """Return the job on the first node, and start the second node, which waits for it."""
        folder = tempfile.mkdtemp(dir=self.folder)  # of this start: the head has another address each time
        environment = {**job.environment, MODE: "token", TOKEN: secrets.token_hex(32), _GLOO: DEVICE}
        self._join(folder, environment)
        program = (*self.network.inside(FIRST), *self.program, folder, job.program[-1])
        return replace(job, program=program, environment=environment)

    def _join(self, folder: str, environment: Mapping[str, str]) -> None:
        member = (sys.executable, "-m", "slime_swe.launch.ray.slurm", "node", folder)
        with (self.run / NODE_LOG).open("ab") as output:
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
        """List the processes of the second node too, which no launcher can reach."""
        return [*super().living(mark), *self.network.processes(SECOND)]

    def mend(self) -> None:
        """Restore the network, after ending what is left on the second node, as SLURM does before another job."""
        self._end()
        self.network.mend()

    def _end(self) -> None:
        if self.second is not None:
            self.second.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.second.wait(NODE_STOP)
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
    """Two linked network namespaces. holders: the process that has made each node's."""

    holders: tuple[int, int]

    def inside(self, node: int) -> tuple[str, ...]:
        """Return the words before a command that have it run on a node, 0 or 1."""
        return "nsenter", f"--net={self._path(node)}"

    def cut(self) -> None:
        """Make each end drop what it is to send from now on. Connections stay open; nobody is told."""
        self._queue("blackhole")

    def mend(self) -> None:
        self._queue("noqueue")

    def processes(self, node: int) -> list[int]:
        """List the processes that run on a node."""
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
    """Make two linked network namespaces. Raises `InfrastructureError` where this process may make none."""
    with ExitStack() as stack:
        made = Network((_held(stack), _held(stack)))
        first, second = ((DEVICE, "address", address) for address in _HARDWARE)
        peer = ("peer", "name", *second, "netns", str(made.holders[1]))
        _run(*made.inside(0), "ip", "link", "add", *first, "type", "veth", *peer)
        for node, other in ((0, 1), (1, 0)):
            _connect(made, node, other)
        yield made


def _connect(network: Network, node: int, other: int) -> None:
    """Set up a node's end of the link, with the other's hardware address. Else the node would ask for that, and a new
    connection over a cut link would fail after three seconds, as between two nodes with no router between them.
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
    """Start a process in a network namespace of its own, which lives until the stack is unwound."""
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
    """Read the network namespace of a process; empty where it has ended."""
    with suppress(OSError):
        return os.readlink(PROC / str(pid) / "ns" / "net")
    return ""
