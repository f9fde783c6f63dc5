"""Machines that are not there: an `nvidia-smi` on PATH that prints what the real one prints on them.

The formats are those of driver 550 to 575 on DGX and HGX machines, as its users post them.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from slime_swe.launch.doctor.gpus import QUERY

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def rows(count: int, name: str, memory: int, *, driver: str = "575.57.08", used: int = 4, mig: str = "Disabled") -> str:
    """The answer to the query: one line a GPU."""
    return "".join(f"{index}, {uuid(index)}, {name}, {driver}, {memory}, {used}, {mig}\n" for index in range(count))


def uuid(index: int) -> str:
    return f"GPU-{index:08x}-65a4-a2b8-2d4e-1a1b2c3d4e5f"


def matrix(count: int, link: str, *, apart: tuple[int, int] | None = None, cards: int = 0) -> str:
    """The answer to `topo -m`, its header underlined; the link of one pair may be `SYS`."""
    nics = [f"NIC{index}" for index in range(cards)]
    header = [f"GPU{index}" for index in range(count)] + nics + ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    lines = ["\t" + "\t".join(f"\x1b[4m{word}" for word in header) + "\x1b[0m"]
    for one in range(count):
        links = [
            " X " if one == other else "SYS" if {one, other} == set(apart or ()) else link for other in range(count)
        ]
        lines.append("\t".join([f"GPU{one}", *links, *("PIX" for _ in nics), "0-47,96-143", "0", "N/A"]))
    lines += ["\t".join([nic, *("PIX" for _ in range(count + cards))]) for nic in nics]
    return "\n".join(lines) + "\n" + LEGEND


H100 = rows(8, "NVIDIA H100 80GB HBM3", 81559)
A100 = rows(8, "NVIDIA A100-SXM4-80GB", 81920, mig="Disabled")
A100_SMALL = rows(8, "NVIDIA A100-SXM4-40GB", 40960)
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 575.57\n"


def install(folder: Path, query: str, topology: str = "", *, code: int = 0) -> None:
    """Put an `nvidia-smi` into a folder that answers the two questions that the doctor asks, and no others."""
    script(
        folder,
        "nvidia-smi",
        f"""case "$*" in
  "topo -m") printf %s {shlex.quote(topology)}; exit {code} ;;
  "--query-gpu={QUERY} --format=csv,noheader,nounits") printf %s {shlex.quote(query)}; exit {code} ;;
  *) echo "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."; exit 2 ;;
esac
""",
    )


def script(folder: Path, name: str, body: str) -> None:
    """An executable shell script."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)


def before_others(folder: Path) -> str:
    """PATH with this folder at its front."""
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
