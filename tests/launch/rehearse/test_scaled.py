"""Every GPU recipe is rehearsed with its own command line, but for flags with a stated reason; and its layout."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.config import resolve
from slime_swe.launch.engines import violations
from slime_swe.launch.rehearse import jobs
from slime_swe.launch.rehearse.jobs import REASONS, differences
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.rehearse.platforms.cpu import RANKS
from slime_swe.launch.rehearse.toy import layout_of, one_rank, scaled, shape_keys, toy_config
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.render import render
from slime_swe.recipes.base import Parallel, Recipe
from slime_swe.recipes.registry import RECIPES
from tests.launch.rehearse.gpus import node
from tests.launch.rehearse.small import CPU
from tests.recipes.changes import changed

ON_GPUS = [name for name in RECIPES if resolve(name).engine == "slime"]
CHECKOUTS = Checkouts(Path("/slime"), Path("/megatron"))
RUN = Path("/runs/a")


def rehearsed(name: str):
    own = resolve(name)
    return own, made_small(own, CPU)


def made_small(own: Recipe, platform: Platform) -> Recipe:
    toy = shape_keys(toy_config(own.model, platform), own.model)
    return scaled(own, platform, Path("/runs/toy"), toy, Path("/runs"))


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_recipe_is_rehearsed_as_a_legal_recipe_whose_flags_differ_for_a_reason(name):
    own, recipe = rehearsed(name)
    assert violations(recipe) == [] == violations(one_rank(recipe))
    job = jobs.train_job(recipe, CPU, RUN, CHECKOUTS)
    found = differences(render(own, RUN, checkouts=CHECKOUTS), job, CPU.stand_ins(recipe))
    assert all(one.own != one.rehearsed for one in found)
    ours, theirs = own.algorithm, replace(recipe.algorithm, group_filter=own.algorithm.group_filter)
    assert theirs == replace(ours, opsm_delta=0.0)
    assert recipe.rollout.schedule == own.rollout.schedule


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_layout_is_the_recipes_or_says_what_is_smaller(name):
    own, found = resolve(name), layout_of(resolve(name), CPU)
    assert found.ranks <= RANKS
    assert found.ranks % prod((found.parallel.tp, found.parallel.pp, found.parallel.cp)) == 0
    same = all(getattr(found.parallel, way) == getattr(own.parallel, way) for way in ("tp", "pp", "cp", "ep"))
    copies = found.ranks // prod((found.parallel.tp, found.parallel.pp, found.parallel.cp)) == own.data_parallel
    assert (same and copies) == (found.halved == ())


@pytest.mark.parametrize(("name", "ways"), [("qwen3_coder_30b_a3b", (4, 1, 2, 8)), ("qwen25_coder_32b", (4, 1, 2, 1))])
def test_the_largest_way_is_halved(name, ways):
    parallel = layout_of(resolve(name), CPU).parallel
    assert (parallel.tp, parallel.pp, parallel.cp, parallel.ep) == ways


@pytest.mark.parametrize("pp", [4, 8])
@pytest.mark.parametrize("name", ["qwen25_coder_7b", "qwen3_coder_30b_a3b"])
def test_no_stage_of_the_pipeline_is_without_a_layer_of_the_toy(name, pp):
    own = changed(resolve(name), "parallel", Parallel(pp=pp, ep=1, max_tokens_per_gpu=4096))
    layout = layout_of(own, CPU)
    assert layout.parallel.pp == 2 and f"parallel.pp {pp} -> 2" in layout.halved
    assert violations(made_small(own, CPU)) == []


@pytest.mark.parametrize("ways", [{"ep": 2, "etp": 4}, {"tp": 4, "cp": 2, "ep": 2, "etp": 4}, {"tp": 2, "etp": 2}])
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_experts_that_are_split_are_in_a_legal_layout_on_any_node(ways, gpus):
    own = changed(resolve("qwen3_coder_30b_a3b"), "parallel", Parallel(max_tokens_per_gpu=4096, **ways))
    recipe = made_small(own, node(gpus))
    assert [one for one in violations(recipe) if one.field.startswith("parallel")] == []


@pytest.mark.parametrize("lost", ["--rotary-base", "--use-rollout-routing-replay", "--advantage-estimator"])
def test_a_flag_that_is_lost_in_rendering_is_refused(lost):
    own, recipe = rehearsed("qwen3_coder_30b_a3b")
    job = jobs.train_job(recipe, CPU, RUN, CHECKOUTS)
    kept = {name: without(words, lost) for name, words in job.flags.items()}
    with pytest.raises(UserError, match=f"differs from the recipe's in {lost}, and nothing says why"):
        differences(render(own, RUN, checkouts=CHECKOUTS), replace(job, flags=kept), CPU.stand_ins(recipe))


def without(words, flag):
    if flag not in words:
        return words
    at = words.index(flag)
    end = next((place for place in range(at + 1, len(words)) if words[place].startswith("--")), len(words))
    return (*words[:at], *words[end:])


def test_two_conversions_at_once_meet_at_different_ports():
    _, recipe = rehearsed("qwen25_coder_1_5b")
    found = [jobs.to_megatron(recipe, CPU, RUN, CHECKOUTS).environment["MASTER_PORT"] for _ in range(4)]
    assert len({*found, "12355"}) == 5, "12355 is what SLiME takes otherwise"


def test_no_flag_has_two_reasons():
    named = [flag for flags in REASONS.values() for flag in flags]
    assert len(named) == len(set(named))


def test_the_toy_keeps_what_changes_the_computation():
    model = resolve("qwen3_coder_30b_a3b").model
    config = toy_config(model, CPU)
    for key in ("rope_theta", "rms_norm_eps", "tie_word_embeddings", "norm_topk_prob", "model_type"):
        assert config[key] == model.config[key]
    assert config["hidden_size"] < model.config["hidden_size"]
