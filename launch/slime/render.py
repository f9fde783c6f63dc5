"""Recipe -> the command line of SLiME and of its fork miles, and the `args` of an engine that has no command line.

    render(recipe, folder)         the job: program, flags, environment, files
      sections(recipe, folder)     heading -> attributes of SLiME's `args`, by SLiME's own names: a table of fields
        shared(recipe, folder)     those that every engine takes, such as `rollout_batch_size`
      settings_files(...)          what SLiME has no flag for, by names that begin with `swe_` (`plugin_settings`)
      render_flags(...)            attributes -> words, then the recipe's own `slime.flags`
      environment(...)             what the processes of the job need beside it
    to_args(recipe, folder)        the attributes that plug-ins read, as a namespace, for the embedded engine

The flag of an attribute is the one by which SLiME's parser sets it (`Manifest.to_argv`): `--rollout-batch-size` comes
of `rollout_batch_size`, which is `recipe.rollout.batch_size`. What tests hold:

- what each shipped recipe says is taken by the manifest of SLiME's, Megatron's and SGLang's flags, and, where SLiME is
  checked out, by their own parsers (`tests/contract`); no flag is said twice;
- each field of a recipe reaches the job, or is named in `tests/launch/slime/test_render.py` with who reads it;
- each choice of algorithm, schedule and layout is the flags that the same tests name for it;
- paths are absolute, and the files that a job has written lie in the run's folder;
- a resumed run has the flags of a fresh one, but that it loads its own checkpoints and keeps to its schedule;
- the embedded engine gets exactly the names of `args` that its contract lists (`tests/launch/slime/test_args.py`).
"""

from __future__ import annotations

import os
import site
import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

import slime_swe
from slime_swe.attempts import ATTEMPTS, last_attempt
from slime_swe.data_sources.registry import absolute
from slime_swe.launch.engines import engine_of
from slime_swe.launch.model import chat_template, checkpoint_folder, checkpoint_path, converted_folder
from slime_swe.launch.plan.admission import cached_episodes, most_an_engine, sandboxes_at_once
from slime_swe.launch.ray.network import by_interface
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.manifest import Attributes
from slime_swe.launch.slime.paths import CHECKPOINTS, EVALUATION, EXPORTS, SETTINGS, TENSORBOARD, WEIGHTS
from slime_swe.launch.slime.upstream import SLIME, Upstream
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.checks import lookup
from slime_swe.recipes.layers import Shape
from slime_swe.recipes.rules import at_once, staleness

HEADING = "slime.flags"  # of the recipe's own flags
MODULE = "slime_swe.launch.slime.loop"  # runs the script, and says when it saves
PYTHON = "python3"  # of the machine that the job runs on, where this one has no SLiME, as the training image has

ROLLOUT_FUNCTION = "slime_swe.rollout.slime_plugin.generate_rollout"
RECORD = "slime_swe.launch.slime.slime_plugin.write_trained"
CONSTANT_REDUCTION = "slime_swe.launch.slime.slime_plugin.constant_reduction"
KL_IN_REWARD = "slime_swe.launch.slime.slime_plugin.advantages_less_kl"
PLUG_INS = {  # SLiME's argument -> the recipe's key; both hold a dotted path
    "custom_generate_function_path": "rollout.generate",
    "custom_rm_path": "reward.function",
    "custom_reward_post_process_path": "algorithm.post_process",
    "dynamic_sampling_filter_path": "algorithm.group_filter",
    "data_source_path": "data.source",
    "custom_rollout_log_function_path": "rollout.log",
    "custom_eval_rollout_log_function_path": "rollout.log_evaluation",
}
MISMATCH = {  # algorithm.mismatch -> the function that SLiME takes in place of its own, which truncates
    "icepop": "slime.backends.megatron_utils.loss.icepop_function",
    "mis": "slime_swe.launch.slime.slime_plugin.masked_importance_sampling",
}
SUPERVISED = {"loss_type": "sft_loss", "calculate_per_token_loss": True, "compute_advantages_and_returns": False}
OFFLOAD: Attributes = {
    "optimizer_cpu_offload": True,
    "overlap_cpu_optimizer_d2h_h2d": True,
    "use_precision_aware_optimizer": True,  # Megatron offloads no other
}
RECOMPUTE: Mapping[str, Attributes] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
LOGITS_CHUNK = 1024  # tokens whose log-probabilities are computed at once, each over the whole vocabulary
PADDING = 128  # rows of the embedding table that one GPU's share is padded to at most
OWN_RECORD = {"swe_record_metrics": True}  # no launcher reads figures back, so the run writes `metrics.jsonl` itself


def render(
    recipe: Recipe,
    folder: Path,
    *,
    upstream: Upstream = SLIME,
    resume: bool = False,
    checkouts: Checkouts | None = None,
) -> Job:
    """Make the job of a run in `folder`. Writes no file. Raises `UserError`."""
    run, found = folder.resolve(), checkouts or upstream.checkouts()
    return Job(
        program=(
            sys.executable if find_spec(upstream.package) else PYTHON,
            "-m",
            MODULE,
            str(found.loop / script_of(recipe)),
        ),
        flags=render_flags(recipe, sections(recipe, run, resume=resume, upstream=upstream), upstream),
        environment=environment(recipe, run, found),
        files=settings_files(recipe, run),
        directory=run,
        manifest=upstream.manifest,
    )


def script_of(recipe: Recipe) -> str:
    """Return the entry script: one trains and samples in turns, the other at once. Without a rollout the first one
    evaluates and ends, where the other samples a batch that it never trains."""
    return "train_async.py" if at_once(recipe) and recipe.run.num_rollouts else "train.py"


def sections(recipe: Recipe, folder: Path, *, resume: bool, upstream: Upstream = SLIME) -> dict[str, Attributes]:
    """Return, by heading, every attribute of `args` that a GPU run sets, in the order of a command line.

    A fresh run starts from `ref_load`; so does one that is resumed before its first checkpoint. A resumed run has its
    schedule from the command line, not the checkpoint: Megatron else refuses a longer one. Micro-batches hold whole
    episodes up to the budget of tokens: not SLiME's FLOP-balanced ones, which exceed it.
    """
    common, run, ways, cluster = shared(recipe, folder), recipe.run, recipe.parallel, recipe.cluster
    own_engines = not recipe.serving.external_engines
    found: dict[str, Attributes] = {
        "cluster": {
            "actor_num_nodes": cluster.nodes,
            "actor_num_gpus_per_node": cluster.gpus_per_node,
            "num_gpus_per_node": cluster.gpus_per_node,  # of the nodes that serve, which SLiME takes for 8 by default
            "colocate": cluster.colocate,
            **({"rollout_num_gpus": cluster.serve_gpus} if own_engines else {}),
        },
        "model": model_section(recipe.model.shape, ways.tp),
        "checkpoints": {
            "hf_checkpoint": str(checkpoint_path(recipe.model.checkpoint, recipe.model.folder)),
            "ref_load": str(converted_folder(recipe)),
            "load": str(folder / CHECKPOINTS) if resume else None,
            "save_hf": f"{folder / EXPORTS}/{{rollout_id}}",
        },
        "run": {**common["run"], "custom_config_path": str(folder / SETTINGS)},
        "plug-ins": {**common["plug-ins"], "rollout_data_postprocess_path": RECORD},
        "rollout": {**common["rollout"], "rollout_function_path": ROLLOUT_FUNCTION},
        "evaluation": {  # before the first rollout, and after each one whose number the interval divides
            "eval_function_path": ROLLOUT_FUNCTION,
            "eval_config": str(folder / EVALUATION),
            "eval_interval": run.eval_interval or max(1, run.num_rollouts),
        }
        if recipe.data.eval
        else {},
        "serving": {**common["serving"], **_serving(recipe, folder)},
        "loss": common["loss"],
        "optimizer": {
            **common["optimizer"],
            **(OFFLOAD if recipe.optimizer.cpu_offload else {}),
            **({"override_opt_param_scheduler": True} if resume else {}),
        },
        "parallel": {
            "tensor_model_parallel_size": ways.tp,
            "sequence_parallel": ways.tp > 1,
            "pipeline_model_parallel_size": ways.pp,
            "context_parallel_size": ways.cp,
            "expert_model_parallel_size": ways.ep,
            "expert_tensor_parallel_size": ways.etp,
            "use_dynamic_batch_size": True,
            "max_tokens_per_gpu": ways.max_tokens_per_gpu,
            "balance_data": True,
            "log_probs_chunk_size": LOGITS_CHUNK,
            **RECOMPUTE[ways.recompute],
            **_before_building(recipe),
        },
        "precision": {
            "accumulate_allreduce_grads_in_fp32": True,
            "attention_softmax_in_fp32": True,
            "attention_backend": "flash",
        },
        "logging": {
            **(
                {
                    "use_wandb": True,
                    "wandb_project": run.project,
                    "wandb_group": run.name,
                    "wandb_random_suffix": False,
                    "wandb_dir": str(folder),
                }
                if "wandb" in run.trackers
                else {}
            ),
            **({"use_tensorboard": True, "tb_project_name": recipe.name} if "tensorboard" in run.trackers else {}),
        },
    }
    return upstream.adapted(_supervised(found) if recipe.supervised else found, recipe, folder, resume=resume)


def shared(recipe: Recipe, run_dir: Path) -> dict[str, Attributes]:
    """Return, by heading, what every engine takes, but for where weights are read from and how often is evaluated.

    SLiME's group advantages leave the KL penalty on rewards out: a function of ours takes it off.
    """
    run, data, rollout, serving = recipe.run, recipe.data, recipe.rollout, recipe.serving
    algorithm, optimizer = recipe.algorithm, recipe.optimizer
    kl_in = algorithm.kl_in if algorithm.kl_coef > 0 else ""
    return {
        "run": {
            "num_rollout": run.num_rollouts,
            "seed": run.seed,
            "save": str(run_dir.resolve() / CHECKPOINTS),
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


def _serving(recipe: Recipe, folder: Path) -> Attributes:
    """Return the attributes of servers. External engines, which the trainer's NCCL need not reach, load new weights
    from a shared folder."""
    serve = recipe.serving
    if serve.external_engines:
        return {
            "rollout_external_engine_addrs": list(serve.external_engines),
            "update_weight_transport": "disk",
            "update_weight_disk_dir": str(folder / WEIGHTS),
        }
    return {
        "rollout_num_gpus_per_engine": serve.gpus_per_engine,
        "sglang_mem_fraction_static": serve.mem_fraction,
        "sglang_ep_size": serve.ep,
        "sglang_enable_dp_attention": serve.dp_attention,
        "sglang_dp_size": serve.gpus_per_engine if serve.dp_attention else 1,
        # Else logits are gathered over the engine at each token, and a mixture's dense layers over its GPUs' requests.
        "sglang_enable_dp_lm_head": serve.dp_attention,
        **({"sglang_moe_dense_tp_size": 1} if serve.dp_attention and recipe.model.shape.experts else {}),
    }


def model_section(shape: Shape, tp: int = 1) -> Attributes:
    """Return the attributes that Megatron builds the model from, on `tp` tensor-parallel GPUs."""
    return {**shape.megatron, "make_vocab_size_divisible_by": vocabulary_unit(shape.vocab, tp)}


def vocabulary_unit(vocab: int, tp: int) -> int:
    """Return a number that Megatron pads the vocabulary to a multiple of, times `tp`: the largest that adds no rows, or
    1.

    A row that pads has a logit, which takes part in every softmax, and the server has no such row.
    """
    unit = PADDING
    while unit > 1 and vocab % (unit * tp):
        unit //= 2
    return unit


def _before_building(recipe: Recipe) -> Attributes:
    """Return the attribute that a kind of layer wants of SLiME under context parallelism; none without."""
    parts = [part for layer in recipe.model.shape.layers for part in layer.parts]
    wanted = {part.context_parallel_init for part in parts} - {""} if recipe.parallel.cp > 1 else set()
    assert len(wanted) <= 1, wanted  # SLiME calls one
    return {"custom_megatron_init_path": wanted.pop()} if wanted else {}


def _supervised(found: Mapping[str, Attributes]) -> dict[str, Attributes]:
    """Return the attributes of a stage that samples nothing: it starts no servers, whose flags SLiME then does not
    know, and the trainer keeps its GPUs. What the trainer computes of the old policy is in no record, as there is
    none."""
    cluster = {name: value for name, value in found["cluster"].items() if name not in ("colocate", "rollout_num_gpus")}
    plug_ins = {name: value for name, value in found["plug-ins"].items() if name != "rollout_data_postprocess_path"}
    return {**found, "cluster": cluster, "plug-ins": plug_ins, "serving": {"debug_train_only": True}}


def settings_files(recipe: Recipe, run: Path) -> dict[Path, str]:
    """Return the files that the flags name: our settings, and the evaluation sets as SLiME's parser wants them.

    SLiME takes no `--eval-interval` without datasets. Our rollout function plays the sets of `args.swe_eval_tasks`, so
    that nothing reads the paths that stand there.
    """
    files = {run / SETTINGS: as_yaml(plugin_settings(recipe, run) | OWN_RECORD | unserved(recipe))}
    if recipe.data.eval:
        datasets = [{"name": name, "path": absolute(spec)} for name, spec in recipe.data.evaluation_sets.items()]
        files[run / EVALUATION] = as_yaml({"eval": {"datasets": datasets}})
    return files


def as_yaml(content: Any) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return text


def plugin_settings(recipe: Recipe, run_dir: Path) -> Attributes:
    """Return what SLiME has no name for. Task sets are named by absolute paths: SLiME's processes start elsewhere.

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
        "swe_version_lag": int(engine_of(recipe).samples_while_training and at_once(recipe)),
        "swe_cached_episodes": cached_episodes(recipe),
        "swe_time_budget": rollout.time_budget,
        "swe_wall_time_budget": rollout.wall_time_budget,
        "swe_sandbox": rollout.sandbox,
        "swe_sandbox_concurrency": sandboxes_at_once(recipe),
        "swe_keep_disk_free": rollout.keep_disk_free,
        "swe_reward_mode": recipe.reward.mode,
        "swe_harness": recipe.reward.harness,
        "swe_harness_python": _program(recipe.reward.harness_python),
        "swe_negative_control": recipe.reward.negative_control,
        "swe_mask_truncated": rollout.mask_truncated,
        "swe_overlong_tokens": recipe.reward.overlong_tokens,
        "swe_overlong_turns": recipe.reward.overlong_turns,
        "swe_overlong_penalty": recipe.reward.overlong_penalty,
        "swe_reward_weights": recipe.reward.weights,
        "swe_last_mile": recipe.reward.last_mile,
        "swe_least_spread": recipe.reward.least_spread,
        "swe_max_attempts": rollout.max_attempts,
        "swe_outage_limit": rollout.outage_limit,
        "swe_alarms": recipe.alarm_limits,
        "swe_mismatch_veto": recipe.algorithm.mismatch_veto,
        "swe_run_dir": str(run_dir.resolve()),
        "swe_threads": recipe.cluster.threads,
        "swe_keep_checkpoints": recipe.run.keep_checkpoints,
        "swe_keep_exports": recipe.run.keep_exports,
        "swe_keep_best": recipe.run.keep_best,
        "swe_save_every_minutes": recipe.save_every_minutes,
        "swe_attempt": max(1, last_attempt(run_dir / ATTEMPTS)),
    }


def _program(path: str) -> str:
    """Make a program's path absolute, but for its last link: an environment's interpreter is one, and must stay it."""
    if "/" not in path:
        return path  # found on PATH, or none
    given = Path(path).expanduser()
    return str(given.parent.resolve() / given.name)


def unserved(recipe: Recipe) -> Attributes:
    """Return what the rollout function reads of `args` that SLiME sets only where it starts servers, for a supervised
    stage."""
    if not recipe.supervised:
        return {}
    serving = recipe.serving
    return {
        "sglang_server_concurrency": most_an_engine(recipe),
        "sglang_enable_deterministic_inference": serving.deterministic,
    }


def render_flags(
    recipe: Recipe, attributes: Mapping[str, Attributes], upstream: Upstream
) -> dict[str, tuple[str, ...]]:
    """Return, by heading, the arguments, the recipe's own flags last; a group that comes to no flag is left out."""
    kept = without_replaced(recipe, attributes, upstream)
    groups = {heading: upstream.manifest.to_argv(group) for heading, group in kept.items()}
    groups[HEADING] = tuple(
        word
        for name, value in recipe.slime.flags.items()
        for word in upstream.manifest.words_of(upstream.own_name(name), value)
    )
    return {heading: group for heading, group in groups.items() if group}


def attributes_of(recipe: Recipe, upstream: Upstream) -> Attributes:
    """Map attributes of `args` to the values that the recipe's own flags give them."""
    found = ((upstream.flag(name), value) for name, value in recipe.slime.flags.items())
    return {flag.dest: value for flag, value in found if flag is not None}


def without_replaced(recipe: Recipe, groups: Mapping[str, Attributes], upstream: Upstream) -> dict[str, Attributes]:
    """Return the groups of attributes, less what the flags set."""
    replaced = attributes_of(recipe, upstream)
    return {
        heading: {dest: value for dest, value in group.items() if dest not in replaced}
        for heading, group in groups.items()
    }


def environment(recipe: Recipe, run: Path, checkouts: Checkouts) -> dict[str, str]:
    """Return the variables of the job's environment.

    CUDA_DEVICE_MAX_CONNECTIONS: Megatron asserts 1 with tensor or context parallelism before Blackwell, so that
        communication starts before the computation it overlaps.
    NCCL_NVLS_ENABLE: no reductions in the NVLink switches, as in SLiME's own example of training a coding agent
        (`examples/coding_agent_rl`); its scripts for mathematics have them where there is NVLink.
    PYTHONPATH: SLiME, Megatron-LM (whose `megatron.training` is in no wheel), this package where it is not installed;
        then the user's own PYTHONPATH and current folder, where their plug-ins are.
    PYTHONUNBUFFERED: the job's log is read as it grows.
    TENSORBOARD_DIR: SLiME knows no flag for it.
    GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME, NCCL_SOCKET_IFNAME: `cluster.interface`.

    What keeps the processes off the user's proxies is added when the job is submitted, and the cluster known.
    """
    users = [str(Path(folder).absolute()) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    found = [str(checkouts.loop), str(checkouts.megatron), *_own_folder(), *users, str(Path.cwd())]
    given = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_NVLS_ENABLE": "0",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(found)),
        "PYTHONUNBUFFERED": "1",
    }
    interface = recipe.cluster.interface
    return (
        given
        | (by_interface(interface) if interface else {})
        | ({"TENSORBOARD_DIR": str(run / TENSORBOARD)} if "tensorboard" in recipe.run.trackers else {})
    )


def _own_folder() -> list[str]:
    """Return this code's checkout; nothing where it is installed, since that folder must not come first."""
    folder = str(Path(slime_swe.__file__).parents[1].resolve())
    installed = [str(Path(path).resolve()) for path in (*site.getsitepackages(), site.getusersitepackages())]
    return [] if folder in installed else [folder]


def to_args(recipe: Recipe, run_dir: Path, *, resume: bool = False) -> Namespace:
    """Return every attribute that the plug-ins and the embedded engine read. Paths are absolute."""
    return Namespace(
        hf_checkpoint=str(checkpoint_folder(recipe.model.checkpoint, recipe.model.folder)),
        load=str(run_dir.resolve() / CHECKPOINTS) if resume else None,
        eval_interval=recipe.run.eval_interval or None,
        max_tokens_per_gpu=recipe.parallel.max_tokens_per_gpu,
        swe_trackers=recipe.run.trackers,
        swe_project=recipe.run.project,
        **{name: value for section in shared(recipe, run_dir).values() for name, value in section.items()},
        **plugin_settings(recipe, run_dir),
    )
