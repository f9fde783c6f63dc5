"""What one rank of a recipe holds, as the benchmark of training steps has it."""

from __future__ import annotations

import dataclasses

import pytest
from benchmarks.megatron_shape import alone, fitting, plan_memory, rank_shape, sequence_lengths

from slime_swe.launch.plan import formulae
from slime_swe.launch.plan.formulae import GIB, Layout
from slime_swe.recipes.base import Parallel
from slime_swe.recipes.registry import RECIPES, load_recipe

GPU_RECIPES = [name for name in RECIPES if name != "tiny_cpu"]


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_a_rank_alone_has_the_parameters_that_the_planner_gives_it_in_the_job(name):
    recipe = load_recipe(name)
    model, parallel = recipe.model.architecture, recipe.parallel
    layout = Layout(recipe.cluster.train_gpus, parallel.tp, parallel.pp, parallel.cp, parallel.ep, parallel.etp)
    held = formulae.shard(model, layout, layout.pp - 1).parameters
    # The rank's router knows all experts, this one its own; and of a pipeline the last stage has no embedding table.
    router = model.layers // layout.pp * model.hidden * (model.experts - model.experts // layout.ep)
    tables = model.hidden * formulae.padded_vocab(model.vocab, layout.tp) // layout.tp * (layout.pp > 1)
    assert rank_shape(model, parallel).parameters == pytest.approx(held - router + tables, rel=1e-3)


def test_experts_see_as_many_rows_as_the_rank_gets():
    model = load_recipe("qwen3_coder_30b_a3b").model.architecture
    assert rank_shape(model, Parallel(tp=4, ep=8)).experts_per_token == model.experts_per_token // 4
    assert rank_shape(model, Parallel(tp=4, ep=8, etp=2)).experts_per_token == model.experts_per_token // 2


@pytest.mark.parametrize("tokens", (256, 1000, 32768))
def test_a_micro_batch_is_packed_full(tokens):
    lengths = sequence_lengths(tokens)
    assert sum(lengths) == tokens
    assert min(lengths) > 0
    assert len(set(lengths)) > 2


def test_layers_are_cut_until_the_plan_fits():
    recipe = load_recipe("qwen25_coder_7b")
    whole = rank_shape(recipe.model.architecture, recipe.parallel)
    assert fitting(recipe, float("inf")) == whole
    memory = 0.7 * sum(plan_memory(recipe, whole).values())
    cut = fitting(recipe, memory)
    assert 1 < cut.layers < whole.layers
    assert sum(plan_memory(recipe, cut).values()) <= memory
    assert dataclasses.replace(cut, layers=whole.layers) == whole


def test_the_planner_is_asked_about_one_gpu_and_nothing_but_the_model():
    recipe = load_recipe("qwen3_coder_30b_a3b")
    shape = rank_shape(recipe.model.architecture, recipe.parallel)
    planned = plan_memory(recipe, shape)
    assert planned["weights"] == pytest.approx(2 * shape.parameters, rel=1e-3)
    assert planned["optimizer states"] == pytest.approx(12 * shape.parameters, rel=1e-3)
    assert not {"CUDA and NCCL", "paused server", "fragmentation"} & set(planned)
    assert alone(recipe, shape, "H200-141GB").cluster.train_gpus == 1
    assert sum(planned.values()) > GIB
