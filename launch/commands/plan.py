"""Say whether a recipe is legal, whether it fits, how long a step takes and what limits it; no GPU is needed.

slime-swe plan recipe=qwen25_coder_7b
slime-swe plan recipe=qwen25_coder_32b parallel.tp=4 cluster.nodes=2
slime-swe plan recipe=qwen3_coder_30b_a3b --assume context=0.3 --assume turn_seconds=5
"""

from __future__ import annotations

import argparse

from slime_swe.launch.config import DEFAULT_RECIPE, add_recipe_arguments, assemble
from slime_swe.launch.output import print_json
from slime_swe.launch.plan import assume
from slime_swe.launch.plan.plan import document, make_plan, propose, show
from slime_swe.launch.plan.timing import with_outlook

REFUSED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)
    parser.add_argument(
        "--assume",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a figure that no recipe states, such as a measured one: see docs/planner.md",
    )


def run(options: argparse.Namespace) -> int:
    """Show the plan, and return 0 where the recipe can run and 1 where it can't."""
    recipe, assumed = assemble(DEFAULT_RECIPE, options.overrides), assume(options.assume)
    plan = with_outlook(make_plan(recipe, assumed), recipe)
    proposals = propose(plan, recipe)
    if options.json:
        print_json(document(plan, proposals))
    else:
        show(plan, proposals)
    return 0 if plan.fits else REFUSED
