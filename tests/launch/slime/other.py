"""Another value for a field of a recipe."""

from __future__ import annotations

from typing import Any

NAMED = {
    "algorithm.estimator": "ppo",
    "algorithm.kl_type": "k1",
    "algorithm.mismatch": "icepop",
    "algorithm.kl_in": "reward",
    "algorithm.reduction": "constant",
    "algorithm.routing_replay": "train",
    "rollout.sandbox": "overlay",
    "rollout.schedule": "async",
    "parallel.recompute": "selective",
    "optimizer.schedule": "cosine",
    "cluster.gpu": "A100-80GB",
    "serving.external_engines": ["host:1"],
    "slime.flags": {"router-policy": "manual"},
    "model.checkpoint": "some/other",
    "model.chat_template": "qwen3",
    "model.family": "tests.recipes.other_family.Renamed",
}


def other_than(key: str, value: Any) -> Any:
    if key in NAMED:
        return NAMED[key]
    if key == "model.config":
        return value | {"vocab_size": value["vocab_size"] + 7}
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 7
    return {str: "other", list: ["other:1"], dict: {"a": "b:c"}}[type(value)]
