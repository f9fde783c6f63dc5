"""Where the agents' commands run: what that wants from this machine, and one sandbox opened for real."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator

from slime_swe.errors import UserError
from slime_swe.launch.doctor.finding import Finding, failure, ok, warning
from slime_swe.launch.doctor.machine import Machine, MachineError
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.sandbox import SandboxError, open_sandbox
from slime_swe.rollout.sandbox.base import Requirement
from slime_swe.rollout.sandbox.pool import make_backend


def check_sandbox(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Only what this recipe's sandbox needs."""
    name = recipe.rollout.sandbox
    backend = make_backend(name)
    for requirement in backend.requirements:
        yield _checked(requirement, machine)
    if backend.isolates == "never":
        found = f"rollout.sandbox={name} has none of ours: {backend.unprotected}"
        yield warning("isolation", found, "docs/sandboxes.md compares them")
    yield _opened(name)


def _checked(requirement: Requirement, machine: Machine) -> Finding:
    try:
        printed = machine.ask(*requirement.argv).strip()
    except MachineError as error:
        fix = requirement.fix if machine.has(requirement.argv[0]) else requirement.install
        return (failure if requirement.fatal else warning)(requirement.name, str(error), fix or requirement.install)
    return ok(requirement.name, requirement.works or printed)


def _opened(name: str) -> Finding:
    """A sandbox that opens, runs `true` and goes; one that opens without isolation says so in a Python warning."""
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
