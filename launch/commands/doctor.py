"""Check this machine and a recipe before a launch; each finding says what to do.

slime-swe doctor recipe=tiny_cpu
slime-swe doctor recipe=tiny_cpu run.dir=/scratch/runs --json

The exit code is 0 where nothing stands in the way, and 1 where a launch would fail; warnings don't count.
"""

from __future__ import annotations

import argparse
import dataclasses

from launch.choice import DEFAULT_RECIPE, add_recipe_arguments, split_recipe
from launch.config import assemble
from launch.doctor.finding import Finding
from launch.doctor.machine import Machine
from launch.doctor.show import show
from launch.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)


def run(options: argparse.Namespace) -> int:
    name, overrides = split_recipe(options.overrides)
    recipe = assemble(name or DEFAULT_RECIPE, overrides)
    from launch.doctor.runner import examine, passes  # imports plug-ins, engines and sandboxes: for this command only

    findings: list[Finding] = []
    try:
        for finding in examine(recipe, Machine()):
            findings.append(finding)
    finally:  # a check that is interrupted, or meets a bug, takes nothing along of what was found before it
        if options.json:
            print_json({"ok": passes(findings), "findings": [dataclasses.asdict(finding) for finding in findings]})
        else:
            show(findings)
    return 0 if passes(findings) else 1
