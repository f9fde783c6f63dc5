"""Recipe -> `Job` for `engine=slime_cpu`: the GPU job's flags, but for what needs a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

from slime_swe.launch.args import Attributes, checkpoint_folder, ours
from slime_swe.launch.config import with_value
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.evaluation import as_yaml
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.paths import CHECKPOINTS, SETTINGS, WEIGHTS
from slime_swe.launch.slime.render import environment, render_flags, script_of, settings_files
from slime_swe.launch.slime.sections import sections
from slime_swe.recipes.base import Recipe

WITHOUT_GPU: Attributes = {
    "transformer_impl": "local",
    "spec": ["slime_swe.launch.slime_cpu.layer_spec", "layer_spec"],
    "distributed_backend": "gloo",
    "attention_backend": "unfused",
    "gradient_accumulation_fusion": False,
    "masked_softmax_fusion": False,
    "bias_swiglu_fusion": False,
    "bias_dropout_fusion": False,
    "apply_rope_fusion": False,
    "no_persist_layer_norm": True,
    "accumulate_allreduce_grads_in_fp32": True,
}
IN_FLOAT32 = {"bf16": False}  # SLiME has a flag for half precision alone, and the embedded server computes in float32


def render(recipe: Recipe, folder: Path, address: str, *, checkouts: Checkouts, resume: bool = False) -> Job:
    """The job of a run in `folder` whose rollouts the server at `address` (`host:port`) samples. Touches no file."""
    recipe = with_value(recipe, "run.tensorboard", True)  # SLiME's figures are read back from these files
    run = folder.resolve()
    return Job(
        program=(sys.executable, "-m", "slime_swe.launch.slime_cpu.main", str(checkouts.slime / script_of(recipe))),
        flags=render_flags(recipe, cpu_sections(recipe, run, address, resume=resume)),
        environment=environment(recipe, run, checkouts) | {"OMP_NUM_THREADS": str(recipe.cluster.threads)},
        files=settings_files(recipe, run) | {run / SETTINGS: as_yaml(ours(recipe, run) | IN_FLOAT32)},
        directory=run,
    )


def cpu_sections(recipe: Recipe, run: Path, address: str, *, resume: bool) -> dict[str, Attributes]:
    """Heading -> attributes: those of a GPU run, the parts that differ replaced."""
    checkpoint = str(checkpoint_folder(recipe.model.checkpoint, recipe.model.folder))
    resumed, found = resume and (run / CHECKPOINTS).is_dir(), sections(recipe, run, resume=resume)
    load = str(run / CHECKPOINTS) if resumed else checkpoint
    return found | {
        "cluster": {"actor_num_nodes": 1, "actor_num_gpus_per_node": 1},
        "checkpoints": {**found["checkpoints"], "load": load, "ref_load": checkpoint},
        "serving": {name: value for name, value in found["serving"].items() if name in SERVING},
        "precision": WITHOUT_GPU,
        "weights": {
            "rollout_external_engine_addrs": [address],
            "update_weight_transport": "disk",
            "update_weight_disk_dir": str(run / WEIGHTS),
        },
    }


SERVING = ("sglang_server_concurrency", "sglang_enable_deterministic_inference")
