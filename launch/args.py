"""A recipe -> attributes of SLiME's `args`, by SLiME's own names: the one mapping for all engines.

What SLiME has no name for is prefixed `swe_`; under SLiME those arrive by `--custom-config-path`. What only a GPU run
has is added in `launch/slime/sections.py`.
"""

from __future__ import annotations

from argparse import Namespace
from importlib.resources import files
from pathlib import Path
from typing import Any

from slime_swe.attempts import ATTEMPTS, last_attempt
from slime_swe.data_sources.registry import absolute
from slime_swe.errors import UserError
from slime_swe.launch.plan.admission import cached_episodes, most_an_engine, sandboxes_at_once
from slime_swe.recipes.base import Model, Recipe
from slime_swe.recipes.checks import lookup
from slime_swe.recipes.rules import at_once, staleness
from slime_swe.rollout.chat.tokenizer import shipped_templates, template_path

EMBEDDED_SEED = "embedded:seed"
CONSTANT_REDUCTION = "slime_swe.launch.slime.slime_plugin.constant_reduction"
KL_IN_REWARD = "slime_swe.launch.slime.slime_plugin.advantages_less_kl"
MISMATCH = {  # algorithm.mismatch -> the function that SLiME takes in place of its own, which truncates
    "icepop": "slime.backends.megatron_utils.loss.icepop_function",
    "mis": "slime_swe.launch.slime.slime_plugin.masked_importance_sampling",
}
SUPERVISED = {"loss_type": "sft_loss", "calculate_per_token_loss": True, "compute_advantages_and_returns": False}
PLUG_INS = {  # SLiME's argument -> the recipe's key; both hold a dotted path
    "custom_generate_function_path": "rollout.generate",
    "custom_rm_path": "reward.function",
    "custom_reward_post_process_path": "algorithm.post_process",
    "dynamic_sampling_filter_path": "algorithm.group_filter",
    "data_source_path": "data.source",
    "custom_rollout_log_function_path": "rollout.log",
    "custom_eval_rollout_log_function_path": "rollout.log_evaluation",
}

Attributes = dict[str, Any]


def to_args(recipe: Recipe, run_dir: Path, *, resume: bool = False) -> Namespace:
    """Every attribute that the plug-ins and the embedded engine read. Paths are absolute."""
    return Namespace(
        hf_checkpoint=str(checkpoint_folder(recipe.model.checkpoint, recipe.model.folder)),
        load=str(run_dir.resolve() / "checkpoints") if resume else None,
        eval_interval=recipe.run.eval_interval or None,
        max_tokens_per_gpu=recipe.parallel.max_tokens_per_gpu,
        swe_trackers=recipe.run.trackers,
        swe_project=recipe.run.project,
        **{name: value for section in shared(recipe, run_dir).values() for name, value in section.items()},
        **ours(recipe, run_dir),
    )


def shared(recipe: Recipe, run_dir: Path) -> dict[str, Attributes]:
    """Heading -> what every engine takes, but for where weights are read from and how often is evaluated.

    SLiME's group advantages leave the KL penalty on rewards out: a function of ours takes it off.
    """
    run, data, rollout, serving = recipe.run, recipe.data, recipe.rollout, recipe.serving
    algorithm, optimizer = recipe.algorithm, recipe.optimizer
    kl_in = algorithm.kl_in if algorithm.kl_coef > 0 else ""
    return {
        "run": {
            "num_rollout": run.num_rollouts,
            "seed": run.seed,
            "save": str(run_dir.resolve() / "checkpoints"),
            "save_interval": run.save_interval,
        },
        "plug-ins": {argument: lookup(recipe, key) or None for argument, key in PLUG_INS.items()},
        "rollout": {
            "rollout_batch_size": rollout.batch_size,
            "n_samples_per_prompt": rollout.samples_per_task,
            "over_sampling_batch_size": rollout.batch_size,
            "n_samples_per_eval_prompt": data.eval_samples_per_task,
            "rollout_max_response_len": rollout.max_response,
            "rollout_max_context_len": rollout.max_context,
            "rollout_temperature": rollout.temperature,
            "rollout_top_p": rollout.top_p,
            "rollout_top_k": rollout.top_k,
            "rollout_stop": None,
            "rollout_stop_token_ids": None,
            "rollout_skip_special_tokens": False,
            "rollout_seed": run.seed,
            "rollout_shuffle": data.shuffle,
            "reward_key": None,
            "group_rm": False,
        },
        "serving": {
            "sglang_router_ip": serving.router_ip or None,
            "sglang_router_port": serving.router_port or None,
            "sglang_server_concurrency": most_an_engine(recipe),
            "sglang_enable_deterministic_inference": serving.deterministic,
        },
        "loss": {
            "advantage_estimator": algorithm.estimator,
            "calculate_per_token_loss": algorithm.reduction == "token",
            "custom_pg_loss_reducer_function_path": CONSTANT_REDUCTION if algorithm.reduction == "constant" else None,
            "eps_clip": algorithm.clip_low,
            "eps_clip_high": algorithm.clip_high,
            "eps_clip_c": algorithm.dual_clip or None,
            "use_opsm": algorithm.opsm_delta > 0,
            "opsm_delta": algorithm.opsm_delta,
            "keep_old_actor": algorithm.keep_old_actor,
            "use_kl_loss": kl_in == "loss",
            "kl_loss_coef": algorithm.kl_coef if kl_in == "loss" else 0.0,
            "kl_coef": algorithm.kl_coef if kl_in == "reward" else 0.0,
            "kl_loss_type": algorithm.kl_type,
            "use_unbiased_kl": algorithm.kl_unbiased,
            "custom_advantage_function_path": KL_IN_REWARD if kl_in == "reward" else None,
            "entropy_coef": algorithm.entropy_coef,
            "use_tis": algorithm.mismatch != "none",
            "tis_clip": algorithm.mismatch_high,
            "tis_clip_low": algorithm.mismatch_low,
            "custom_tis_function_path": MISMATCH.get(algorithm.mismatch),
            "use_rollout_logprobs": algorithm.rollout_logprobs,
            "use_routing_replay": algorithm.routing_replay == "train",
            "use_rollout_routing_replay": algorithm.routing_replay == "rollout",
            "rewards_normalization": algorithm.normalize_rewards,
            "grpo_std_normalization": algorithm.std_normalization,
            "num_steps_per_rollout": algorithm.steps_per_rollout,
            **(SUPERVISED if recipe.supervised else {}),
        },
        "optimizer": {
            "optimizer": "adam",
            "lr": optimizer.lr,
            "lr_decay_style": optimizer.schedule,
            "lr_warmup_iters": optimizer.warmup_steps,
            "adam_beta1": optimizer.beta1,
            "adam_beta2": optimizer.beta2,
            "adam_eps": optimizer.eps,
            "weight_decay": optimizer.weight_decay,
            "clip_grad": optimizer.clip_grad,
        },
    }


def checkpoint_folder(spec: str, models: str = "models") -> Path:
    """The folder that `model.checkpoint` names. Raises `UserError` where it holds no Hugging Face model."""
    folder = checkpoint_path(spec, models)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model.checkpoint={spec!r} is not a model in Hugging Face format ({folder} holds no config.json): give a "
            f"folder that does, an ORG/NAME that model.folder={models} holds, or {EMBEDDED_SEED}"
        )
    return folder


def checkpoint_path(spec: str, models: str = "models") -> Path:
    """Where `model.checkpoint` lies: a folder as it is given, else that `ORG/NAME` in `model.folder`. Absolute."""
    if spec == EMBEDDED_SEED:
        return Path(str(files("slime_swe.embedded"))).resolve() / "seed" / "checkpoint"
    given = Path(spec).expanduser()
    named = spec.count("/") == 1 and not spec.startswith((".", "~", "/")) and not given.is_dir()
    return (Path(models).expanduser() / spec if named else given).resolve()


def converted_folder(recipe: Recipe) -> Path:
    """Where the same weights lie in Megatron's format: beside those in Hugging Face format."""
    return Path(f"{checkpoint_path(recipe.model.checkpoint, recipe.model.folder)}_torch_dist")


def ours(recipe: Recipe, run_dir: Path) -> Attributes:
    """What SLiME has no name for. Task sets are named by absolute paths: SLiME's processes are started elsewhere.

    The attempt is the run's last, or its first where it has none yet.
    """
    rollout = recipe.rollout
    return {
        "swe_tasks": [absolute(spec) for spec in recipe.data.training_sets],
        "swe_weights": recipe.data.weights,
        "swe_retire_above": recipe.data.retire_above,
        "swe_boost_below": recipe.data.boost_below,
        "swe_rate_episodes": recipe.data.rate_episodes,
        "swe_eval_tasks": {name: absolute(spec) for name, spec in recipe.data.evaluation_sets.items()},
        "swe_agent": rollout.agent,
        "swe_tool_format": recipe.model.tool_calls,
        "swe_chat_template": chat_template(recipe.model),
        "swe_system_prompt": rollout.system_prompt,
        "swe_grammar": rollout.grammar,
        "swe_grammar_kind": rollout.grammar_kind,
        "swe_grammar_tolerance": rollout.grammar_tolerance,
        "swe_max_turns": rollout.max_turns,
        "swe_tries": rollout.tries,
        "swe_no_call_turns": rollout.no_call_turns,
        "swe_schedule": rollout.schedule,
        "swe_max_over_sampling": recipe.max_over_sampling,
        "swe_max_staleness": staleness(recipe),
        "swe_version_lag": int(recipe.engine != "embedded" and at_once(recipe)),
        "swe_cached_episodes": cached_episodes(recipe),
        "swe_time_budget": rollout.time_budget,
        "swe_wall_time_budget": rollout.wall_time_budget,
        "swe_sandbox": rollout.sandbox,
        "swe_sandbox_concurrency": sandboxes_at_once(recipe),
        "swe_keep_disk_free": rollout.keep_disk_free,
        "swe_reward_mode": recipe.reward.mode,
        "swe_harness": recipe.reward.harness,
        "swe_harness_python": program(recipe.reward.harness_python),
        "swe_negative_control": recipe.reward.negative_control,
        "swe_mask_truncated": rollout.mask_truncated,
        "swe_overlong_tokens": recipe.reward.overlong_tokens,
        "swe_overlong_turns": recipe.reward.overlong_turns,
        "swe_overlong_penalty": recipe.reward.overlong_penalty,
        "swe_reward_weights": recipe.reward.weights,
        "swe_last_mile": recipe.reward.last_mile,
        "swe_max_attempts": rollout.max_attempts,
        "swe_outage_limit": rollout.outage_limit,
        "swe_mismatch_veto": recipe.algorithm.mismatch_veto,
        "swe_run_dir": str(run_dir.resolve()),
        "swe_threads": recipe.cluster.threads,
        "swe_keep_checkpoints": recipe.run.keep_checkpoints,
        "swe_keep_exports": recipe.run.keep_exports,
        "swe_keep_best": recipe.run.keep_best,
        "swe_save_every_minutes": recipe.save_every_minutes,
        "swe_attempt": max(1, last_attempt(run_dir / ATTEMPTS)),
    }


def chat_template(model: Model) -> str:
    """A shipped template's name, or a file's absolute path. Raises `UserError` where there is neither."""
    name = model.chat_template
    return name if not name or name in shipped_templates() else str(template_path(name).resolve())


def program(path: str) -> str:
    """A program's path made absolute, but for its last link: an environment's interpreter is one, and must stay it."""
    if "/" not in path:
        return path  # found on PATH, or none
    given = Path(path).expanduser()
    return str(given.parent.resolve() / given.name)
