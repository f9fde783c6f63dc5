"""Run SLiME's own `train.py` or `train_async.py` with the shims in place.

    python -m slime_swe.launch.slime_cpu.main SCRIPT ARGUMENT ...

Ray counts the trainer's processes as GPUs, so it gets as many as the arguments ask for. SLiME gives each of its
actors a whole CPU, and most of them only wait, so Ray is given more CPUs than there may be.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import ray

from slime_swe.attempts import HeldError, attempting
from slime_swe.launch.slime.paths import DRIVERS
from slime_swe.launch.slime_cpu.shims import install

CPUS = 16


def main(script: str, arguments: list[str]) -> None:
    processes = int(arguments[arguments.index("--actor-num-gpus-per-node") + 1])
    with attempting(Path.cwd() / DRIVERS):  # it is started in the run's folder, and may outlive its launcher
        train(script, processes, arguments)


def train(script: str, processes: int, arguments: list[str]) -> None:
    install()
    ray.init(
        address="local",  # one of its own, where the machine runs another
        num_gpus=processes + 1,  # the server, which SLiME counts in as well
        num_cpus=CPUS,
        include_dashboard=False,
        runtime_env={"worker_process_setup_hook": "slime_swe.launch.slime_cpu.shims.install"},
    )
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except HeldError as error:
        sys.exit(f"slime-swe: {error}")
