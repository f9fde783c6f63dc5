"""What this machine and this shell give to a run: cores, memory, shared memory, open files, locked memory."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from launch.doctor.finding import Finding, failure, ok, skipped, warning
from launch.doctor.machine import Machine
from recipes.base import Recipe

GIB = 1 << 30
OPEN_FILES = {"slime": (8192, 65536), "slime_cpu": (4096, 8192), "embedded": (512, 1024)}  # fails below, warns below
LEAST_SHARED = GIB  # Docker's own default of 64 MiB breaks NCCL and Ray
USUAL_SHARED = 16 * GIB  # what SLiME runs its own containers with
_NEARLY = 0.95  # a machine of 64 GiB shows a little less


def check_capacity(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Cores and memory against what the recipe says the machine has."""
    cores, memory = len(os.sched_getaffinity(0)), memory_bytes() / GIB
    cluster = recipe.cluster
    found = f"{cores} CPU cores, {memory:.1f} GiB memory"
    if cores >= cluster.cpus_per_node and memory >= _NEARLY * cluster.memory_per_node:
        yield ok("machine", found)
    else:
        yield warning(
            "machine",
            f"{found}; the recipe counts on {cluster.cpus_per_node} and {cluster.memory_per_node}",
            "expect slower rollouts; set cluster.cpus_per_node and cluster.memory_per_node to what is here to plan "
            "with it",
        )


def memory_bytes() -> int:
    """Of the machine, or less where a control group bounds this process."""
    bounds = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        bounds += [int(text)] if text.isdigit() else []
    return min(bounds)


def check_limits(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """`ulimit -n`; for a GPU run also `ulimit -l` and the size of /dev/shm."""
    yield _open_files(recipe.engine)
    if recipe.engine != "slime":
        yield skipped("locked memory", f"engine={recipe.engine} locks none")
        return
    yield _locked_memory(recipe.cluster.nodes)
    yield _shared_memory(Path("/dev/shm"))


def _open_files(engine: str) -> Finding:
    """Ray raises the soft limit to the hard one, up to 65,536; the embedded engine takes it as it is."""
    least, usual = OPEN_FILES[engine]
    soft, hard = (_number(limit) for limit in resource.getrlimit(resource.RLIMIT_NOFILE))
    effective = soft if engine == "embedded" else max(soft, min(hard, 65536))
    found = f"{effective:g} at most"
    fix = f"ulimit -n {usual}; where that is refused, --ulimit nofile={usual} for Docker or /etc/security/limits.conf"
    if effective < least:
        return failure("open files", f"{found}; this needs {least}", fix)
    if effective < usual:
        return warning("open files", f"{found}; {usual} is usual", fix)
    return ok("open files", found)


def _locked_memory(nodes: int) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return ok("locked memory", "unlimited")
    found = f"at most {soft / (1 << 20):g} MiB"
    if nodes == 1:
        return ok("locked memory", f"{found}, which one machine can do with")
    return warning(
        "locked memory",
        f"{found}: InfiniBand registers the buffers of NCCL as locked memory",
        "ulimit -l unlimited; --ulimit memlock=-1 for Docker",
    )


def _shared_memory(folder: Path) -> Finding:
    if not folder.is_dir():
        return failure("shared memory", f"there is no {folder}", "mount a tmpfs there")
    free = shutil.disk_usage(folder).free
    found = f"{free / GIB:.1f} GiB free in {folder}"
    fix = "--shm-size=64g or --ipc=host for Docker; else mount -o remount,size=64G /dev/shm"
    if free < LEAST_SHARED:
        return failure("shared memory", f"{found}: NCCL and Ray need it", fix)
    if free < USUAL_SHARED:
        return warning("shared memory", f"{found}: Ray's object store may spill to disk", fix)
    return ok("shared memory", found)


def _number(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit
