"""A CPU in place of GPUs: `engine=slime_cpu`'s environment, gloo, float32, SGLang without its kernels."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slime_swe.launch.engines.slime_cpu import PACKAGES
from slime_swe.launch.extras import require
from slime_swe.launch.rehearse.platforms import FLOAT32, Platform
from slime_swe.launch.slime.checkouts import Checkouts, require_checkouts
from slime_swe.launch.slime.manifest import Attributes
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu import sglang_cpu
from slime_swe.launch.slime_cpu.render import IN_FLOAT32, WITHOUT_GPU, cpu_environment
from slime_swe.recipes.base import Recipe, Slime

RANKS = 8  # of the trainer, at most: each is a process of 0.7 GB
ON_GPUS_ALONE = ("router-policy", "sglang-")  # how names of `slime.flags` begin that a CPU has no use for
WITHOUT_KERNELS = "SGLang serves this family on a CPU only with sgl-kernel, which is in no package index for it"

KERNELS = "no GPU: gloo, float32, PyTorch's own kernels"
SERVER = "SGLang on a CPU, without sgl-kernel"
SERVERS = "one SGLang server beside the trainer, as no memory handle of CUDA is there"
IMAGE = "only SLiME's image has it"
ROUTER = "a router that passes on the experts, which PyPI's drops and that of SLiME's image does not"
REASONS: Mapping[str, tuple[str, ...]] = {
    SERVERS: (
        *("--colocate", "--rollout-num-gpus", "--rollout-num-gpus-per-engine", "--sglang-ep"),
        *("--sglang-enable-dp-attention", "--sglang-data-parallel-size", "--sglang-mem-fraction-static"),
        *("--sglang-enable-dp-lm-head", "--sglang-moe-dense-tp-size"),
        *("--optimizer-cpu-offload", "--overlap-cpu-optimizer-d2h-h2d", "--use-precision-aware-optimizer"),
    ),
    IMAGE: ("--router-policy",),
    ROUTER: ("--sglang-router-ip", "--sglang-router-port"),
}


class CpuPlatform(Platform):
    """A CPU with at most `RANKS` ranks of the trainer, and one server that has a GPU of its own in name."""

    name = "cpu"
    limits = FLOAT32
    learning_rate = 2e-4
    copies = 2
    settings = IN_FLOAT32

    @classmethod
    def here(cls) -> CpuPlatform:
        require_checkouts(os.environ, "slime-swe rehearse")
        require(*PACKAGES, extra="rehearse")
        from slime_swe.launch.slime_cpu.shims import declare_torchvision_operators  # torch takes seconds to import

        declare_torchvision_operators()  # Transformers imports torchvision
        return cls()

    def ranks(self, recipe: Recipe) -> int:
        return RANKS

    def placed(self, recipe: Recipe, ranks: int) -> Recipe:
        flags = {name: value for name, value in recipe.slime.flags.items() if not _on_gpus_alone(name, value)}
        return replace(
            recipe,
            cluster=replace(recipe.cluster, gpus_per_node=ranks, colocate=False, rollout_gpus=1),
            serving=replace(recipe.serving, gpus_per_engine=1, ep=1, dp_attention=False),
            optimizer=replace(recipe.optimizer, cpu_offload=False),
            slime=Slime(flags),
        )

    def toy_values(self, toy: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        return {"dtype": "float32"}  # Transformers' modules in SLiME's models have parameters of this type

    def unserved(self, recipe: Recipe) -> str:
        return "" if recipe.model.kind.served_on_cpu else WITHOUT_KERNELS

    def routed(self, recipe: Recipe) -> bool:
        """Say whether the server's experts are asked for: PyPI's router drops them, that of SLiME's image does not."""
        return recipe.algorithm.routing_replay == "rollout"

    def sections(self, recipe: Recipe, found: Mapping[str, Attributes]) -> dict[str, Attributes]:
        return {
            **found,
            "serving": {**found["serving"], **sglang_cpu.serving(recipe)},
            "precision": {**found["precision"], **WITHOUT_GPU},
        }

    def conversion(self) -> Attributes:
        return {name: value for name, value in WITHOUT_GPU.items() if name != "distributed_backend"}

    def program(self, script: Path) -> tuple[str, ...]:
        return (sys.executable, "-m", "slime_swe.launch.slime_cpu.main", str(script))

    def tool(self, script: Path) -> tuple[str, ...]:
        return (sys.executable, "-m", "slime_swe.launch.rehearse.tool", str(script))

    def environment(self, recipe: Recipe, run: Path, checkouts: Checkouts) -> dict[str, str]:
        return cpu_environment(recipe, run, None, checkouts)

    def stand_ins(self, recipe: Recipe) -> Mapping[str, str]:
        kernels, server = (SLIME.manifest.to_argv(group) for group in (WITHOUT_GPU, sglang_cpu.serving(recipe)))
        found = {flag: reason for reason, flags in REASONS.items() for flag in flags}
        found |= {word: SERVER for word in server if word.startswith("--")}
        found |= {word: KERNELS for word in kernels if word.startswith("--")}
        return found | dict.fromkeys(IN_FLOAT32, KERNELS)


def _on_gpus_alone(name: str, value: Any) -> bool:
    of_the_image = value in SLIME.of_the_image.get(f"--{name}", ())
    return of_the_image or name.startswith(ON_GPUS_ALONE)
