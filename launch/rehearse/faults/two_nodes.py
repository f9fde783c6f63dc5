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
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import ClassVar

from slime_swe.launch.ray.dashboard import MODE, TOKEN
from slime_swe.launch.ray.processes import deferring
from slime_swe.launch.rehearse.faults.injection import Injection
from slime_swe.launch.rehearse.faults.network import DEVICE, Network, two_namespaces
from slime_swe.launch.rehearse.faults.processes import Processes
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
