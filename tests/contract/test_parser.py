"""Every recipe's command line through SLiME's own parser and checks."""

from __future__ import annotations

import json
import sys
from enum import Enum
from types import SimpleNamespace

import pytest
from tests.launch.slime.examples import examples
from tests.recipes.changes import changed, variant

from slime_swe.launch.config import resolve
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.flags import without_replaced
from slime_swe.launch.slime.manifest import OF_THE_IMAGE, load_manifest
from slime_swe.launch.slime.render import render
from slime_swe.launch.slime.sections import sections
from slime_swe.recipes.base import Parallel
from slime_swe.recipes.families import FAMILIES, load_family
from slime_swe.recipes.registry import RECIPES

GPU_RECIPES = [name for name in RECIPES if resolve(name).engine == "slime"]


@pytest.fixture
def parse(slime_home, tmp_path, monkeypatch):
    """A recipe's job through SLiME's `parse_args`: what it made of it, and the attributes that we asked for."""
    from slime.utils.arguments import parse_args

    hopper = SimpleNamespace(major=9, minor=0)  # what Megatron's checks ask of the GPU
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: hopper)
    as_in_the_image(monkeypatch)

    def parsed(recipe):
        recipe = changed(recipe, "model.folder", str(tmp_path))
        folder = tmp_path / recipe.model.checkpoint
        converted = folder.with_name(f"{folder.name}_torch_dist")
        for made in (folder, converted):
            made.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(recipe.model.config))
        (converted / "latest_checkpointed_iteration.txt").write_text("release")
        job = render(recipe, tmp_path / "run", checkouts=Checkouts.find())
        for path, content in job.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        monkeypatch.setattr(sys, "argv", job.argv[1:])
        for variable, value in job.environment.items():
            monkeypatch.setenv(variable, value)
        asked = sections(recipe, (tmp_path / "run").resolve(), resume=False)
        groups = without_replaced(recipe, asked).values()
        return parse_args(), {name: value for group in groups for name, value in group.items()} | passed_on(recipe)

    return parsed


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_slime_takes_the_command_line_and_means_what_we_mean(parse, name):
    """SLiME ignores a flag that it does not know, so each attribute is looked up."""
    assert different(*parse(resolve(name))) == {}


@pytest.mark.parametrize("name", FAMILIES)
def test_slime_takes_each_family_s_flags_and_config(parse, name):
    """Of its toy, on one GPU a copy: SLiME compares its flags with the checkpoint's `config.json`."""
    recipe = variant("qwen3_coder_30b_a3b", model__config=load_family(name).toy(), parallel=Parallel())
    assert different(*parse(recipe)) == {}


def different(args, asked):
    """Attribute -> what was asked for, and what SLiME made of it."""
    differ = {
        dest: (value, getattr(args, dest, "missing")) for dest, value in asked.items() if not same(args, dest, value)
    }
    return {dest: pair for dest, pair in differ.items() if dest not in SET_BY_SLIME}


@pytest.mark.parametrize(
    "settings",
    [
        "estimator=cispo clip_low=1 clip_high=4 rollout_logprobs=true mismatch=none",
        "estimator=gspo clip_low=3e-4 clip_high=4e-4 steps_per_rollout=2 dual_clip=3",
        "keep_old_actor=true opsm_delta=1e-4",
        "mismatch=icepop mismatch_low=0.5 mismatch_high=5",
        "mismatch=mis mismatch_low=0.5 mismatch_veto=1e-3",
    ],
)
def test_slime_takes_each_loss_and_loads_its_function(parse, settings):
    from slime.utils.misc import load_function

    overrides = [f"algorithm.{setting}" for setting in settings.split()]
    args, asked = parse(resolve("qwen3_coder_30b_a3b_async", overrides))
    assert different(args, asked) == {}
    if "mismatch_veto" in settings:
        assert args.swe_mismatch_veto == 1e-3
    if args.custom_tis_function_path:
        assert callable(load_function(args.custom_tis_function_path))


SET_BY_SLIME = {
    "load",  # the converted checkpoint, where there is none to resume from
    "use_routing_replay",  # by use_rollout_routing_replay
}


def as_in_the_image(monkeypatch):
    """The parser of the router takes what that in SLiME's image takes, which is a fork without a package. The policies
    are in PyPI's router, whose parser leaves one out (`sglang_router.router.policy_from_str`)."""
    from slime.backends.sglang_utils import arguments

    def add(parser):
        parser = theirs(parser)
        for action in parser._actions:
            action.choices = [*(action.choices or ()), *more] if (more := choices(action)) else action.choices
        return parser

    def choices(action):
        return [choice for option in action.option_strings for choice in OF_THE_IMAGE.get(option, ())]

    theirs = arguments.add_sglang_router_arguments
    monkeypatch.setattr(arguments, "add_sglang_router_arguments", add)


def passed_on(recipe):
    return {load_manifest().flags[f"--{name}"].dest: value for name, value in recipe.slime.flags.items()}


PASSED_ON = {  # a flag of each kind
    "router-policy": "manual",
    "async-save": "true",
    "attention-backend": "fused",
    "rollout-health-check-timeout": "60",
    "offload-rollout": "false",
    "sglang-cuda-graph-bs": "[1,2,4]",
    "sglang-log-level": "error",
    "train-env-vars": "{A: b}",
}


def test_slime_holds_the_value_of_each_kind_of_flag(parse):
    flags = [f"slime.flags.{name}={value}" for name, value in PASSED_ON.items()]
    args, asked = parse(resolve("qwen25_coder_1_5b", flags))
    dests = {load_manifest().flags[f"--{name}"].dest for name in PASSED_ON}
    assert len(dests) == len(PASSED_ON)
    assert {dest: getattr(args, dest) for dest in dests if not same(args, dest, asked[dest])} == {}


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.title)
def test_slime_takes_every_documented_example(parse, example):
    name, *overrides = example.words
    args, asked = parse(resolve(name, overrides))
    assert {dest: value for dest, value in asked.items() if not same(args, dest, value)}.keys() <= SET_BY_SLIME


def same(args, dest, value):
    found = getattr(args, dest, "missing")
    found = found.name if isinstance(found, Enum) else found
    return found in (value, *one_of(value)) or (not value and not found)


def one_of(value):
    """Megatron takes some values as lists, and a list of one as its item."""
    return value if isinstance(value, list) and len(value) == 1 else []
