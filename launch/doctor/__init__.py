"""`slime-swe doctor`: checks of this machine and a recipe, before a launch.

A check takes (recipe, machine), asks the `Machine`, and yields `Finding`s, each with what to do about it. `CHECKS`
names all of them; `examine` makes those that the recipe's engine wants, and `show` reports what they found. Adding one
is a function in a file here and its name in `CHECKS`, which an engine gives in `Engine.doctor`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slime_swe.dotted import load_registered
from slime_swe.errors import InfrastructureError
from slime_swe.launch.engines import engine_of
from slime_swe.recipes.base import Recipe


class Status(StrEnum):
    """A failure stops a launch; a warning makes it slower, riskier or untested; skipped means not looked at."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line of the report. `fix` says what to do; only a warning or a failure has one.

    `command` does it, pasted into a shell; it may have several lines.
    """

    status: Status
    check: str
    message: str
    fix: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        wants_fix = self.status in (Status.WARNING, Status.FAILURE)
        assert bool(self.fix) == wants_fix, (self.check, self.status, self.message, self.fix)


ok, warning = partial(Finding, Status.OK), partial(Finding, Status.WARNING)
failure, skipped = partial(Finding, Status.FAILURE), partial(Finding, Status.SKIPPED)

WIDTH = 100
MARKS = {Status.OK: "[green]ok[/]", Status.WARNING: "[yellow]warning[/]", Status.FAILURE: "[bold red]failure[/]",
         Status.SKIPPED: "[dim]skipped[/]"}  # fmt: skip


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print what was found, after each warning and failure what to do about it, and at the end commands to paste."""
    console = console or Console()
    console.width = min(console.width, WIDTH)
    table = Table(box=SIMPLE, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        below = " (command below)" if finding.command else ""
        text = escape(finding.message) + (f"\n[cyan]→ {escape(finding.fix)}{below}[/]" if finding.fix else "")
        table.add_row(MARKS[finding.status], finding.check, text)
    console.print(table)
    for finding in findings:
        if finding.command:
            console.print(f"# {finding.check}\n{finding.command}\n", markup=False, highlight=False, soft_wrap=True)
    console.print(summary(findings))


def summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.status for finding in findings)
    failures, warnings = counts[Status.FAILURE], counts[Status.WARNING]
    verdict = "A launch would fail" if failures else "Nothing stands in the way of a launch"
    counted = (
        f"{failures} failure{'s'[failures == 1 :]}, {warnings} warning{'s'[warnings == 1 :]}, {counts[Status.OK]} ok"
    )
    return f"{verdict}: {counted}."


# `Machine`: how checks ask this machine. Whatever it answers, a question ends after a while.
MAX_BYTES = 1 << 20  # of an answer: nothing that is asked for here says more


class MachineError(InfrastructureError):
    """A program is missing, fails, or doesn't answer; the message says which and what it printed."""


@dataclass(frozen=True)
class Machine:
    """This machine, which checks ask by running commands. seconds: how long any command may take to answer."""

    seconds: float = 15.0

    def has(self, program: str) -> bool:
        return shutil.which(program) is not None

    def ask(self, *command: str) -> str:
        """Run a command; return its output, errors included. Raises `MachineError` unless it exits with 0 in time."""
        asked = " ".join(command)
        if not self.has(command[0]):
            raise MachineError(f"there is no program {command[0]!r} on PATH")
        with tempfile.TemporaryFile() as output:  # a pipe would be held open by what the command leaves behind
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_BYTES, MAX_BYTES)),
                )
            except OSError as error:
                raise MachineError(f"`{asked}` can't be run: {error.strerror}") from error
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.seconds)
            code = process.poll()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it started
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        if code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that the kernel holds is left to it
                process.wait(1.0)
            raise MachineError(f"`{asked}` has not answered within {self.seconds:g} s")
        if code != 0:
            raise MachineError(f"`{asked}` failed (exit code {code}): {' '.join(text.split())[-300:]}")
        return text


CHECKS = {  # in the order of the report
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
