"""Every recipe's command line with `engine=miles` through miles' own parser and checks."""

from __future__ import annotations

import pytest

from slime_swe.launch.config import resolve
from slime_swe.launch.engines import violations
from slime_swe.launch.engines.miles import MILES
from slime_swe.recipes.base import Parallel
from slime_swe.recipes.families import FAMILIES, load_family
from slime_swe.recipes.registry import RECIPES
from tests.contract.parsed import different, parsed
from tests.recipes.changes import variant

GPU_RECIPES = [name for name in RECIPES if resolve(name).engine == "slime"]
LORA = ["engine=miles", "algorithm.lora_rank=32", "algorithm.reduction=trajectory"]
SET_BY_MILES = {
    "load",  # the converted checkpoint, where there is none to resume from
    "use_routing_replay",  # by use_rollout_routing_replay
}


@pytest.fixture
def parse(miles_home, tmp_path, monkeypatch):
    """A recipe's job through miles' `parse_args`: what it made of it, and the attributes that we asked for."""
    from miles.utils.arguments import parse_args

    return lambda recipe: parsed(recipe, parse_args, MILES, tmp_path, monkeypatch)


def changed_by_miles(args, asked):
    return {dest: pair for dest, pair in different(args, asked).items() if dest not in SET_BY_MILES}


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_miles_takes_the_command_line_and_means_what_we_mean(parse, name):
    """miles ignores a flag that it does not know, so each attribute is looked up."""
    args, asked = parse(resolve(name, ["engine=miles"]))
    assert changed_by_miles(args, asked) == {}
    assert args.load == args.ref_load and args.lora_rank == 0


@pytest.mark.parametrize("name", FAMILIES)
def test_miles_takes_each_family_s_flags_and_config(parse, name):
    """Of its toy, on one GPU a copy: miles compares its flags with the checkpoint's `config.json`."""
    recipe = variant("qwen3_coder_30b_a3b", engine="miles", model__config=load_family(name).toy(), parallel=Parallel())
    if any(found.field == "model.config.model_type" for found in violations(recipe)):
        pytest.skip("engine=miles refuses it")
    assert changed_by_miles(*parse(recipe)) == {}


@pytest.mark.parametrize("name", ["qwen25_coder_7b", "qwen3_coder_30b_a3b", "qwen3_coder_30b_a3b_async"])
def test_miles_takes_an_adapter(parse, name):
    args, asked = parse(resolve(name, [*LORA, "algorithm.lora_alpha=64"]))
    targets = asked.pop("target_modules").split(",")
    assert changed_by_miles(args, asked) == {}
    assert (args.lora_rank, args.lora_alpha, args.target_modules) == (32, 64, targets)
    assert args.load == args.hf_checkpoint and args.megatron_to_hf_mode == "bridge"

    from miles.backends.megatron_utils.lora_utils import (
        convert_target_modules_to_hf,
        convert_target_modules_to_megatron,
    )

    assert convert_target_modules_to_megatron(args.target_modules) == targets
    served = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert convert_target_modules_to_hf(args.target_modules) == served


@pytest.mark.parametrize(
    "settings",
    [
        "estimator=gspo clip_low=3e-4 clip_high=4e-4 steps_per_rollout=2 dual_clip=3",
        "keep_old_actor=true opsm_delta=1e-4",
        "reduction=constant kl_coef=0",
        "kl_coef=0.01 kl_unbiased=true",
        "mismatch=icepop mismatch_low=0.5 mismatch_high=5",
        "mismatch=mis mismatch_low=0.5 mismatch_veto=1e-3",
    ],
)
def test_miles_takes_each_loss_and_loads_its_function(parse, settings):
    from miles.utils.misc import load_function

    overrides = [f"algorithm.{setting}" for setting in settings.split()]
    args, asked = parse(resolve("qwen3_coder_30b_a3b_async", ["engine=miles", *overrides]))
    assert changed_by_miles(args, asked) == {}
    for path in (args.custom_tis_function_path, args.custom_pg_loss_reducer_function_path):
        assert path is None or callable(load_function(path))
    assert args.swe_mismatch_veto == pytest.approx(1e-3 if "veto" in settings else 1e-4)
