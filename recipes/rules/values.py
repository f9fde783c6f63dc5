"""Which values a single field may have, whatever the engine: one rule a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any

from recipes.architecture import FAMILIES
from recipes.violation import Violation

if TYPE_CHECKING:
    from recipes.base import Recipe

Rule = tuple[str, Callable[[Any], bool], str]  # dotted key, predicate, what is allowed


def broken(recipe: Recipe, rules: Iterable[Rule]) -> list[Violation]:
    """The rules that the recipe breaks."""
    values = ((key, lookup(recipe, key), allowed, text) for key, allowed, text in rules)
    return [
        Violation(key, f"{key}={value!r} is not allowed", f"it must be {text}")
        for key, value, allowed, text in values
        if not allowed(value)
    ]


def lookup(recipe: Recipe, key: str) -> Any:
    """The value at a dotted key."""
    return reduce(getattr, key.split("."), recipe)


def at_least(low: float, *keys: str) -> Iterator[Rule]:
    return ((key, lambda value: value >= low, f"at least {low:g}") for key in keys)


def between(low: float, high: float, *keys: str) -> Iterator[Rule]:
    return ((key, lambda value: low <= value <= high, f"between {low:g} and {high:g}") for key in keys)


def fraction(*keys: str) -> Iterator[Rule]:
    return ((key, lambda value: 0 <= value < 1, "at least 0 and less than 1") for key in keys)


def only(allowed: object, why: str, *keys: str) -> Iterator[Rule]:
    """The one value that `why` leaves."""
    shown = str(allowed).lower() if isinstance(allowed, bool) else "empty" if allowed in ("", []) else str(allowed)
    return ((key, lambda value: value == allowed, f"{shown}: {why}") for key in keys)


def positive(*keys: str) -> Iterator[Rule]:
    return ((key, lambda value: value > 0, "more than 0") for key in keys)


def one_of(key: str, *names: str) -> Iterator[Rule]:
    yield key, lambda value: value in names, f"one of {', '.join(names)}"


def matching(pattern: str, text: str, *keys: str) -> Iterator[Rule]:
    return ((key, lambda value: bool(re.fullmatch(pattern, value)), text) for key in keys)


_DOTTED = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+"
_SERVER = re.compile(r"(https?://)?(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}/?")
_WHOLE = "a trained token's log-probability is that of the whole distribution"

GPUS = ("A100-40GB", "A100-80GB", "H100-80GB", "H200-141GB")
SIZES = tuple(f"parallel.{way}" for way in ("tp", "pp", "cp", "ep", "etp"))

_SHAPE = tuple(f"model.architecture.{name}" for name in "layers hidden ffn heads kv_heads head_dim vocab".split())
_EXPERTS = tuple(f"model.architecture.{name}" for name in "experts experts_per_token expert_ffn".split())
_HOOKS = ("rollout.generate", "rollout.log", "rollout.log_evaluation", "reward.function", "data.source")

RULES: tuple[Rule, ...] = (
    *one_of("engine", "embedded", "slime", "slime_cpu"),
    ("model.checkpoint", bool, "a folder in Hugging Face format, ORG/NAME or embedded:seed"),
    ("model.folder", bool, "a folder"),
    *one_of("model.tool_format", "hermes", "qwen3_coder"),
    *one_of("model.architecture.family", *FAMILIES),
    *at_least(1, *_SHAPE, "model.architecture.max_context"),
    *at_least(0, *_EXPERTS),
    *positive("model.architecture.rope_theta", "model.architecture.rms_eps"),
    *one_of("cluster.gpu", "", *GPUS),
    *at_least(1, "cluster.nodes", "cluster.threads", "cluster.cpus_per_node"),
    *at_least(1, "cluster.memory_per_node", "cluster.disk_per_node"),
    *at_least(0, "cluster.gpus_per_node", "cluster.rollout_gpus", "cluster.gpu_hour_price"),
    *matching(r"(https?://\S+:\d+)?", "http://host:port, or empty", "cluster.ray_address"),
    *at_least(1, *SIZES, "parallel.max_tokens_per_gpu"),
    *one_of("parallel.recompute", "none", "selective", "full"),
    *between(0, 65535, "serving.router_port"),
    ("serving.external_engines", lambda value: all(map(_SERVER.fullmatch, value)), "a list of host:port"),
    *at_least(1, "serving.concurrency", "serving.ep"),
    *at_least(0, "serving.gpus_per_engine"),
    ("serving.mem_fraction", lambda value: 0 < value < 1, "more than 0 and less than 1"),
    *at_least(1, "rollout.batch_size", "rollout.samples_per_task", "rollout.max_turns", "rollout.max_response"),
    *at_least(1, "rollout.max_context", "rollout.max_attempts", "rollout.sandbox_concurrency"),
    *at_least(0, "rollout.over_sampling"),
    *positive("rollout.time_budget", "rollout.temperature"),
    *one_of("rollout.schedule", "sync", "async", "fully_async"),
    *only(1, _WHOLE, "rollout.top_p"),
    *only(-1, _WHOLE, "rollout.top_k"),
    ("rollout.agent", bool, "native, or the dotted path of a function that opens an agent"),
    ("rollout.sandbox", bool, "local, or the dotted path of a sandbox backend"),
    *matching(_DOTTED, "a dotted path such as my_module.my_function", *_HOOKS, "algorithm.post_process"),
    *matching(rf"({_DOTTED})?", "a dotted path such as my_module.my_filter, or empty", "algorithm.group_filter"),
    *one_of("reward.mode", "plus_minus", "binary", "fraction"),
    *one_of("reward.harness", "sandboxed", "official"),
    ("data.train", bool, "at least one task set, such as embedded:train"),
    *at_least(1, "data.eval_samples_per_task"),
    *one_of("algorithm.estimator", "grpo", "gspo"),
    *one_of("algorithm.reduction", "trajectory", "token", "constant"),
    *fraction("algorithm.clip_low", "optimizer.beta1", "optimizer.beta2"),
    *at_least(0, "algorithm.clip_high", "algorithm.kl_coef", "algorithm.entropy_coef", "algorithm.tis_clip_low"),
    *one_of("algorithm.kl_type", "k1", "k2", "k3", "low_var_kl"),
    *one_of("algorithm.kl_in", "loss", "reward"),
    *one_of("algorithm.routing_replay", "none", "train", "rollout"),
    *positive("algorithm.tis_clip", "optimizer.lr", "optimizer.eps"),
    *at_least(1, "algorithm.steps_per_rollout"),
    *one_of("optimizer.name", "adamw", "muon"),
    *one_of("optimizer.schedule", "constant", "linear"),
    *at_least(0, "optimizer.warmup_steps", "optimizer.weight_decay", "optimizer.clip_grad"),
    *matching(r"(?!\.{1,2}$)[\w.+=-]*", "a folder name", "run.name"),
    ("run.dir", bool, "a folder"),
    *at_least(0, "run.num_rollouts", "run.eval_interval", "run.seed"),
    *at_least(1, "run.save_interval"),
)
