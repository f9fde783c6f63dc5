"""Checks of what this machine and this shell give to a run: cores, memory, open files, shared memory, room on disks."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from slime_swe.launch.doctor import Finding, Machine, failure, ok, skipped, warning
from slime_swe.launch.engines import Engine, engine_of
from slime_swe.launch.model import checkpoint_path, converted_folder
from slime_swe.launch.plan import GIB
from slime_swe.launch.plan.training import checkpoint_bytes
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.layers import WEIGHT_BYTES

LEAST_SHARED = GIB  # Docker's own default of 64 MiB breaks NCCL and Ray
USUAL_SHARED = 16 * GIB  # what SLiME runs its own containers with
SMALLEST = 64 << 20  # logs, trajectories and metrics of any run
_NEARLY = 0.95  # a machine of 64 GiB shows a little less


def check_capacity(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Compare cores and memory with what the recipe says the machine has."""
    cores, memory = len(os.sched_getaffinity(0)), memory_bytes() / GIB
    cluster = recipe.cluster
    found = f"{cores} CPU cores, {memory:.1f} GiB memory"
    if cores >= cluster.cpus_per_node and memory >= _NEARLY * cluster.memory_per_node:
        yield ok("machine", found)
    else:
        found += f"; the recipe counts on {cluster.cpus_per_node} and {cluster.memory_per_node}"
        fix = "expect slower rollouts; to plan with it, set cluster.cpus_per_node and cluster.memory_per_node"
        yield warning("machine", found, fix)


def memory_bytes() -> int:
    """Return the memory of this machine in bytes, or less where a control group bounds this process."""
    bounds = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
        bounds += [int(text)] if text.isdigit() else []
    return min(bounds)


def check_limits(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check `ulimit -n`; for a GPU run also `ulimit -l` and the room in /dev/shm."""
    engine = engine_of(recipe)
    yield _open_files(engine)
    if not engine.on_gpus:
        yield skipped("locked memory", f"engine={recipe.engine} locks none")
        return
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found = "unlimited" if soft == resource.RLIM_INFINITY else f"at most {soft / (1 << 20):g} MiB"
    if soft == resource.RLIM_INFINITY or recipe.cluster.nodes == 1:  # one machine can do with little
        yield ok("locked memory", found)
    else:
        found += ": InfiniBand registers the buffers of NCCL as locked memory"
        yield warning("locked memory", found, "ulimit -l unlimited; --ulimit memlock=-1 for Docker")
    yield _shared_memory()


def _open_files(engine: Engine) -> Finding:
    """Check the limit of open files, of which Ray raises the soft one to the hard one, up to 65,536."""
    least, usual = engine.open_files
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (float("inf") if limit == resource.RLIM_INFINITY else limit for limit in limits)
    effective = max(soft, min(hard, 65536)) if engine.raises_open_files else soft
    found = f"{effective:g} at most"
    fix = f"ulimit -n {usual}; where that is refused, --ulimit nofile={usual} for Docker or /etc/security/limits.conf"
    if effective < least:
        return failure("open files", f"{found}; this needs {least}", fix)
    if effective < usual:
        return warning("open files", f"{found}; {usual} is usual", fix)
    return ok("open files", found)


def _shared_memory() -> Finding:
    free = free_bytes(Path("/dev/shm"))
    found = f"{free / GIB:.1f} GiB free in /dev/shm"
    fix = "--shm-size=64g or --ipc=host for Docker; else mount -o remount,size=64G /dev/shm"
    if free < LEAST_SHARED:
        return failure("shared memory", f"{found}: NCCL and Ray need it", fix)
    if free < USUAL_SHARED:
        return warning("shared memory", f"{found}: Ray's object store may spill to disk", fix)
    return ok("shared memory", found)


def check_run_folder(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check the room in the run's folder: a checkpoint is written before the one before it can go, so two must fit."""
    folder = Path(recipe.run.dir)
    shape, exports, count = recipe.model.shape, recipe.most_exports, recipe.most_checkpoints
    export = WEIGHT_BYTES * shape.parameters
    one, rest = checkpoint_bytes(recipe) + export, (exports - count) * export
    refusal = unwritable(folder)
    if refusal:
        yield failure("run folder", refusal, "give another run.dir")
        return
    free = free_bytes(folder)
    found = f"{size(free)} free in {folder}; a checkpoint takes {size(one)}"
    if free < min(2, count) * one + SMALLEST:
        yield failure("run folder", f"{found}, and two must fit", "make room there, or give another run.dir")
    elif free < count * one + rest + SMALLEST:
        fix = "lower run.keep_checkpoints and run.keep_exports, raise run.save_interval, or give another run.dir"
        yield warning("run folder", f"{found}: not all {count} fit, with {exports} exports", fix)
    else:
        yield ok("run folder", found)


def unwritable(folder: Path) -> str:
    """Say why nothing can be written in a folder, or in the nearest above it that is there, by writing to its file
    system; empty where something can."""
    place = existing(folder)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"\0" * (1 << 16))
    except OSError as error:
        return f"can't write in {place}: {error.strerror}"
    return ""


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(existing(folder)).free


def existing(folder: Path) -> Path:
    """Return the folder itself, or the nearest above it that is there."""
    folder = folder.expanduser().absolute()
    return next(place for place in (folder, *folder.parents) if place.exists())


def size(count: float) -> str:
    """Write a number of bytes as `512 MiB` or `1.5 GiB`."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


def check_model_folder(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check the room for what is not there yet: the checkpoint, and its copy in Megatron's format."""
    folder = Path(recipe.model.folder)
    came = checkpoint_path(recipe.model.checkpoint, recipe.model.folder)
    missing = [place for place in (came, converted_folder(recipe)) if not place.is_dir()]
    refusal = unwritable(folder) if missing else ""
    if refusal:
        yield failure("model folder", refusal, "give another model.folder, or convert the checkpoint elsewhere")
        return
    needed = len(missing) * WEIGHT_BYTES * recipe.model.shape.parameters
    free = free_bytes(folder)
    if free < needed:
        found = f"{size(free)} free in {folder}; {' and '.join(map(str, missing))} will take {size(needed)}"
        yield failure("model folder", found, "make room there, or give another model.folder")
    else:
        yield ok("model folder", f"{size(free)} free in {folder}")
