"""A recipe's job through the own parser of SLiME or its fork."""

from __future__ import annotations

import json
import sys
from enum import Enum
from types import SimpleNamespace

from slime_swe.launch.slime.render import attributes_of, render, sections, without_replaced
from tests.recipes.changes import changed


def parsed(recipe, parse_args, upstream, folder, monkeypatch, job_of=None):
    """What `parse_args` made of it, and the attributes that we asked for. The checkpoint is made up.

    job_of: the recipe and the folder of its run -> the job, where that is another than the recipe's own.
    """
    hopper = SimpleNamespace(major=9, minor=0)  # what Megatron's checks ask of the GPU
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: hopper)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device=None: (9, 0))
    recipe = changed(recipe, "model.folder", str(folder))
    checkpoint = folder / recipe.model.checkpoint
    converted = checkpoint.with_name(f"{checkpoint.name}_torch_dist")
    for made in (checkpoint, converted):
        made.mkdir(parents=True)
    (checkpoint / "config.json").write_text(json.dumps(recipe.model.config))
    (converted / "latest_checkpointed_iteration.txt").write_text("release")
    job_of = job_of or (lambda recipe, run: render(recipe, run, upstream=upstream, checkouts=upstream.checkouts()))
    job = job_of(recipe, folder / "run")
    job.write_files()
    monkeypatch.setattr(sys, "argv", ["train.py", *job.words])
    for variable, value in job.environment.items():
        monkeypatch.setenv(variable, value)
    asked = sections(recipe, (folder / "run").resolve(), resume=False, upstream=upstream)
    groups = without_replaced(recipe, asked, upstream).values()
    wanted = {name: value for group in groups for name, value in group.items()} | attributes_of(recipe, upstream)
    return parse_args(), wanted


def different(args, asked):
    """Attribute -> what was asked for, and what the parser made of it."""
    return {
        dest: (value, getattr(args, dest, "missing")) for dest, value in asked.items() if not same(args, dest, value)
    }


def same(args, dest, value):
    found = getattr(args, dest, "missing")
    found = found.name if isinstance(found, Enum) else found
    return found in (value, *one_of(value)) or (not value and not found)


def one_of(value):
    """Megatron takes some values as lists, and a list of one as its item."""
    return value if isinstance(value, list) and len(value) == 1 else []
