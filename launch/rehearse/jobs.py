"""The commands of a rehearsal: SLiME's `train.py` with the recipe's own rendering, and SLiME's converters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slime_swe.launch.model import converted_folder
from slime_swe.launch.ray.node import free_ports
from slime_swe.launch.rehearse.evidence import ROLLOUTS, STEPS
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.manifest import Attributes
from slime_swe.launch.slime.paths import SETTINGS
from slime_swe.launch.slime.render import (
    OWN_RECORD,
    as_yaml,
    model_section,
    ours,
    render_flags,
    script_of,
    sections,
    settings_files,
)
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.base import Recipe

WHOLE_LOGS = {"RAY_DEDUP_LOGS": "0"}  # else Ray leaves out lines that differ in numbers alone, as those of ranks do
HOST = "127.0.0.1"
ONE_PROCESS = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}  # SLURM's count of tasks stands for these otherwise


def asked(recipe: Recipe, platform: Platform, run: Path, *, resume: bool = False) -> dict[str, Attributes]:
    """Heading -> attributes of a rehearsal's run: those of the recipe on GPUs, and what the platform wants."""
    return platform.sections(recipe, sections(recipe, run, resume=resume))


def train_job(recipe: Recipe, platform: Platform, run: Path, checkouts: Checkouts, *, resume: bool = False) -> Job:
    """Rollouts, training and weight updates, with everything kept that the checks read."""
    kept = {"save_debug_rollout_data": str(run / ROLLOUTS), "save_debug_train_data": str(run / STEPS)}
    return _job(recipe, platform, run, checkouts, asked(recipe, platform, run, resume=resume), kept)


def replay_job(
    recipe: Recipe, platform: Platform, run: Path, checkouts: Checkouts, rollouts: Path, *, resume: bool
) -> Job:
    """Training alone, on the rollouts that another run has kept."""
    kept = {
        "load_debug_rollout_data": str(rollouts / ROLLOUTS),
        "debug_train_only": True,
        "save_debug_train_data": str(run / STEPS),
    }
    return _job(recipe, platform, run, checkouts, asked(recipe, platform, run, resume=resume), kept)


def _job(
    recipe: Recipe,
    platform: Platform,
    run: Path,
    checkouts: Checkouts,
    attributes: Mapping[str, Attributes],
    kept: Attributes,
) -> Job:
    return Job(
        program=platform.program(checkouts.loop / script_of(recipe)),
        flags=render_flags(recipe, {**attributes, "rehearsal": kept}, SLIME),
        environment=platform.environment(recipe, run, checkouts) | WHOLE_LOGS,
        files=settings_files(recipe, run)
        | {run / SETTINGS: as_yaml(ours(recipe, run) | OWN_RECORD | platform.settings)},
        directory=run,
        manifest=SLIME.manifest,
    )


def to_megatron(recipe: Recipe, platform: Platform, folder: Path, checkouts: Checkouts) -> Job:
    """The toy in Megatron's format, where a run of the recipe reads it."""
    given = {
        **model_section(recipe.model.shape, recipe.parallel.tp),
        **platform.conversion(),
        "hf_checkpoint": recipe.model.checkpoint,
        "save": str(converted_folder(recipe)),
    }
    return _tool(recipe, platform, folder, checkouts, "convert_hf_to_torch_dist.py", SLIME.manifest.to_argv(given))


def to_hugging_face(recipe: Recipe, platform: Platform, source: Path, folder: Path, checkouts: Checkouts) -> Job:
    """A checkpoint in Megatron's format, as a Hugging Face folder."""
    words = ("--input-dir", str(source), "--output-dir", str(folder), "--origin-hf-dir", recipe.model.checkpoint)
    size = ("--vocab-size", str(recipe.model.shape.vocab))
    script = "convert_torch_dist_to_hf.py"
    return _tool(recipe, platform, folder.parent, checkouts, script, (*words, *size, "--force"))


def _tool(
    recipe: Recipe, platform: Platform, folder: Path, checkouts: Checkouts, script: str, words: tuple[str, ...]
) -> Job:
    (port,) = free_ports(1, HOST)  # SLiME's own is always the same, so that two would be in each other's way
    return Job(
        program=platform.tool(checkouts.loop / "tools" / script),
        flags={"conversion": words},
        environment=platform.environment(recipe, folder, checkouts) | ONE_PROCESS | {"MASTER_PORT": str(port)},
        files={},
        directory=folder,
        manifest=SLIME.manifest,
    )
