"""Where the agents' commands run: what that wants from this machine, and one sandbox opened for real."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator

from data_sources.arguments import ArgumentError
from launch.doctor.finding import Finding, failure, ok, warning
from launch.doctor.machine import Machine, MachineError
from recipes.base import Recipe
from rollout.sandbox import SandboxError, open_sandbox
from rollout.sandbox.nursery import UNPROTECTED

BUBBLEWRAP = ("local", "bubblewrap", "overlay")
DEAF = "the daemon does not answer: start it (`sudo systemctl start docker`) and be in the group docker"


def check_sandbox(recipe: Recipe, machine: Machine) -> Iterator[Finding]:
    """Only what this recipe's sandbox needs."""
    name = recipe.rollout.sandbox
    kind = name.partition(":")[0]
    if kind in BUBBLEWRAP:
        yield _bubblewrap(machine)
        yield _namespaces(machine)
    if kind == "docker":
        yield _docker(machine)
    if kind == "subprocess":
        yield warning("isolation", f"rollout.sandbox=subprocess has none: {UNPROTECTED}", "set rollout.sandbox=local")
    yield _opened(name)


def _bubblewrap(machine: Machine) -> Finding:
    try:
        return ok("bubblewrap", machine.ask("bwrap", "--version").strip())
    except MachineError as error:
        return warning("bubblewrap", str(error), "sudo apt-get install bubblewrap")


def _namespaces(machine: Machine) -> Finding:
    """What `bwrap` stands on; distributions and clusters forbid it in three different places."""
    try:
        machine.ask("unshare", "--user", "--map-root-user", "true")
    except MachineError as error:
        return warning(
            "user namespaces",
            str(error),
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), "
            "kernel.unprivileged_userns_clone=1 (Debian) or user.max_user_namespaces=10000; in a container, "
            "--security-opt seccomp=unconfined",
        )
    return ok("user namespaces", "this user may make them")


def _docker(machine: Machine) -> Finding:
    try:
        return ok("docker", f"server {machine.ask('docker', 'version', '--format', '{{.Server.Version}}').strip()}")
    except MachineError as error:
        return failure("docker", str(error), "install docker.io" if not machine.has("docker") else DEAF)


def _opened(name: str) -> Finding:
    """A sandbox that opens, runs `true` and goes; one that opens without isolation says so in a Python warning."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            code = asyncio.run(_run_true(name))
        except (SandboxError, ArgumentError) as error:
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
