"""What the two engines without GPUs leave out: one value a field, and why."""

from __future__ import annotations

from recipes.rules.values import SIZES, Rule, only

_ONE_PROCESS = "this engine trains in one process on one machine"
_NO_GPUS = "this engine asks for no GPUs"
_SYNC = "the embedded engine samples, then trains"
_LOSS = "the embedded engine has no other"
_DENSE = "this engine runs dense Qwen2 models"
_SMALL = "this engine keeps everything in one machine's memory"

_ALONE: tuple[Rule, ...] = (
    *only(1, _ONE_PROCESS, "cluster.nodes", *SIZES, "serving.ep"),
    *only(0, _NO_GPUS, "cluster.gpus_per_node", "cluster.rollout_gpus", "serving.gpus_per_engine"),
    *only("", _NO_GPUS, "cluster.gpu"),
    *only(False, _NO_GPUS, "serving.dp_attention"),
    *only("qwen2", _DENSE, "model.architecture.family"),
    *only("none", _DENSE, "algorithm.routing_replay"),
    *only("none", _SMALL, "parallel.recompute"),
    *only(False, _SMALL, "optimizer.cpu_offload"),
)

EMBEDDED: tuple[Rule, ...] = (
    *_ALONE,
    *only(True, "the embedded engine trains and serves on the same machine", "cluster.colocate"),
    *only("", "the embedded engine uses no Ray", "cluster.ray_address"),
    *only([], "a running server is named by serving.router_ip and serving.router_port", "serving.external_engines"),
    *only("sync", _SYNC, "rollout.schedule"),
    *only(False, _SYNC, "rollout.partial"),
    *only("grpo", _LOSS, "algorithm.estimator"),
    *only("trajectory", _LOSS, "algorithm.reduction"),
    *only("loss", _LOSS, "algorithm.kl_in"),
    *only(False, _LOSS, "algorithm.kl_unbiased"),
    *only(1, "the embedded engine keeps the newest checkpoints of every rollout", "run.save_interval"),
    *only("", "the embedded engine logs to metrics.jsonl", "run.wandb_project"),
    *only(False, "the embedded engine logs to metrics.jsonl", "run.tensorboard"),
)

SLIME_CPU: tuple[Rule, ...] = (
    *_ALONE,
    *only([], "this engine starts the embedded server and names it to SLiME", "serving.external_engines"),
)
