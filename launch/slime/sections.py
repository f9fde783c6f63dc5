"""Recipe -> every attribute of SLiME's `args` that a GPU run sets, in groups that a person can read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from slime_swe.data_sources.registry import absolute
from slime_swe.launch.args import Attributes, checkpoint_path, converted_folder, shared
from slime_swe.launch.slime.paths import CHECKPOINTS, EVALUATION, EXPORTS, SETTINGS, WEIGHTS
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.layers import Shape

OURS = "slime_swe.rollout.slime_plugin.generate_rollout"
RECORD = "slime_swe.launch.slime.slime_plugin.write_trained"
LOGITS_CHUNK = 1024  # tokens whose log-probabilities are computed at once, each over the whole vocabulary
OFFLOAD: Attributes = {
    "optimizer_cpu_offload": True,
    "overlap_cpu_optimizer_d2h_h2d": True,
    "use_precision_aware_optimizer": True,  # Megatron offloads no other
}
PADDING = 128  # rows of the embedding table that one GPU's share is padded to at most
RECOMPUTE: Mapping[str, Attributes] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def sections(recipe: Recipe, folder: Path, *, resume: bool) -> dict[str, Attributes]:
    """Heading -> attributes, in the order of a command line.

    A fresh run starts from `ref_load`; so does one that is resumed before its first checkpoint. A resumed run has its
    schedule from the command line, not the checkpoint: Megatron else refuses a longer one. Micro-batches hold whole
    episodes up to the budget of tokens: not SLiME's FLOP-balanced ones, which exceed it.
    """
    common, run, ways, cluster = shared(recipe, folder), recipe.run, recipe.parallel, recipe.cluster
    own_engines = not recipe.serving.external_engines
    evaluation = {  # before the first rollout, and after each one whose number the interval divides
        "eval_config": str(folder / EVALUATION),
        "eval_interval": run.eval_interval or max(1, run.num_rollouts),
    }
    found = {
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
        "rollout": {**common["rollout"], "rollout_function_path": OURS},
        "evaluation": {"eval_function_path": OURS, **evaluation} if recipe.data.eval else {},
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
        "logging": _logging(recipe, folder),
    }
    return _supervised(found) if recipe.supervised else found


def _supervised(found: Mapping[str, Attributes]) -> dict[str, Attributes]:
    """Of a stage that samples nothing: it starts no servers, whose flags SLiME then does not know, and the trainer
    keeps its GPUs. What the trainer computes of the old policy is in no record, as there is none."""
    cluster = {name: value for name, value in found["cluster"].items() if name not in ("colocate", "rollout_num_gpus")}
    plug_ins = {name: value for name, value in found["plug-ins"].items() if name != "rollout_data_postprocess_path"}
    return {**found, "cluster": cluster, "plug-ins": plug_ins, "serving": {"debug_train_only": True}}


def _before_building(recipe: Recipe) -> Attributes:
    """What a kind of layer wants of SLiME under context parallelism."""
    parts = [part for layer in recipe.model.shape.layers for part in layer.parts]
    wanted = {part.context_parallel_init for part in parts} - {""} if recipe.parallel.cp > 1 else set()
    assert len(wanted) <= 1, wanted  # SLiME calls one
    return {"custom_megatron_init_path": wanted.pop()} if wanted else {}


def _serving(recipe: Recipe, folder: Path) -> Attributes:
    """External engines, which the trainer's NCCL need not reach, load new weights from a shared folder."""
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


def _logging(recipe: Recipe, folder: Path) -> Attributes:
    run = recipe.run
    wandb = {
        "use_wandb": True,
        "wandb_project": run.project,
        "wandb_group": run.name,
        "wandb_random_suffix": False,
        "wandb_dir": str(folder),
    }
    return {
        **(wandb if "wandb" in run.trackers else {}),
        **({"use_tensorboard": True, "tb_project_name": recipe.name} if "tensorboard" in run.trackers else {}),
    }


def model_section(shape: Shape, tp: int = 1) -> Attributes:
    """Attributes that Megatron builds the model from, on `tp` tensor-parallel GPUs."""
    return {**shape.megatron, "make_vocab_size_divisible_by": vocabulary_unit(shape.vocab, tp)}


def vocabulary_unit(vocab: int, tp: int) -> int:
    """Megatron pads the vocabulary to a multiple of this times `tp`: the largest that adds no rows, if there is one.

    A row that pads has a logit, which takes part in every softmax, and the server has no such row.
    """
    unit = PADDING
    while unit > 1 and vocab % (unit * tp):
        unit //= 2
    return unit


# The evaluation sets as SLiME's parser wants them: it takes no `--eval-interval` without datasets.
#
# Our rollout function plays the sets of `args.swe_eval_tasks`, so that nothing reads the paths that stand here.
def evaluation_config(recipe: Recipe) -> str:
    """The YAML for `--eval-config`."""
    datasets = [{"name": name, "path": absolute(spec)} for name, spec in recipe.data.evaluation_sets.items()]
    return as_yaml({"eval": {"datasets": datasets}})


def as_yaml(content: Any) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return text
