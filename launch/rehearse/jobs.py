"""The jobs of a rehearsal, by the recipe's own rendering: SLiME's `train.py` and its converters.

`differences` says what a job has that is not the recipe's own, and why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import yaml

from slime_swe.errors import UserError
from slime_swe.launch.model import converted_folder
from slime_swe.launch.ray.network import free_ports
from slime_swe.launch.rehearse.evidence import ROLLOUTS, STEPS
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.manifest import Attributes, split
from slime_swe.launch.slime.paths import SETTINGS
from slime_swe.launch.slime.render import (
    OWN_RECORD,
    as_yaml,
    model_section,
    plugin_settings,
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
    """Return a rehearsal's attributes by heading: those of the recipe on GPUs, and what the platform wants."""
    return platform.sections(recipe, sections(recipe, run, resume=resume))


def digest_of_flags(recipe: Recipe) -> str:
    """Return what tells whether a recipe still asks the same of SLiME: a hash over its own flags, wherever it lies.
    `proof.fingerprint` is of what one machine rehearses of it."""
    flags = json.dumps(sections(recipe, Path("run"), resume=False), sort_keys=True, default=str)
    return sha256(flags.replace(str(Path.cwd()), "").encode()).hexdigest()[:16]


def train_job(recipe: Recipe, platform: Platform, run: Path, checkouts: Checkouts, *, resume: bool = False) -> Job:
    """Make the job of rollouts, training and weight updates, with everything kept that the checks read."""
    kept = {"save_debug_rollout_data": str(run / ROLLOUTS), "save_debug_train_data": str(run / STEPS)}
    return _job(recipe, platform, run, checkouts, asked(recipe, platform, run, resume=resume), kept)


def replay_job(
    recipe: Recipe, platform: Platform, run: Path, checkouts: Checkouts, rollouts: Path, *, resume: bool
) -> Job:
    """Make the job of training alone, on the rollouts that another run has kept."""
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
        | {run / SETTINGS: as_yaml(plugin_settings(recipe, run) | OWN_RECORD | platform.settings)},
        directory=run,
        manifest=SLIME.manifest,
    )


def to_megatron(recipe: Recipe, platform: Platform, folder: Path, checkouts: Checkouts) -> Job:
    """Make the job that converts the toy to Megatron's format, where a run of the recipe reads it."""
    given = {
        **model_section(recipe.model.shape, recipe.parallel.tp),
        **platform.conversion(),
        "hf_checkpoint": recipe.model.checkpoint,
        "save": str(converted_folder(recipe)),
    }
    return _tool(recipe, platform, folder, checkouts, "convert_hf_to_torch_dist.py", SLIME.manifest.to_argv(given))


def to_hugging_face(recipe: Recipe, platform: Platform, source: Path, folder: Path, checkouts: Checkouts) -> Job:
    """Make the job that converts a checkpoint in Megatron's format to a Hugging Face folder."""
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


# Each flag of the rehearsed command line, and each setting of ours, that is not the recipe's own, and why.
MODEL = "a toy of the model, with random weights"
LAYOUT = "fewer ranks than the recipe has GPUs"
AMOUNTS = "few and short episodes"
FOLDERS = "the rehearsal's own folders"
POLICY = "a policy of random weights, which solves nothing and has to change in one step by more than rounding"
FIGURES = "what the checks read"
MACHINE = "the native agent and sandboxes that every machine has"
DRAFTING = ("sglang-speculative-", "sglang-max-running-requests")  # begin flags of what no toy has: a layer that drafts
PROJECT = "no figures of a toy among those of runs"

REASONS: Mapping[str, tuple[str, ...]] = {
    MODEL: (
        *("--num-layers", "--hidden-size", "--ffn-hidden-size", "--num-attention-heads", "--num-query-groups"),
        *("--kv-channels", "--vocab-size", "--make-vocab-size-divisible-by", "--num-experts", "--moe-router-topk"),
        *("--moe-ffn-hidden-size", "--moe-layer-freq", "--moe-shared-expert-intermediate-size", "--q-lora-rank"),
        *("--kv-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim", "--linear-num-value-heads"),
        *("--rotary-percent", "--max-position-embeddings"),
    ),
    LAYOUT: (
        *("--actor-num-nodes", "--actor-num-gpus-per-node", "--num-gpus-per-node", "--tensor-model-parallel-size"),
        *("--pipeline-model-parallel-size", "--context-parallel-size", "--expert-model-parallel-size"),
        *("--sequence-parallel", "--custom-megatron-init-path"),  # the second with context parallelism alone
    ),
    AMOUNTS: (
        *("--num-rollout", "--rollout-batch-size", "--n-samples-per-prompt", "--over-sampling-batch-size"),
        *(
            "--rollout-max-response-len",
            "--rollout-max-context-len",
            "--max-tokens-per-gpu",
            "--persistent-save-interval",
        ),
        *("--eval-config", "--eval-interval", "--eval-function-path", "--n-samples-per-eval-prompt"),
        *("--lr-warmup-iters", "--sglang-server-concurrency", "swe_tasks", "swe_weights", "swe_eval_tasks"),
        *(
            "swe_max_turns",
            "swe_time_budget",
            "swe_wall_time_budget",
            "swe_keep_checkpoints",
            "swe_keep_exports",
            "swe_keep_best",
            "swe_save_every_minutes",
            "swe_overlong_turns",
        ),
        "swe_cached_episodes",
    ),
    FOLDERS: ("--save", "--save-hf", "--load", "--hf-checkpoint", "--ref-load", "--custom-config-path", "swe_run_dir"),
    PROJECT: ("--use-wandb", "--wandb-project", "--wandb-group", "--wandb-random-suffix", "--wandb-dir"),
    POLICY: (
        *("--lr", "--adam-eps", "--dynamic-sampling-filter-path", "--use-opsm", "--opsm-delta"),
        *("swe_overlong_tokens", "swe_overlong_penalty", "swe_reward_weights", "swe_grammar", "swe_tries"),
        *("swe_retire_above", "swe_boost_below", "swe_rate_episodes", "swe_max_over_sampling"),
    ),
    MACHINE: ("swe_sandbox", "swe_sandbox_concurrency", "swe_agent"),
    FIGURES: (
        *("--use-tensorboard", "--tb-project-name", "--save-debug-rollout-data", "--save-debug-train-data"),
        *("--load-debug-rollout-data", "--debug-train-only"),
    ),
}


@dataclass(frozen=True)
class Difference:
    """A flag, or a setting of ours, that differs. own, rehearsed: its values in the two jobs, None where absent."""

    flag: str
    own: str | None
    rehearsed: str | None
    reason: str


def differences(own: Job, rehearsed: Job, more: Mapping[str, str]) -> list[Difference]:
    """List the flags that differ, in the order of the recipe's command line, then of the other.

    more: reasons of the platform's own. Raises `UserError` for a difference without a stated reason.
    """
    ours, theirs = _stated(own), _stated(rehearsed)
    changed = [flag for flag in dict.fromkeys((*ours, *theirs)) if ours.get(flag) != theirs.get(flag)]
    drafting = {flag: MODEL for flag in changed if flag.removeprefix("--").startswith(DRAFTING)}
    reasons = {flag: reason for reason, flags in REASONS.items() for flag in flags} | drafting | dict(more)
    unknown = [flag for flag in changed if flag not in reasons]
    if unknown:
        raise UserError(
            f"the rehearsal's command line differs from the recipe's in {', '.join(unknown)}, and nothing says why: "
            "rehearse what the recipe has, or add the reason to launch/rehearse/jobs.py"
        )
    return [Difference(flag, ours.get(flag), theirs.get(flag), reasons[flag]) for flag in changed]


def _stated(job: Job) -> dict[str, str]:
    flags = {flag: " ".join(values) for flag, values in split([word for group in job.flags.values() for word in group])}
    settings = yaml.safe_load(job.files[job.directory / SETTINGS])
    return flags | {name: str(value) for name, value in settings.items()}
