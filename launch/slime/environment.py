"""The environment variables that the command and its Ray workers need, and why; where SLiME and Megatron are."""

from __future__ import annotations

import os
import site
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import launch
from launch.slime.places import Places
from recipes.base import Recipe, RecipeError

IMAGE_SLIME = "/root/slime"
IMAGE_MEGATRON = "/root/Megatron-LM"


@dataclass(frozen=True)
class Homes:
    """Checkouts of SLiME and Megatron-LM, at the same path on every node."""

    slime: Path
    megatron: Path

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Homes:
        """Where `SLIME_HOME` and `MEGATRON_HOME` say, else where SLiME's image has them."""
        slime = environment.get("SLIME_HOME") or IMAGE_SLIME
        megatron = environment.get("MEGATRON_HOME") or IMAGE_MEGATRON
        return cls(Path(slime).absolute(), Path(megatron).absolute())

    def require(self) -> None:
        """Raise `RecipeError` where one of them is not there."""
        wanted = {"SLIME_HOME": self.slime / "train.py", "MEGATRON_HOME": self.megatron / "megatron" / "training"}
        for variable, path in wanted.items():
            if not path.exists():
                raise RecipeError(
                    f"{path} is missing: engine=slime runs SLiME's own train.py. Run it in the training image "
                    f"(docker/Dockerfile), or let {variable} name a checkout"
                )


def environment(recipe: Recipe, places: Places, homes: Homes) -> dict[str, str]:
    """Variable -> value.

    CUDA_DEVICE_MAX_CONNECTIONS: Megatron asserts 1 with tensor or context parallelism before Blackwell, so that
        communication starts before the computation it overlaps.
    NCCL_NVLS_ENABLE: reductions in the NVLink switches, which Hopper has.
    PYTHONPATH: SLiME, Megatron-LM (whose `megatron.training` is in no wheel), this package where it is not installed,
        and the folder of the caller, where plug-ins of their own are looked for.
    PYTHONUNBUFFERED: the job's log is read as it grows.
    TENSORBOARD_DIR: SLiME knows no flag for it.
    """
    found = [str(homes.slime), str(homes.megatron), *_own_folder(), str(Path.cwd())]
    given = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_NVLS_ENABLE": "1" if recipe.cluster.gpu.startswith(("H100", "H200")) else "0",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(found)),
        "PYTHONUNBUFFERED": "1",
    }
    return given | ({"TENSORBOARD_DIR": str(places.tensorboard)} if recipe.run.tensorboard else {})


def _own_folder() -> list[str]:
    """The checkout that this code is in; nothing where it is installed, since that folder must not come first."""
    folder = str(Path(launch.__file__).resolve().parents[1])
    installed = [str(Path(path).resolve()) for path in (*site.getsitepackages(), site.getusersitepackages())]
    return [] if folder in installed else [folder]
