"""A private SLURM of two virtual nodes on this machine, each with a network, a hostname and processes of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from tests.waiting import wait_for

NODES = ("n0", "n1")
ADDRESSES = ("10.231.0.1", "10.231.0.2")
SPACES = ("--net", "--uts", "--pid")
GPUS = 8  # of each node, none of them real
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "ip", "nsenter", "setpriv", "unshare")
CONFIGURATION = """
ClusterName=virtual
SlurmctldHost=n0({controller})
SlurmctldPort=6817
SlurmdPort=6818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
PropagateResourceLimitsExcept=ALL
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2
GresTypes=gpu
NodeName=n0 NodeAddr={n0} CPUs=2 RealMemory=4000 Gres=gpu:{gpus} State=UNKNOWN
NodeName=n1 NodeAddr={n1} CPUs=1 RealMemory=4000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes=n0,n1 Default=YES MaxTime=60 State=UP
"""
# cred_expire is how long a job that was put back into the queue waits there: two minutes by default, otherwise


def why_not() -> str | None:
    """The reason that a virtual cluster can't be made here, or None."""
    if os.geteuid() != 0:
        return "a virtual SLURM cluster needs root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install slurm-wlm munge iproute2 util-linux"
    tried = subprocess.run(["unshare", *SPACES, "--fork", "--mount-proc", "true"], capture_output=True)
    return f"no namespaces here: {tried.stderr.decode().strip()}" if tried.returncode else None


class Cluster:
    """Its `folder` holds everything; commands are run as on the first node."""

    def __init__(self, folder: Path, holders: list[subprocess.Popen[bytes]]) -> None:
        self.folder, self._holders = folder, holders

    def on(self, node: int, *words: str, cwd: Path = Path("/"), env: Mapping[str, str] = MappingProxyType({})) -> str:
        """What the command prints. It must not fail."""
        environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), **env}
        done = subprocess.run(
            self.command(node, *words, cwd=cwd), env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{words}: {done.stderr}{done.stdout}"
        return done.stdout

    def command(self, node: int, *words: str, cwd: Path) -> list[str]:
        """The same command as it is given on this machine."""
        return ["nsenter", f"--target={self._inside(node)}", *SPACES, "--mount", f"--wd={cwd}", "--", *words]

    def _inside(self, node: int) -> int:
        """The process that holds the node's namespaces: the only child of what made them."""
        (inside,) = children_of(self._holders[node].pid)
        return int(inside)

    def start(self) -> None:
        self._connect()
        self._configure()
        self.on(0, "munged", "--force", *(f"--{name}={self.folder}/munge.{end}" for name, end in MUNGE_FILES.items()))
        self.on(0, "slurmctld", "-f", f"{self.folder}/slurm.conf")
        for number, name in enumerate(NODES):
            self.on(number, "slurmd", "-f", f"{self.folder}/slurm.conf", "-N", name)
        wait_for(lambda: self.on(0, "sinfo", "--noheader", "--format=%T %D").split() == ["idle", "2"], "nodes")

    def _connect(self) -> None:
        """One cable from node to node."""
        ends = [str(self._inside(number)) for number in range(len(NODES))]
        cable = f"ip link add eth0 netns {ends[0]} type veth peer name eth0 netns {ends[1]}"
        subprocess.run(cable.split(), check=True)
        for number, address in enumerate(ADDRESSES):
            self.on(number, "hostname", NODES[number])
            self.on(number, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self.on(number, "ip", "link", "set", device, "up")

    def _configure(self) -> None:
        (self.folder / "state").mkdir()
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o400)
        for number in range(GPUS):
            os.mknod(self.folder / f"nvidia{number}", 0o20666, os.makedev(1, 3))  # a character device as good as any
        (self.folder / "gres.conf").write_text(f"NodeName=n[0-1] Name=gpu File={self.folder}/nvidia[0-{GPUS - 1}]\n")
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        values = {
            "folder": self.folder,
            "gpus": GPUS,
            "controller": ADDRESSES[0],
            **dict(zip(NODES, ADDRESSES, strict=True)),
        }
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**values))

    def submit(
        self, script: str, *words: str, nodes: int = 2, cwd: Path, log: Path, options: tuple[str, ...] = ()
    ) -> str:
        """The job's id. Its Python is the one that runs the tests. options: for `sbatch`."""
        environment = {"SLIME_SWE_PYTHON": sys.executable, "SLIME_SWE_CACHE": str(self.folder / "cache")}
        usual = ["--parsable", f"--nodes={nodes}", "--time=50", f"--output={log}"]
        return self.on(0, "sbatch", *usual, *options, script, *words, cwd=cwd, env=environment).strip()

    def job(self, identifier: str) -> dict[str, str]:
        """What SLURM says of the job, such as `JobState` and `Restarts`."""
        shown = self.on(0, "scontrol", "--oneliner", "show", "job", identifier)
        return dict(pair.split("=", 1) for pair in shown.split() if "=" in pair)


MUNGE_FILES = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}


@contextmanager
def virtual_cluster(folder: Path) -> Iterator[Cluster]:
    """A running cluster. Its processes live in namespaces of their own, which end with the context."""
    making = ["setpriv", "--pdeathsig", "KILL", "unshare", *SPACES, "--fork", "--mount-proc", "--kill-child"]
    reaping = ["bash", "-c", "sleep infinity & wait"]  # as a machine's first process does: Ray waits for what it ends
    holders = [subprocess.Popen([*making, *reaping]) for _ in NODES]
    try:
        cluster = Cluster(folder, holders)
        wait_for(lambda: all(children_of(holder.pid) for holder in holders), "namespaces")
        cluster.start()
        yield cluster
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
