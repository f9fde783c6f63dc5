"""Recipe -> `Job` for `engine=slime_cpu`: the GPU job's flags, but for what needs a GPU."""

from __future__ import annotations

import os
import sys
from math import lcm
from pathlib import Path

from slime_swe.launch.config import with_value
from slime_swe.launch.model import checkpoint_folder
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.manifest import Attributes
from slime_swe.launch.slime.paths import CHECKPOINTS, SETTINGS, WEIGHTS
from slime_swe.launch.slime.render import (
    as_yaml,
    environment,
    plugin_settings,
    render_flags,
    script_of,
    sections,
    settings_files,
    unserved,
)
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu import sglang_cpu
from slime_swe.recipes.base import Recipe

PACKAGES = Path(__file__).parent / "packages"
WITHOUT_GPU: Attributes = {
    "distributed_backend": "gloo",
    "gradient_accumulation_fusion": False,  # a CUDA extension of Megatron's
}
IN_FLOAT32 = {"bf16": False}  # SLiME has a flag for half precision alone, and the embedded server computes in float32


def render(recipe: Recipe, folder: Path, address: str | None, *, checkouts: Checkouts, resume: bool = False) -> Job:
    """Make the job of a run in `folder` whose rollouts the server at `address` (`host:port`) samples, or real SGLang,
    which SLiME starts, where that is None. Touches no file."""
    trackers = list(dict.fromkeys([*recipe.run.trackers, "tensorboard"]))  # SLiME's figures are read back from there
    recipe = with_value(recipe, "run.trackers", trackers)
    run = folder.resolve()
    return Job(
        program=(sys.executable, "-m", "slime_swe.launch.slime_cpu.main", str(checkouts.loop / script_of(recipe))),
        flags=render_flags(recipe, cpu_sections(recipe, run, address, resume=resume), SLIME),
        environment=cpu_environment(recipe, run, address, checkouts),
        files=settings_files(recipe, run)
        | {run / SETTINGS: as_yaml(plugin_settings(recipe, run) | IN_FLOAT32 | unserved(recipe))},
        directory=run,
        manifest=SLIME.manifest,
    )


def cpu_environment(recipe: Recipe, run: Path, address: str | None, checkouts: Checkouts) -> dict[str, str]:
    """Return the job's variables. PYTHONPATH begins with stand-ins for GPU packages, which no other process sees."""
    found = environment(recipe, run, checkouts)
    path = os.pathsep.join((str(PACKAGES), found["PYTHONPATH"]))
    found |= {"OMP_NUM_THREADS": str(recipe.cluster.threads), "PYTHONPATH": path}
    return found if address else found | sglang_cpu.environment(path, sglang_cpu.processes(recipe))


def ranks(recipe: Recipe) -> int:
    """Count the processes that hold one copy of the model, and of its experts."""
    ways = recipe.parallel
    groups = [ways.tp * ways.cp, ways.etp * ways.ep if recipe.model.shape.experts else 1]
    return ways.pp * lcm(*groups)


def cpu_sections(recipe: Recipe, run: Path, address: str | None, *, resume: bool) -> dict[str, Attributes]:
    """Return, by heading, the attributes of a GPU run, the parts that differ replaced."""
    checkpoint = str(checkpoint_folder(recipe.model.checkpoint, recipe.model.folder))
    resumed, found = resume and (run / CHECKPOINTS).is_dir(), sections(recipe, run, resume=resume)
    load = str(run / CHECKPOINTS) if resumed else checkpoint
    common = {
        "cluster": {"actor_num_nodes": 1, "actor_num_gpus_per_node": ranks(recipe)},
        "checkpoints": {**found["checkpoints"], "load": load, "ref_load": checkpoint},
        "precision": {**found["precision"], **WITHOUT_GPU},
    }
    if recipe.supervised:
        return found | common
    return (
        found
        | common
        | {
            "serving": {name: value for name, value in found["serving"].items() if name in SERVING}
            | ({} if address else sglang_cpu.serving(recipe)),
            "weights": _by_disk(address, run) if address else {},
        }
    )


def _by_disk(address: str, run: Path) -> Attributes:
    return {
        "rollout_external_engine_addrs": [address],
        "update_weight_transport": "disk",
        "update_weight_disk_dir": str(run / WEIGHTS),
    }


SERVING = (
    *("sglang_router_ip", "sglang_router_port"),
    *("sglang_server_concurrency", "sglang_enable_deterministic_inference"),
)
