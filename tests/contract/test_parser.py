"""Every recipe's command line through SLiME's own parser and checks."""

from __future__ import annotations

import json
import sys
from enum import Enum
from types import SimpleNamespace

import pytest
from tests.recipes.changes import changed, variant

from slime_swe.launch.config import resolve
from slime_swe.launch.slime.checkouts import Checkouts
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
        return parse_args(), {name: value for group in asked.values() for name, value in group.items()}

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


SET_BY_SLIME = {
    "load",  # the converted checkpoint, where there is none to resume from
    "use_routing_replay",  # by use_rollout_routing_replay
}


def same(args, dest, value):
    found = getattr(args, dest, "missing")
    found = found.name if isinstance(found, Enum) else found
    return found in (value, *one_of(value)) or (not value and not found)


def one_of(value):
    """Megatron takes some values as lists, and a list of one as its item."""
    return value if isinstance(value, list) and len(value) == 1 else []
