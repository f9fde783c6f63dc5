"""All checks in the order of the report, and which engine wants which."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from launch.doctor.chat import check_chat
from launch.doctor.checkpoint import check_checkpoint
from launch.doctor.converted import check_converted
from launch.doctor.disk import check_model_folder, check_run_folder
from launch.doctor.finding import Finding, Status, failure, skipped
from launch.doctor.gpus import check_gpus
from launch.doctor.limits import check_capacity, check_limits
from launch.doctor.machine import Machine
from launch.doctor.network import check_ports, check_ray
from launch.doctor.nvlink import check_links
from launch.doctor.rules import check_plan, check_rules
from launch.doctor.sandbox import check_sandbox
from launch.doctor.tasks import check_contamination, check_embedded, check_plug_ins, check_tasks
from launch.doctor.versions import check_embedded_versions, check_sources, check_versions
from recipes.base import Recipe

SLIME = frozenset({"slime"})
EMBEDDED = frozenset({"embedded"})
ALL = frozenset({"slime", "slime_cpu", "embedded"})


@dataclass(frozen=True)
class Check:
    """title: of the finding that says that this engine does without it. engines: that want it."""

    title: str
    run: Callable[[Recipe, Machine], Iterable[Finding]]
    engines: frozenset[str] = ALL


CHECKS = (
    Check("recipe", check_rules),
    Check("plan", check_plan, SLIME),
    Check("gpus", check_gpus, SLIME),
    Check("nvlink", check_links, SLIME),
    Check("machine", check_capacity),
    Check("limits", check_limits),
    Check("run folder", check_run_folder),
    Check("model folder", check_model_folder, SLIME),
    Check("sources", check_sources, frozenset({"slime", "slime_cpu"})),
    Check("versions", check_versions, SLIME),
    Check("versions", check_embedded_versions, EMBEDDED),
    Check("ports", check_ports),
    Check("ray", check_ray, SLIME),
    Check("checkpoint", check_checkpoint),
    Check("converted", check_converted, SLIME),
    Check("chat template", check_chat),
    Check("tasks", check_tasks),
    Check("overlap", check_contamination),
    Check("plug-ins", check_plug_ins),
    Check("engine", check_embedded, EMBEDDED),
    Check("sandbox", check_sandbox),
)


def examine(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """What every check finds. One that breaks is a failure, and the others still run."""
    if recipe.engine not in ALL:
        yield from check_rules(recipe, machine)
        return
    for check in CHECKS:
        if recipe.engine in check.engines:
            yield from _guarded(check, recipe, machine)
        elif not any(other.title == check.title and recipe.engine in other.engines for other in CHECKS):
            yield skipped(check.title, f"engine={recipe.engine} does without")


def _guarded(check: Check, recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Errors that say what is wrong become findings; a bug, of ours or of a user's module, keeps its traceback."""
    try:
        yield from check.run(recipe, machine)
    except (ValueError, RuntimeError, OSError, ImportError, SyntaxError) as error:
        fix = "change what it names; the other checks of this report may say more"
        yield failure(check.title, f"{error}" or type(error).__name__, fix)


def passes(findings: Iterable[Finding]) -> bool:
    """Whether a launch would get off the ground."""
    return all(finding.status != Status.FAILURE for finding in findings)
