"""Run SLiME's own `train.py` or `train_async.py` on the first of two nodes, as `launch.slime_cpu.main` does on the only
one.

    python -m slime_swe.launch.rehearse.faults.first_node FOLDER SCRIPT ARGUMENT ...

FOLDER is where a node of a SLURM job looks for its head (`launch.ray.slurm`). The second node has one of the GPUs.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

import orjson
import ray

from slime_swe.attempts import attempting
from slime_swe.files import replace_file
from slime_swe.launch.ray.dashboard import TOKEN
from slime_swe.launch.ray.node import Head
from slime_swe.launch.ray.slurm import HEAD_FILE
from slime_swe.launch.slime.loop import run
from slime_swe.launch.slime.paths import DRIVERS
from slime_swe.launch.slime_cpu.main import processes, ray_node


def main(folder: Path, script: str, arguments: list[str]) -> None:
    with attempting(Path.cwd() / DRIVERS), ray_node(processes(arguments) - 1):
        head = Head(ray.get_runtime_context().gcs_address, "", os.environ[TOKEN])
        replace_file(folder / HEAD_FILE, orjson.dumps(asdict(head)))
        run(script, arguments)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
