"""Check this machine and a recipe before a launch; each finding says what to do.

slime-swe doctor recipe=tiny_cpu
slime-swe doctor recipe=tiny_cpu run.dir=/scratch/runs --json

The exit code is 0 where nothing stands in the way, and 1 where a launch would fail; warnings don't count.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex

from slime_swe.launch.config import DEFAULT_RECIPE, add_recipe_arguments, assemble
from slime_swe.launch.doctor import Finding, Machine, examine, passes, show
from slime_swe.launch.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)


def run(options: argparse.Namespace) -> int:
    recipe = assemble(DEFAULT_RECIPE, options.overrides)
    from slime_swe.rollout.agents.base import agent_class

    findings: list[Finding] = []
    try:
        for finding in examine(recipe, Machine()):
            findings.append(finding)
    finally:  # a check that is interrupted, or meets a bug, takes nothing along of what was found before it
        if options.json:
            print_json({"ok": passes(findings), "findings": [dataclasses.asdict(finding) for finding in findings]})
        else:
            show(findings)
    acts = passes(findings) and agent_class(recipe.rollout.agent).calls_tools and not recipe.supervised
    if acts and not options.json:
        print(f"Can the policy act? Before a run: {shlex.join(['slime-swe', 'probe', *options.overrides])}")
    return 0 if passes(findings) else 1
