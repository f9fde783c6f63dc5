"""Take a first look at a recipe's policy before a run is paid for: can it act, in which form, what should be changed?

slime-swe probe recipe=tiny_cpu
slime-swe probe recipe=qwen25_coder_7b serving.router_ip=127.0.0.1 serving.router_port=30000
slime-swe probe recipe=qwen25_coder_7b ... --limit 16 --samples 4 --output first_look

It plays a few of the recipe's training tasks with its own checkpoint, agent, sandboxes and sampling, trains nothing,
and keeps the episodes (docs/probe.md). The recipe's `serving` names a running SGLang; the embedded server is started.
The exit code is 0 where the policy can act, and 1 where it can't.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from slime_swe.errors import UserError
from slime_swe.launch.config import DEFAULT_RECIPE, add_recipe_arguments, resolve
from slime_swe.launch.output import print_json
from slime_swe.recipes.base import Recipe

TASKS, SAMPLES = 8, 2
CANNOT_ACT = 1  # exit code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)
    parser.add_argument("--limit", type=int, default=TASKS, metavar="N", help="tasks (default: %(default)s)")
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, metavar="N", help="episodes of each task (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="new folder (default: one of its own in run.dir)")


def run(options: argparse.Namespace) -> int:
    for name in ("limit", "samples"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} must be at least 1, got {getattr(options, name)}")
    from slime_swe.launch.probe import probe, show  # agents, sandboxes and tokenizers take long to import

    recipe = resolve(DEFAULT_RECIPE, options.overrides)
    folder = options.output or _folder(recipe)
    found = probe(recipe, folder, options.limit, options.samples)
    if options.json:
        print_json(found.as_json())
    else:
        show(found.look, found.advice, found.served, Console())
        print(f"\nThe episodes: slime-swe episodes {folder}")
    return 0 if found.look.acts else CANNOT_ACT


def _folder(recipe: Recipe) -> Path:
    when = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path(recipe.run.dir) / f"probe-{recipe.name}-{when}"
