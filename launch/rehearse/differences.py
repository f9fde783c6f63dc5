"""Each flag of the rehearsed command line, and each setting of ours, that is not the recipe's own, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import yaml

from slime_swe.errors import UserError
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.manifest import split
from slime_swe.launch.slime.paths import SETTINGS

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
    """flag: or a setting of ours. own, rehearsed: its values in the two jobs; None where it is not there."""

    flag: str
    own: str | None
    rehearsed: str | None
    reason: str


def differences(own: Job, rehearsed: Job, more: Mapping[str, str]) -> list[Difference]:
    """In the order of the recipe's command line, then of the other. more: reasons of the platform's own.

    Raises `UserError` for a difference without a stated reason.
    """
    ours, theirs = _stated(own), _stated(rehearsed)
    changed = [flag for flag in dict.fromkeys((*ours, *theirs)) if ours.get(flag) != theirs.get(flag)]
    drafting = {flag: MODEL for flag in changed if flag.removeprefix("--").startswith(DRAFTING)}
    reasons = {flag: reason for reason, flags in REASONS.items() for flag in flags} | drafting | dict(more)
    unknown = [flag for flag in changed if flag not in reasons]
    if unknown:
        raise UserError(
            f"the rehearsal's command line differs from the recipe's in {', '.join(unknown)}, and nothing says why: "
            "rehearse what the recipe has, or add the reason to launch/rehearse/differences.py"
        )
    return [Difference(flag, ours.get(flag), theirs.get(flag), reasons[flag]) for flag in changed]


def _stated(job: Job) -> dict[str, str]:
    flags = {flag: " ".join(values) for flag, values in split(_words(job.flags.values()))}
    settings = yaml.safe_load(job.files[job.directory / SETTINGS])
    return flags | {name: str(value) for name, value in settings.items()}


def _words(groups: Iterable[tuple[str, ...]]) -> list[str]:
    return [word for group in groups for word in group]
