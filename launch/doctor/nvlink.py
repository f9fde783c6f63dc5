"""How the GPUs of this machine are joined, as `nvidia-smi topo -m` draws it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from launch.doctor.finding import Finding, ok, skipped, warning
from launch.doctor.machine import Machine, MachineError
from recipes.base import Recipe

COMMAND = ("nvidia-smi", "topo", "-m")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # the header is underlined, on a terminal or not
_NETWORK = re.compile(r"NIC\d+|mlx\d+_\d+")


def check_links(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Tensor-parallel groups exchange activations in every layer: without NVLink they crawl, but they run."""
    wanted = recipe.cluster.gpus_per_node
    if not machine.has("nvidia-smi"):
        yield skipped("nvlink", "no nvidia-smi")
        return
    try:
        links, networks = parse(machine.ask(*COMMAND))
    except MachineError as error:
        yield warning("nvlink", str(error), "run `nvidia-smi topo -m` yourself: it should draw a matrix of links")
        return
    yield _joined(links, wanted)
    if recipe.cluster.nodes > 1:
        yield _networked(networks)


def parse(text: str) -> tuple[dict[tuple[int, int], str], list[str]]:
    """Pair of GPUs -> their link (`NV18`, `PIX`, `SYS` ...), and the names of the network cards."""
    lines = [line.split() for line in _ESCAPES.sub("", text).splitlines()]
    header = next((words for words in lines if words and words[0] == "GPU0"), [])
    columns = [word for word in header if re.fullmatch(r"GPU\d+", word)]
    links = {}
    for words in lines:
        if words and words[0] in columns and words != header and len(words) > len(columns):
            for column, link in zip(columns, words[1:], strict=False):
                if column != words[0]:
                    links[int(words[0][3:]), int(column[3:])] = link
    return links, [word for word in header if _NETWORK.fullmatch(word)]


def _joined(links: dict[tuple[int, int], str], wanted: int) -> Finding:
    pairs = {pair: link for pair, link in links.items() if max(pair) < wanted}
    if wanted < 2:
        return skipped("nvlink", "one GPU has nothing to be joined to")
    if not pairs:
        return warning(
            "nvlink",
            "`nvidia-smi topo -m` draws no matrix of links",
            "run it yourself: it should, where there are two GPUs or more",
        )
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
