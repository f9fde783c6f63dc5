"""A recipe -> the `args` namespace that the plug-ins and the engines read, with SLiME's own names.

What SLiME has no name for is prefixed `swe_`; under SLiME those arrive by `--custom-config-path`.
"""

from __future__ import annotations

from argparse import Namespace
from importlib.resources import files
from pathlib import Path
from typing import Any

from recipes.base import Recipe, RecipeError

EMBEDDED_SEED = "embedded:seed"


def to_args(recipe: Recipe, run_dir: Path, *, resume: bool = False) -> Namespace:
    """Every attribute that the plug-ins and the embedded engine read. Paths are absolute."""
    run_dir = run_dir.resolve()
    return Namespace(
        hf_checkpoint=str(checkpoint_folder(recipe.model.checkpoint)),
        save=str(run_dir / "checkpoints"),
        load=str(run_dir / "checkpoints") if resume else None,
        num_rollout=recipe.run.num_rollouts,
        seed=recipe.run.seed,
        eval_interval=recipe.run.eval_interval or None,
        max_tokens_per_gpu=recipe.parallel.max_tokens_per_gpu,
        **_hooks(recipe),
        **_rollout(recipe),
        **_serving(recipe),
        **_loss(recipe),
        **_optimizer(recipe),
        **_swe(recipe, run_dir),
    )


def checkpoint_folder(spec: str) -> Path:
    """The folder of `model.checkpoint`. Raises `RecipeError` where it holds no Hugging Face model."""
    folder = Path(str(files("embedded"))) / "seed" / "checkpoint" if spec == EMBEDDED_SEED else Path(spec).expanduser()
    if not (folder / "config.json").is_file():
        raise RecipeError(
            f"model.checkpoint={spec!r} is not a model in Hugging Face format ({folder} holds no config.json): "
            f"give a folder that does, or {EMBEDDED_SEED}"
        )
    return folder.resolve()


def _hooks(recipe: Recipe) -> dict[str, Any]:
    return {
        "custom_generate_function_path": recipe.rollout.generate,
        "custom_rm_path": recipe.reward.function,
        "custom_reward_post_process_path": recipe.algorithm.post_process,
        "dynamic_sampling_filter_path": recipe.algorithm.group_filter or None,
        "data_source_path": recipe.data.source,
        "custom_rollout_log_function_path": recipe.rollout.log,
        "custom_eval_rollout_log_function_path": recipe.rollout.log_evaluation,
    }


def _rollout(recipe: Recipe) -> dict[str, Any]:
    rollout = recipe.rollout
    return {
        "rollout_batch_size": rollout.batch_size,
        "n_samples_per_prompt": rollout.samples_per_task,
        "over_sampling_batch_size": rollout.over_sampling or rollout.batch_size,
        "n_samples_per_eval_prompt": recipe.data.eval_samples_per_task,
        "rollout_max_response_len": rollout.max_response,
        "rollout_max_context_len": rollout.max_context,
        "rollout_temperature": rollout.temperature,
        "rollout_top_p": rollout.top_p,
        "rollout_top_k": rollout.top_k,
        "rollout_stop": None,
        "rollout_stop_token_ids": None,
        "rollout_skip_special_tokens": False,
        "rollout_seed": recipe.run.seed,
        "rollout_shuffle": recipe.data.shuffle,
        "reward_key": None,
        "group_rm": False,
        "partial_rollout": False,
        "use_rollout_routing_replay": False,
    }


def _serving(recipe: Recipe) -> dict[str, Any]:
    return {
        "sglang_router_ip": recipe.serving.router_ip or None,
        "sglang_router_port": recipe.serving.router_port or None,
        "sglang_server_concurrency": recipe.serving.concurrency,
        "sglang_enable_deterministic_inference": recipe.serving.deterministic,
    }


def _loss(recipe: Recipe) -> dict[str, Any]:
    algorithm = recipe.algorithm
    return {
        "advantage_estimator": algorithm.estimator,
        "eps_clip": algorithm.clip_low,
        "eps_clip_high": algorithm.clip_high,
        "use_kl_loss": algorithm.kl_coef > 0,
        "kl_loss_coef": algorithm.kl_coef,
        "kl_loss_type": algorithm.kl_type,
        "entropy_coef": algorithm.entropy_coef,
        "use_tis": algorithm.tis,
        "tis_clip": algorithm.tis_clip,
        "rewards_normalization": algorithm.normalize_rewards,
        "grpo_std_normalization": algorithm.std_normalization,
        "num_steps_per_rollout": algorithm.steps_per_rollout,
    }


def _optimizer(recipe: Recipe) -> dict[str, Any]:
    optimizer = recipe.optimizer
    return {
        "optimizer": "adam" if optimizer.name == "adamw" else optimizer.name,
        "lr": optimizer.lr,
        "lr_decay_style": optimizer.schedule,
        "lr_warmup_iters": optimizer.warmup_steps,
        "adam_beta1": optimizer.beta1,
        "adam_beta2": optimizer.beta2,
        "adam_eps": optimizer.eps,
        "weight_decay": optimizer.weight_decay,
        "clip_grad": optimizer.clip_grad,
    }


def _swe(recipe: Recipe, run_dir: Path) -> dict[str, Any]:
    rollout = recipe.rollout
    return {
        "swe_tasks": list(recipe.data.train),
        "swe_eval_tasks": dict(recipe.data.eval),
        "swe_agent": rollout.agent,
        "swe_tool_format": recipe.model.tool_format,
        "swe_system_prompt": rollout.system_prompt,
        "swe_max_turns": rollout.max_turns,
        "swe_time_budget": rollout.time_budget,
        "swe_sandbox": rollout.sandbox,
        "swe_sandbox_concurrency": rollout.sandbox_concurrency,
        "swe_reward_mode": recipe.reward.mode,
        "swe_max_attempts": rollout.max_attempts,
        "swe_run_dir": str(run_dir),
        "swe_threads": recipe.cluster.threads,
    }
