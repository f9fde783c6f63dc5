"""Run SLiME's own `train.py` or `train_async.py` on a Ray of this node alone, which ends with it.

    python -m slime_swe.launch.rehearse.platforms.local_ray SCRIPT ARGUMENT ...

Where this process is itself a job of a Ray cluster, as under SLURM, that cluster's variables would make it join there.
"""

from __future__ import annotations

import os
import sys

import ray

from slime_swe.launch.slime.loop import run

OF_A_CLUSTER = ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_JOB_ID")


def main(script: str, arguments: list[str]) -> None:
    for variable in OF_A_CLUSTER:
        os.environ.pop(variable, None)
    ray.init(address="local", include_dashboard=False)
    run(script, arguments)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
