"""What the two engines without GPUs leave out, and what they take."""

from __future__ import annotations

import pytest

from recipes.base import RecipeError
from recipes.checks import violations
from recipes.registry import load_recipe
from tests.recipes.changes import changed, variant

ALONE = [
    ("cluster.nodes", 2, "one process on one machine"),
    ("cluster.gpus_per_node", 8, "asks for no GPUs"),
    ("cluster.gpu", "H100-80GB", "it must be empty: this engine asks for no GPUs"),
    ("cluster.rollout_gpus", 8, "asks for no GPUs"),
    ("parallel.tp", 2, "it must be 1"),
    ("parallel.pp", 5, "it must be 1"),
    ("parallel.cp", 2, "it must be 1"),
    ("parallel.ep", 2, "it must be 1"),
    ("parallel.etp", 2, "it must be 1"),
    ("parallel.recompute", "full", "one machine's memory"),
    ("serving.gpus_per_engine", 1, "asks for no GPUs"),
    ("serving.ep", 2, "it must be 1"),
    ("serving.dp_attention", True, "asks for no GPUs"),
    ("serving.external_engines", ["10.0.0.1:30000"], "embedded server|serving.router_ip"),
    ("algorithm.routing_replay", "rollout", "dense Qwen2"),
    ("optimizer.cpu_offload", True, "one machine's memory"),
]
EMBEDDED = [
    ("cluster.colocate", False, "same machine"),
    ("cluster.ray_address", "http://head:8265", "no Ray"),
    ("rollout.schedule", "async", "it must be sync"),
    ("rollout.partial", True, "samples, then trains"),
    ("algorithm.estimator", "gspo", "it must be grpo"),
    ("algorithm.reduction", "token", "it must be trajectory"),
    ("algorithm.kl_in", "reward", "it must be loss"),
    ("algorithm.kl_unbiased", True, "it must be false"),
    ("run.save_interval", 5, "every rollout"),
    ("run.wandb_project", "mine", "metrics.jsonl"),
    ("run.tensorboard", True, "metrics.jsonl"),
]


@pytest.mark.parametrize("engine", ["embedded", "slime_cpu"])
@pytest.mark.parametrize(("key", "value", "said"), ALONE)
def test_an_engine_without_gpus_refuses_what_needs_them(engine, key, value, said):
    with pytest.raises(RecipeError, match=said) as error:
        changed(variant("tiny_cpu", engine=engine), key, value).validate()
    assert key in str(error.value)


@pytest.mark.parametrize(("key", "value", "said"), EMBEDDED)
def test_the_embedded_engine_refuses_what_it_does_not_compute(key, value, said):
    with pytest.raises(RecipeError, match=said) as error:
        changed(load_recipe("tiny_cpu"), key, value).validate()
    assert key in str(error.value)


def test_another_engine_is_one_override_away():
    variant("tiny_cpu", engine="slime_cpu").validate()
    variant("tiny_cpu", engine="slime_cpu", rollout__schedule="async", algorithm__estimator="gspo").validate()


def test_real_slime_on_a_cpu_keeps_slimes_own_rules():
    fields = {v.field for v in violations(variant("tiny_cpu", engine="slime_cpu", optimizer__name="muon"))}
    assert fields == {"optimizer.name"}
    fields = {v.field for v in violations(variant("tiny_cpu", engine="slime_cpu", rollout__schedule="fully_async"))}
    assert fields == {"algorithm.group_filter", "data.eval"}


def test_a_recipe_for_gpus_says_what_a_laptop_lacks():
    with pytest.raises(RecipeError) as error:
        variant("qwen25_coder_7b", engine="embedded").validate()
    assert "cluster.gpus_per_node=8 is not allowed: it must be 0: this engine asks for no GPUs" in str(error.value)


def test_a_recipe_without_gpus_says_what_slime_lacks():
    found = violations(variant("tiny_cpu", engine="slime"))
    assert {v.field for v in found} == {"cluster.gpus_per_node", "cluster.gpu", "serving.gpus_per_engine"}
