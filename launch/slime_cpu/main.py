"""Run SLiME's own `train.py` or `train_async.py` with the shims in place.

    python -m slime_swe.launch.slime_cpu.main SCRIPT ARGUMENT ...

Ray counts the trainer's processes as GPUs, so it gets as many as the arguments ask for. SLiME gives each of its
actors a whole CPU, and most of them only wait, so Ray is given more CPUs than there may be.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from slime_swe.attempts import HeldError, attempting
from slime_swe.launch.slime.loop import run
from slime_swe.launch.slime.paths import DRIVERS
from slime_swe.launch.slime_cpu.fork_server import fork_server
from slime_swe.launch.slime_cpu.shims import install

CPUS = 16
# What workers import, but for SGLang's server, and of these what imports no Ray.
OF_WORKERS = ("slime.ray.rollout", "slime.backends.megatron_utils.actor")
WITHOUT_RAY = ("megatron.training.checkpointing", "sglang.srt.layers.quantization.fp8_utils")


def main(script: str, arguments: list[str]) -> None:
    with attempting(Path.cwd() / DRIVERS):  # it is started in the run's folder, and may outlive its launcher
        train(script, processes(arguments), arguments)


def processes(arguments: list[str]) -> int:
    """Count the processes that the arguments ask for: of the trainer, and of servers."""
    return sum(_number(arguments, name) for name in ("--actor-num-gpus-per-node", "--rollout-num-gpus"))


def _number(arguments: list[str], flag: str) -> int:
    """Return a flag's number; 1 without the flag: the server that runs already, which SLiME counts in as well."""
    return int(arguments[arguments.index(flag) + 1]) if flag in arguments else 1


def train(script: str, gpus: int, arguments: list[str]) -> None:
    with ray_node(gpus):
        run(script, arguments)


@contextmanager
def ray_node(gpus: int) -> Iterator[None]:
    """Start a Ray of this node alone, with the shims in place in this process and in its workers."""
    with fork_server(WITHOUT_RAY, OF_WORKERS) as executable:
        install()
        ray.init(
            address="local",  # one of its own, where the machine runs another
            num_gpus=gpus,
            num_cpus=CPUS,
            include_dashboard=False,
            # SLiME's actors have processes of their own; the fork server has to import what they need first
            _system_config={"prestart_worker_first_driver": False, "worker_register_timeout_seconds": 600},
            runtime_env={
                "py_executable": executable,
                "worker_process_setup_hook": "slime_swe.launch.slime_cpu.fork_server.set_up",
            },
        )
        yield


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2:])
    except HeldError as error:
        sys.exit(f"slime-swe: {error}")
