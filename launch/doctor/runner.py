"""All checks in the order of the report; each engine says which of them it wants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slime_swe.dotted import load_registered
from slime_swe.launch.doctor.finding import Finding, Machine, Status, failure, skipped
from slime_swe.launch.engines import engine_of
from slime_swe.recipes.base import Recipe

CHECKS = {  # in the order of the report; each takes (recipe, machine) and yields findings
    "recipe": "slime_swe.launch.doctor.recipe.check_rules",
    "plan": "slime_swe.launch.doctor.recipe.check_plan",
    "gpus": "slime_swe.launch.doctor.gpus.check_gpus",
    "nvlink": "slime_swe.launch.doctor.gpus.check_links",
    "machine": "slime_swe.launch.doctor.capacity.check_capacity",
    "limits": "slime_swe.launch.doctor.capacity.check_limits",
    "run folder": "slime_swe.launch.doctor.capacity.check_run_folder",
    "model folder": "slime_swe.launch.doctor.capacity.check_model_folder",
    "sources": "slime_swe.launch.doctor.versions.check_sources",
    "versions": "slime_swe.launch.doctor.versions.check_versions",
    "packages": "slime_swe.launch.doctor.versions.check_packages",
    "ports": "slime_swe.launch.doctor.network.check_ports",
    "fields": "slime_swe.launch.doctor.served.check_fields",
    "ray": "slime_swe.launch.doctor.network.check_ray",
    "proxies": "slime_swe.launch.doctor.network.check_proxies",
    "interface": "slime_swe.launch.doctor.network.check_interface",
    "checkpoint": "slime_swe.launch.doctor.checkpoint.check_checkpoint",
    "converted": "slime_swe.launch.doctor.checkpoint.check_converted",
    "chat template": "slime_swe.launch.doctor.checkpoint.check_chat",
    "tasks": "slime_swe.launch.doctor.recipe.check_tasks",
    "overlap": "slime_swe.launch.doctor.recipe.check_contamination",
    "plug-ins": "slime_swe.launch.doctor.recipe.check_plug_ins",
    "engine": "slime_swe.launch.doctor.recipe.check_embedded",
    "sandbox": "slime_swe.launch.doctor.recipe.check_sandbox",
}


def examine(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Yield what each check of the recipe's engine finds. One that breaks is a failure, and the others still run.

    Raises `UserError` for an unknown engine.
    """
    wanted = engine_of(recipe).doctor
    for name in dict.fromkeys((*CHECKS, *wanted)):
        if name in wanted:
            yield from guarded(name, recipe, machine)
        else:
            yield skipped(name, f"engine={recipe.engine} does without")


def guarded(name: str, recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Run one check. An error that says what is wrong becomes a finding; a bug, ours or a user's, is raised."""
    try:
        yield from load_registered(name, CHECKS, "doctor")(recipe, machine)
    except (ValueError, RuntimeError, OSError, ImportError, SyntaxError) as error:
        fix = "change what it names; the other checks of this report may say more"
        yield failure(name, f"{error}" or type(error).__name__, fix)


def passes(findings: Iterable[Finding]) -> bool:
    """Say whether a launch would get off the ground."""
    return all(finding.status != Status.FAILURE for finding in findings)
