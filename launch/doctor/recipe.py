"""Checks of what a run would load first: the recipe's rules and plan, its task sets, plug-ins, agent and engine; and of
where the agents' commands run: what that wants from this machine, and one sandbox opened for real."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from slime_swe.data_sources.contamination import ContaminationError
from slime_swe.data_sources.corpora.corpus import NotFetched
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import HarnessOracle, Task
from slime_swe.dotted import load_object
from slime_swe.errors import UserError
from slime_swe.launch.doctor import Finding, Machine, MachineError, failure, ok, skipped, warning
from slime_swe.launch.engines import violations
from slime_swe.launch.images import images_command, needs_images, remedy, survey
from slime_swe.launch.plan import HOUR
from slime_swe.launch.preflight import check_overlap
from slime_swe.launch.slime.render import PLUG_INS
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.checks import lookup
from slime_swe.rollout.agents.base import agent_class
from slime_swe.sandbox import SandboxError, open_sandbox
from slime_swe.sandbox.base import Requirement
from slime_swe.sandbox.pool import make_backend, on_one_machine


def check_rules(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Report every rule that the recipe breaks."""
    broken = violations(recipe)
    for violation in broken:
        yield failure("recipe", violation.message, violation.fix)
    if not broken:
        yield ok("recipe", f"{recipe.name}: legal for engine={recipe.engine}")


def check_plan(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check that the recipe has the memory that it needs, and saves checkpoints often enough."""
    from slime_swe.launch.plan.plan import RARE, make_plan

    if violations(recipe):
        yield skipped("plan", "the recipe must be legal first")
        return
    plan = make_plan(recipe)
    for problem in plan.problems:
        yield failure("plan", problem.message, problem.fix)
    if plan.fits:
        yield ok("plan", f"fits: {'; '.join(str(budget) for budget in plan.budgets)}")
    if (kept := plan.checkpoints) is not None:
        hours = f"{kept.seconds / HOUR:.1f} hours between checkpoints; a kill loses at most {kept.lost / HOUR:.1f}"
        if kept.rare:
            yield warning("checkpoints", hours, RARE.partition(": ")[2])
        else:
            yield ok("checkpoints", hours)


def check_tasks(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Read every task set; tasks that bring a container image need a sandbox that takes one, and the images."""
    sets = [("data.train", spec) for spec in recipe.data.training_sets]
    sets += [(f"data.eval.{name}", spec) for name, spec in recipe.data.evaluation_sets.items()]
    found, all_read = list[Task](), True
    for key, spec in sets:
        try:
            tasks = load_tasks(spec)
        except NotFetched as error:
            all_read = False
            yield failure("tasks", f"{key}: {error}", "fetch it where there is a network", error.command)
        except UserError as error:
            yield failure("tasks", f"{key}: {error}", f"change {key}; `slime-swe tasks list` says what there is")
        else:
            yield ok("tasks", f"{key}: {len(tasks)} tasks of {spec}")
            found += tasks
        yield from _without_image(key, spec, recipe.rollout.sandbox, machine)
    if any(isinstance(task.oracle, HarnessOracle) for task in found):
        yield _harness(recipe.reward.harness_python or sys.executable, machine)
    elif not all_read:
        yield skipped("swebench", "the tasks must be here first")
    if any(task.workspace.image for task in found) and make_backend(recipe.rollout.sandbox).takes_images:
        yield _images([spec for _, spec in sets], found, recipe.rollout.sandbox)


def _without_image(key: str, spec: str, sandbox: str, machine: Machine) -> Iterator[Finding]:
    if not make_backend(sandbox).takes_images and needs_images(spec):
        found = f"tasks of {spec} bring a container image, and rollout.sandbox={sandbox} takes none"
        yield failure("tasks", f"{key}: {found}", remedy(machine))


def _harness(python: str, machine: Machine) -> Finding:
    """Check that `python` has the package that reads the logs of tasks in SWE-bench's form."""
    try:
        version = machine.ask(python, "-c", "from importlib.metadata import version; print(version('swebench'))")
    except MachineError:
        fix = "install it in an environment of its own, and set reward.harness_python=harness/bin/python"
        command = "python3 -m venv harness && harness/bin/pip install 'swebench>=5.0.2'"
        return failure("swebench", f"reads the logs of such tasks, and {python} does not have it", fix, command)
    return ok("swebench", f"{version.strip()} of {python}")


def _images(specs: Sequence[str], tasks: Sequence[Task], sandbox: str) -> Finding:
    """Check the images of the tasks. A run gets what is missing as it meets it, so only a disk that is too small stands
    in its way."""
    try:
        found = survey(tasks, sandbox)
    except (UserError, SandboxError) as error:
        return failure("images", f"which are here can't be told: {error}", "put right what it says")
    if not found.missing:
        return ok("images", str(found))
    command = images_command(specs, sandbox)
    if not found.fits:
        return failure("images", str(found), "make room, take a part of the tasks, or move the images", command)
    return warning("images", str(found), "get them before, or the run's episodes wait for them", command)


def check_contamination(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check that training shows nothing that is evaluated, but for pairs of tasks that are allowed."""
    try:
        comparison = check_overlap(recipe)
    except ContaminationError as error:
        yield failure("overlap", str(error), "change data.train or data.eval, or allow it by name")
    except UserError:
        yield skipped("overlap", "the task sets must be readable first")
    else:
        counts = f"{comparison.trained} training and {comparison.evaluated} evaluation tasks"
        yield ok("overlap", f"{counts} share nothing but the {len(comparison.allowed)} pairs that are allowed")


def check_plug_ins(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Import every function that is named by a dotted path, and what opens the agent."""
    paths = {key: path for key in PLUG_INS.values() if (path := lookup(recipe, key))}
    wrong = False
    for key, path in {**paths, "rollout.agent": recipe.rollout.agent}.items():
        try:
            agent_class(path) if key == "rollout.agent" else load_object(path, key)
        except (UserError, ImportError, SyntaxError) as error:
            wrong = True
            fix = f"change {key}, or start slime-swe in the folder that holds the module"
            yield failure("plug-ins", str(error), fix)
    if not wrong:
        yield ok("plug-ins", f"{len(paths)} functions and the agent {recipe.rollout.agent} import")


def check_embedded(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check the settings for what the embedded engine itself refuses before it starts."""
    from slime_swe.launch.engines.embedded import check_args  # torch takes seconds to import
    from slime_swe.launch.slime.render import to_args

    check_args(to_args(recipe, Path(recipe.run.dir)))
    yield ok("engine", "the embedded engine takes every setting")


def check_sandbox(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Check what this recipe's sandbox needs and open one; of those on a cluster's nodes, check one on this machine."""
    name = recipe.rollout.sandbox
    backend = make_backend(name)
    for requirement in backend.requirements:
        yield _checked(requirement, machine)
    if backend.isolates == "never":
        found = f"rollout.sandbox={name} has none of ours: {backend.unprotected}"
        yield warning("isolation", found, "docs/sandboxes.md compares them")
    yield _opened(on_one_machine(name))
    if backend.wraps:
        yield skipped("nodes", f"whether each node can have {name} sandboxes is seen when the run starts")


def _checked(requirement: Requirement, machine: Machine) -> Finding:
    try:
        printed = machine.ask(*requirement.argv).strip()
    except MachineError as error:
        fix = requirement.fix if machine.has(requirement.argv[0]) else requirement.install
        return (failure if requirement.fatal else warning)(requirement.name, str(error), fix or requirement.install)
    return ok(requirement.name, requirement.works or printed)


def _opened(name: str) -> Finding:
    """Open a sandbox, run `true` in it and close it; one that opens without isolation says so in a Python warning."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            code = asyncio.run(_run_true(name))
        except (SandboxError, UserError) as error:
            return failure("sandbox", str(error), "put right what it says, or choose another rollout.sandbox")
    unprotected = [str(entry.message) for entry in said if issubclass(entry.category, RuntimeWarning)]
    if code != 0:
        return failure("sandbox", f"`true` in a {name} sandbox ends with exit code {code}", "report this: it is a bug")
    if unprotected:
        return warning("sandbox", unprotected[0], "sudo apt-get install bubblewrap, and allow user namespaces")
    return ok("sandbox", f"a {name} sandbox opened and ran a command")


async def _run_true(name: str) -> int | None:
    async with open_sandbox(name, {"a.txt": "a"}) as sandbox:
        return (await sandbox.exec("true")).exit_code
