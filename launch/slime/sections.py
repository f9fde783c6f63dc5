"""Recipe -> every attribute of SLiME's `args` that a GPU run sets, in groups that a person can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime_swe.launch.args import Attributes, checkpoint_path, shared
from slime_swe.launch.slime.architecture import model_section
from slime_swe.launch.slime.paths import RunPaths
from slime_swe.recipes.base import Recipe

FULLY_ASYNC = "slime.rollout.fully_async_rollout.generate_rollout_fully_async"
SYNC = "slime.rollout.sglang_rollout.generate_rollout"
LOGITS_CHUNK = 1024  # tokens whose log-probabilities are computed at once, each over the whole vocabulary


def sections(recipe: Recipe, paths: RunPaths, *, resume: bool) -> dict[str, Attributes]:
    """Heading -> attributes, in the order of a command line."""
    common = shared(recipe, paths.run)
    return {
        "cluster": cluster(recipe),
        "model": model_section(recipe.model.architecture, recipe.parallel.tp),
        "checkpoints": checkpoints(recipe, paths, resume=resume),
        "run": {**common["run"], "custom_config_path": str(paths.settings)},
        "plug-ins": common["plug-ins"],
        "rollout": {**common["rollout"], "rollout_function_path": rollout_function(recipe)},
        "evaluation": evaluation(recipe, paths),
        "serving": {**common["serving"], **serving(recipe, paths)},
        "loss": common["loss"],
        "optimizer": {**common["optimizer"], **offload(recipe)},
        "parallel": parallel(recipe),
        "precision": dict(PRECISION),
        "logging": logging(recipe, paths),
    }


PRECISION: Mapping[str, Any] = {
    "accumulate_allreduce_grads_in_fp32": True,
    "attention_softmax_in_fp32": True,
    "attention_backend": "flash",
}


def cluster(recipe: Recipe) -> Attributes:
    """`num_gpus_per_node` is that of the nodes that serve, which SLiME takes for 8 by default."""
    own = not recipe.serving.external_engines
    return {
        "actor_num_nodes": recipe.cluster.nodes,
        "actor_num_gpus_per_node": recipe.cluster.gpus_per_node,
        "num_gpus_per_node": recipe.cluster.gpus_per_node,
        "colocate": recipe.cluster.colocate,
        **({"rollout_num_gpus": recipe.cluster.serve_gpus} if own else {}),
    }


def checkpoints(recipe: Recipe, paths: RunPaths, *, resume: bool) -> Attributes:
    """A fresh run starts from `ref_load`; so does one that is resumed before its first checkpoint."""
    folder = str(checkpoint_path(recipe.model.checkpoint, recipe.model.folder))
    return {
        "hf_checkpoint": folder,
        "ref_load": f"{folder}_torch_dist",
        "load": str(paths.checkpoints) if resume else None,
        "save_hf": f"{paths.exports}/{{rollout_id}}",
    }


def rollout_function(recipe: Recipe) -> str:
    return FULLY_ASYNC if recipe.rollout.schedule == "fully_async" else SYNC


def evaluation(recipe: Recipe, paths: RunPaths) -> Attributes:
    """SLiME evaluates before the first rollout and after each one whose number the interval divides."""
    if not recipe.data.eval:
        return {}
    return {
        "eval_config": str(paths.evaluation),
        "eval_interval": recipe.run.eval_interval or max(1, recipe.run.num_rollouts),
    }


def serving(recipe: Recipe, paths: RunPaths) -> Attributes:
    """External engines, which the trainer's NCCL need not reach, load new weights from a shared folder."""
    serve = recipe.serving
    if serve.external_engines:
        return {
            "rollout_external_engine_addrs": list(serve.external_engines),
            "update_weight_transport": "disk",
            "update_weight_disk_dir": str(paths.weights),
        }
    return {
        "rollout_num_gpus_per_engine": serve.gpus_per_engine,
        "sglang_mem_fraction_static": serve.mem_fraction,
        "sglang_ep_size": serve.ep,
        "sglang_enable_dp_attention": serve.dp_attention,
        "sglang_dp_size": serve.gpus_per_engine if serve.dp_attention else 1,
    }


def offload(recipe: Recipe) -> Attributes:
    if not recipe.optimizer.cpu_offload:
        return {}
    return {
        "optimizer_cpu_offload": True,
        "overlap_cpu_optimizer_d2h_h2d": True,
        "use_precision_aware_optimizer": True,  # Megatron offloads no other
    }


def parallel(recipe: Recipe) -> Attributes:
    """Micro-batches hold whole episodes up to the budget of tokens: not SLiME's FLOP-balanced ones, which exceed it."""
    ways = recipe.parallel
    return {
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
    }


RECOMPUTE: Mapping[str, Attributes] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def logging(recipe: Recipe, paths: RunPaths) -> Attributes:
    run = recipe.run
    wandb = {
        "use_wandb": True,
        "wandb_project": run.wandb_project,
        "wandb_group": run.name,
        "wandb_random_suffix": False,
        "wandb_dir": str(paths.run),
    }
    return {
        **(wandb if run.wandb_project else {}),
        **({"use_tensorboard": True, "tb_project_name": recipe.name} if run.tensorboard else {}),
    }
