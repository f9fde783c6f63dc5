"""The environment variables that the command and its Ray workers need, and why."""

from __future__ import annotations

import os
import site
from pathlib import Path

import slime_swe
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.paths import RunPaths
from slime_swe.recipes.base import Recipe


def environment(recipe: Recipe, paths: RunPaths, checkouts: Checkouts) -> dict[str, str]:
    """Variable -> value.

    CUDA_DEVICE_MAX_CONNECTIONS: Megatron asserts 1 with tensor or context parallelism before Blackwell, so that
        communication starts before the computation it overlaps.
    NCCL_NVLS_ENABLE: reductions in the NVLink switches, which Hopper has.
    PYTHONPATH: SLiME, Megatron-LM (whose `megatron.training` is in no wheel), this package where it is not installed;
        then the user's own PYTHONPATH and current folder, where their plug-ins are.
    PYTHONUNBUFFERED: the job's log is read as it grows.
    TENSORBOARD_DIR: SLiME knows no flag for it.
    """
    found = [str(checkouts.slime), str(checkouts.megatron), *_own_folder(), *_user_folders()]
    given = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_NVLS_ENABLE": "1" if recipe.cluster.gpu.startswith(("H100", "H200")) else "0",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(found)),
        "PYTHONUNBUFFERED": "1",
    }
    return given | ({"TENSORBOARD_DIR": str(paths.tensorboard)} if recipe.run.tensorboard else {})


def _user_folders() -> list[str]:
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [*(str(Path(folder).absolute()) for folder in given if folder), str(Path.cwd())]


def _own_folder() -> list[str]:
    """The checkout that this code is in; nothing where it is installed, since that folder must not come first."""
    folder = str(Path(slime_swe.__file__).parents[1].resolve())
    installed = [str(Path(path).resolve()) for path in (*site.getsitepackages(), site.getusersitepackages())]
    return [] if folder in installed else [folder]
