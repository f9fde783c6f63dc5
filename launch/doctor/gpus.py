"""The GPUs of this machine and how they are joined, as `nvidia-smi` prints it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slime_swe.launch.doctor import Finding, Machine, MachineError, failure, ok, skipped, warning
from slime_swe.launch.doctor.versions import driver, judged
from slime_swe.recipes.base import Recipe

QUERY = "index,uuid,name,driver_version,memory.total,memory.used,mig.mode.current"
COMMAND = ("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
LINKS_COMMAND = ("nvidia-smi", "topo", "-m")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # the header is underlined, on a terminal or not
_NETWORK = re.compile(r"NIC\d+|mlx\d+_\d+")
IDLE_MIB = 1024  # a GPU that nobody uses still shows some hundred MiB
_TOLERANCE = 0.98  # of a GPU's nominal memory: error correction and firmware keep a little


@dataclass(frozen=True)
class Gpu:
    """One GPU; `memory` and `used` are in MiB."""

    index: int
    uuid: str
    name: str
    driver: str
    memory: int
    used: int
    partitioned: bool


def check_gpus(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check the number of GPUs, their kind and driver, and what already occupies them."""
    wanted, address = recipe.cluster.gpus_per_node, recipe.cluster.ray_address
    if address and not machine.has("nvidia-smi"):
        yield skipped("gpus", f"none here; the job goes to the cluster at {address}: run this on its nodes too")
        return
    try:
        gpus, strange = parse(machine.ask(*COMMAND))
    except MachineError as error:
        yield failure("gpus", str(error), _BROKEN if machine.has("nvidia-smi") else _ELSEWHERE)
        return
    if strange:
        found = f"nvidia-smi says {strange[0][:120]!r}" + f" and {len(strange) - 1} lines more" * (len(strange) > 1)
        yield (warning if gpus else failure)("gpus", found, _BROKEN)
    if gpus:
        yield from _counted(gpus, wanted)
        yield from _of_kind(gpus, recipe.cluster.gpu)
        yield judged("driver", gpus[0].driver, driver(), _DRIVER.format(driver().tested))
        yield from _occupied(gpus[:wanted], recipe)
    elif not strange:
        yield failure("gpus", f"nvidia-smi lists no GPU; the recipe wants {wanted}", _ELSEWHERE)


def parse(text: str) -> tuple[list[Gpu], list[str]]:
    """Read the GPUs in the answer to `COMMAND`; return its lines that tell of none too."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    rows = [match.groups() for line in lines if (match := _ROW.fullmatch(line))]
    gpus = [Gpu(int(index), uuid, name, version, int(memory), int(used), mig == "Enabled")
            for index, uuid, name, version, memory, used, mig in rows]  # fmt: skip
    return gpus, [line for line in lines if not _ROW.fullmatch(line)]


_ROW = re.compile(r"(\d+), (GPU-[0-9a-f-]+), ([^,]+), (\d+(?:\.\d+)+), (\d+), (\d+), (Enabled|Disabled|\[N/A\]|N/A)")
_ELSEWHERE = "run this on a machine of the cluster, or take a recipe without GPUs (`slime-swe recipes` lists them)"
_BROKEN = "run `nvidia-smi` yourself: where it fails too, the driver must be put right, or the machine rebooted"


def _counted(gpus: Sequence[Gpu], wanted: int) -> Iterator[Finding]:
    """Check how many GPUs there are, how many may be seen, and that all are whole."""
    kinds = sorted({gpu.name for gpu in gpus})
    found = f"{len(gpus)} × {' and '.join(kinds)}, {gpus[0].memory / 1024:.1f} GiB each"
    if len(gpus) < wanted:
        yield failure(
            "gpus",
            f"{found}; the recipe wants {wanted} on each machine",
            f"take a machine with {wanted}, or set cluster.gpus_per_node={len(gpus)} and ask `slime-swe plan` "
            "whether that fits",
        )
    else:
        yield ok("gpus", found + (f"; {wanted} of them are used" if len(gpus) > wanted else ""))
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None and (count := sum(name.strip() not in ("", "-1") for name in listed.split(","))) < wanted:
        found = f"CUDA_VISIBLE_DEVICES={listed!r} shows {count} of the {wanted} GPUs that the recipe wants"
        yield failure("gpus", found, "unset CUDA_VISIBLE_DEVICES, or list as many")
    if split := [str(gpu.index) for gpu in gpus if gpu.partitioned]:
        found = f"GPU {', '.join(split)}: divided into instances (MIG), between which NCCL does not talk"
        yield failure("gpus", found, "take other GPUs, or have an administrator turn MIG off")


def _of_kind(gpus: Sequence[Gpu], kind: str) -> Iterator[Finding]:
    """Compare the GPUs with the planned kind: less memory will not do; another chip runs, but as nobody has planned.

    A kind that is not of the form `CHIP-NGB` is left to the recipe's rules.
    """
    named = re.fullmatch(r"(\w+)-(\d+)GB", kind)
    if named is None:
        return
    chip, nominal = named[1], int(named[2]) * 1e9 / (1 << 20)
    least = min(gpus, key=lambda gpu: gpu.memory)
    fix = "set cluster.gpu to what is here and ask `slime-swe plan` whether, and how fast, that runs"
    if least.memory < _TOLERANCE * nominal:
        found = f"{least.name} has {least.memory / 1024:.1f} GiB; cluster.gpu={kind} has {nominal / 1024:.1f}"
        yield failure("gpus", found, fix)
    elif others := sorted({gpu.name for gpu in gpus if not re.search(rf"\b{chip}\b", gpu.name)}):
        yield warning("gpus", f"{' and '.join(others)} here, cluster.gpu={kind} in the recipe", fix)


def _occupied(gpus: Sequence[Gpu], recipe: Recipe) -> Iterator[Finding]:
    busy = [gpu for gpu in gpus if gpu.used > IDLE_MIB]
    if not busy:
        return
    most = max(busy, key=lambda gpu: gpu.used)
    found = f"GPU {', '.join(str(gpu.index) for gpu in busy)}: in use, up to {most.used / 1024:.1f} GiB"
    fix = "wait for, or stop, what runs there (`nvidia-smi` lists the processes)"
    if most.used > (1 - recipe.serving.mem_fraction) * most.memory:
        yield failure("gpus", f"{found}; serving.mem_fraction={recipe.serving.mem_fraction:g} is not free", fix)
    else:
        yield warning("gpus", found, fix)


_DRIVER = (
    "have an administrator install a driver {}, with which the training image's CUDA 12.9 came; an older one of CUDA "
    "12 may run, but not the kernels that are compiled at run time"
)
_NO_MATRIX = "run `nvidia-smi topo -m` yourself: it should draw a matrix, where there are two GPUs or more"


def check_links(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check that NVLink joins the GPUs, and fast network cards the nodes. Tensor-parallel groups exchange activations
    in every layer: without NVLink they crawl, but they run."""
    wanted = recipe.cluster.gpus_per_node
    if not machine.has("nvidia-smi"):
        yield skipped("nvlink", "no nvidia-smi")
        return
    try:
        links, networks = parse_links(machine.ask(*LINKS_COMMAND))
    except MachineError as error:
        yield warning("nvlink", str(error), _NO_MATRIX)
        return
    yield _joined(links, wanted)
    if recipe.cluster.nodes > 1:
        yield _networked(networks)


def parse_links(text: str) -> tuple[dict[tuple[int, int], str], list[str]]:
    """Return the link of each pair of GPUs (`NV18`, `PIX`, `SYS` ...), and the names of the network cards."""
    lines = [line.split() for line in _ESCAPES.sub("", text).splitlines()]
    header = next((cells for cells in lines if cells and cells[0] == "GPU0"), [])
    columns = [word for word in header if re.fullmatch(r"GPU\d+", word)]
    links = {}
    for cells in lines:
        if cells and cells[0] in columns and cells != header and len(cells) > len(columns):
            for column, link in zip(columns, cells[1:], strict=False):
                if column != cells[0]:
                    links[int(cells[0][3:]), int(column[3:])] = link
    return links, [word for word in header if _NETWORK.fullmatch(word)]


def _joined(links: dict[tuple[int, int], str], wanted: int) -> Finding:
    if wanted < 2:
        return skipped("nvlink", "one GPU has nothing to be joined to")
    pairs = {pair: link for pair, link in links.items() if max(pair) < wanted}
    if not pairs:
        return warning("nvlink", "`nvidia-smi topo -m` draws no matrix of links", _NO_MATRIX)
    apart = {pair: link for pair, link in pairs.items() if not link.startswith("NV")}
    if apart:
        (one, other), link = min(apart.items())
        return warning(
            "nvlink",
            f"none between GPU {one} and GPU {other} ({link}), nor for {len(apart) // 2} of {len(pairs) // 2} pairs",
            "keep parallel.tp, parallel.ep and serving.gpus_per_engine within GPUs that NVLink joins, or expect "
            "far longer steps than planned",
        )
    return ok("nvlink", f"{'/'.join(sorted(set(pairs.values())))} between all pairs of GPUs")


def _networked(networks: list[str]) -> Finding:
    if networks:
        return ok("network", f"{len(networks)} fast network cards ({networks[0]} …)")
    return warning(
        "network",
        "no InfiniBand or RoCE card is seen: the machines would exchange gradients over TCP",
        "in a container, pass /dev/infiniband through; else expect far longer steps than planned",
    )
