"""One rehearsal from beginning to end: a toy of the recipe's model is made, phases run on a platform, and what they
leave behind is checked.

Read this file first: `rehearse` is the whole of it, `Rehearsal` its phases, each a process or a few, and `Outcome` what
people see. Then, in the order in which a rehearsal comes to them: `platforms` (what differs between a CPU and GPUs),
`toy` (the model, its tokenizer, and the recipe made small), `jobs` (the command lines, and each flag that is not the
recipe's own), `router` and `tool` (programs that stand in for others on a CPU), `evidence` (what is left in the
folder), `checks` (a figure and a limit each, from the evidence alone). `proof` remembers that a rehearsal has passed;
`faults` lets a part of the same run fail.

The command line of a rehearsal is the recipe's own, but for the flags whose reason `jobs` states: any other difference
is an error. A check that can't be made is no success: it says why.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.table import Table

from slime_swe.data_sources.registry import load_tasks
from slime_swe.launch.engines import require_legal
from slime_swe.launch.model import converted_folder
from slime_swe.launch.output import duration, table_console
from slime_swe.launch.progress import Bar
from slime_swe.launch.ray.network import free_ports
from slime_swe.launch.rehearse import jobs
from slime_swe.launch.rehearse.checks import Check, run_checks
from slime_swe.launch.rehearse.evidence import (
    ROLLOUTS,
    Evidence,
    Trainer,
    arguments,
    parameters,
    read_rollouts,
    read_steps,
)
from slime_swe.launch.rehearse.jobs import Difference, differences
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.rehearse.router import Router, serve
from slime_swe.launch.rehearse.toy import end_replies, layout_of, one_rank, scaled, shape_keys, write_batches, write_toy
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.paths import CHECKPOINTS, EXPORTS, LOG, TENSORBOARD
from slime_swe.launch.slime.render import render
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu.process import follow
from slime_swe.launch.slime_cpu.run import scalars
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.agents.native import load_template, opening
from slime_swe.rollout.chat.template import ChatTemplate
from slime_swe.rollout.chat.tool_formats import tool_format
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.records import EPISODES
from slime_swe.rollout.retention import TRACKER, saved

PHASES = ("toy", "conversion", "rollouts", "alone", "resume", "export")


def rehearse(recipe: Recipe, platform: Platform, folder: Path) -> Outcome:
    """Play every phase in `folder`, and check what they leave there.

    Raises `InfrastructureError` where a phase ends before it is done, and `UserError` for a flag of the rehearsal that
    differs from the recipe's without a stated reason.
    """
    started = time.monotonic()
    with platform.computing(), Bar("rehearsing", len(PHASES) + 1) as progress:
        progress.say(f"{recipe.name} · {folder}")
        rehearsal = Rehearsal(recipe, platform, folder, progress)
        differing = rehearsal.differences()
        evidence = asyncio.run(rehearsal.play())
        checking = time.monotonic()
        checks = tuple(run_checks(evidence))
        phases = {**rehearsal.seconds, "checks": time.monotonic() - checking}
        progress.advance("checks", keep=True)
    return Outcome(
        recipe=recipe.name,
        where=platform.name,
        when=f"{datetime.now(UTC):%Y-%m-%d}",
        seconds=round(time.monotonic() - started, 1),
        phases={name: round(value, 1) for name, value in phases.items()},
        checks=checks,
        differing_flags=tuple(_without_folders(one, folder) for one in differing),
        smaller=layout_of(recipe, platform).halved,
        template=_shortened(rehearsal.template, folder),
        flags=jobs.digest_of_flags(recipe),
    )


@dataclass
class Rehearsal:
    """One recipe's rehearsal, in a folder of its own. `recipe` is the one that is rehearsed.

    Raises `UserError` where its layout, made small, breaks a rule.
    """

    own: Recipe
    platform: Platform
    folder: Path
    progress: Bar
    checkouts: Checkouts = field(default_factory=SLIME.checkouts)

    def __post_init__(self) -> None:
        started = time.monotonic()
        self.folder = self.folder.resolve()
        self.toy = self.folder / "toy"
        made = write_toy(self.own.model, self.platform, self.toy)
        self.template, self.config = made["template"], made["config"]
        shape = shape_keys(self.config, self.own.model)
        self.recipe = scaled(self.own, self.platform, self.toy, shape, self.folder)
        require_legal(self.recipe)
        self._end_replies()
        if self.platform.routed(self.own):
            (port,) = free_ports(1, jobs.HOST)
            serving = replace(self.recipe.serving, router_ip=jobs.HOST, router_port=port)
            self.recipe = replace(self.recipe, serving=serving)
        self.seconds = {"toy": time.monotonic() - started}
        self.progress.advance(f"toy: {self.own.model.config['model_type']}, template {self.template}", keep=True)

    def _end_replies(self) -> None:
        template = self._proven()
        format = tool_format(self.recipe.model.tool_calls)
        first = opening(load_tasks(self.recipe.data.train[0])[0], self.recipe.rollout.system_prompt, format)
        prompt = template.first_prompt(first)
        end_replies(self.toy, self.config, template.stop_token_ids, prompt)

    def _proven(self) -> ChatTemplate:
        model = self.recipe.model
        return load_template(str(self.toy), model.chat_template, tool_format(model.tool_calls))

    def differences(self) -> list[Difference]:
        own = render(self.own, self.run_of("rollouts"), checkouts=self.checkouts)
        rehearsed = jobs.train_job(self.recipe, self.platform, self.run_of("rollouts"), self.checkouts)
        return differences(own, rehearsed, self.platform.stand_ins(self.recipe))

    async def play(self) -> Evidence:
        """Play every phase, at once where they need nothing of each other: most of one is the start of processes.

        Raises `InfrastructureError` where one ends before it is done.
        """
        await self._follow("conversion", jobs.to_megatron(self.recipe, self.platform, self.folder, self.checkouts))
        converted = self._newest(converted_folder(self.recipe))
        await asyncio.gather(self.train("rollouts", self._layout_job()), self._to_hugging_face("conversion", converted))
        self.leave_last()
        last = self._newest(self.run_of("rollouts") / CHECKPOINTS)
        await asyncio.gather(
            self.train("resume", self.replay(self.recipe, "resume", resume=True)),
            self.train("alone", self.replay(one_rank(self.recipe), "alone")),
            self._to_hugging_face("export", last),
        )
        return self.evidence()

    def evidence(self) -> Evidence:
        """Read what the phases have left in the folder."""
        run, unserved = self.run_of("rollouts"), self.platform.unserved(self.own)
        asked = jobs.asked(self.recipe, self.platform, run)
        return Evidence(
            recipe=self.recipe,
            limits=self.platform.limits,
            asked={name: value for group in asked.values() for name, value in group.items()},
            toy=self.toy,
            config=self.config,
            ends=self._proven().stop_token_ids,
            rollouts=read_rollouts(self.source),
            records=list(read_records(run / EPISODES)),
            layout=self.left("rollouts"),
            alone=self.left("alone"),
            resumed=self.left("resume"),
            converted=self.folder / "conversion",
            saved=self.folder / "export",
            skipped={"rollouts": unserved} if unserved else {},
        )

    @cached_property
    def source(self) -> Path:
        """The run whose dumped rollouts are trained on: its own, or batches of random tokens."""
        return self.run_of("batch" if self.platform.unserved(self.own) else "rollouts")

    def _layout_job(self) -> Job:
        if self.source == self.run_of("rollouts"):
            return jobs.train_job(self.recipe, self.platform, self.source, self.checkouts)
        write_batches(self.recipe, self.config, self.source)
        return self.replay(self.recipe, "rollouts")

    async def _to_hugging_face(self, name: str, source: Path) -> None:
        target = self.folder / name
        await self._follow(name, jobs.to_hugging_face(self.recipe, self.platform, source, target, self.checkouts))
        self.progress.advance(f"{name}: {source.relative_to(self.folder)} -> Hugging Face", keep=True)

    def _newest(self, checkpoints: Path) -> Path:
        name = (checkpoints / TRACKER).read_text(encoding="ascii").strip()
        return checkpoints / (name if name == "release" else f"iter_{int(name):07d}")

    def replay(self, recipe: Recipe, name: str, *, source: Path | None = None, resume: bool = False) -> Job:
        """Make the job that trains on what `source`, or else the rehearsal's own run, has dumped."""
        run = self.run_of(name)
        return jobs.replay_job(recipe, self.platform, run, self.checkouts, source or self.source, resume=resume)

    def leave_last(self) -> None:
        """Copy the run's checkpoints, without the last, to the run that is resumed."""
        source, target = (self.run_of(name) / CHECKPOINTS for name in ("rollouts", "resume"))
        last = self._newest(source)
        shutil.copytree(source, target, ignore=lambda folder, names: [last.name] if Path(folder) == source else [])
        (target / TRACKER).write_text(str(max(saved(target))), encoding="ascii")

    async def train(self, name: str, job: Job) -> None:
        await self._follow(name, job)
        self.progress.advance(f"{name}: {len(list(job.directory.glob('dumps/step_*.pt')))} steps", keep=True)

    def left(self, name: str) -> Trainer:
        """Read what a run of the trainer has left."""
        run = self.run_of(name)
        log = (run / LOG).read_text(encoding="utf-8", errors="replace")
        exports = {int(path.name): path for path in (run / EXPORTS).iterdir() if path.name.isdigit()}
        figures = scalars(run / TENSORBOARD)
        return Trainer(read_steps(run), figures, exports, arguments(log), parameters(log))

    async def _follow(self, name: str, job: Job) -> None:
        job.directory.mkdir(parents=True, exist_ok=True)
        job.write_files()
        log = job.directory / (LOG if job.directory.name == name else f"{name}.log")
        started = time.monotonic()
        async with AsyncExitStack() as stack:
            if self.platform.routed(self.own) and name == "rollouts":
                runner, _ = await serve(Router(), jobs.HOST, self.recipe.serving.router_port)
                stack.push_async_callback(runner.cleanup)
            await follow(job, log, self._polling(name, job))
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - started

    def _polling(self, name: str, job: Job) -> Callable[[], None]:
        pattern = ROLLOUTS.replace("{rollout_id}", "*")
        seen = [0]

        def poll() -> None:
            count = len(list(job.directory.glob(pattern)))
            if count > seen[0]:
                seen[0] = count
                self.progress.say(f"{name}: rollout {count} played")

        return poll

    def run_of(self, name: str) -> Path:
        return self.folder / name


# The outcome of a rehearsal: one JSON document, or tables for people.
MARKS = {True: "[green]ok[/]", False: "[red]FAILED[/]", None: "[yellow]not made[/]"}


@dataclass(frozen=True)
class Outcome:
    """The outcome of a rehearsal.

    smaller: parts of the layout that are smaller than the recipe's. template: where the toy's chat template is from.
    where: `cpu` or `gpu`. when: the day, in UTC. phases: seconds of each, some of them beside each other. flags:
    `jobs.digest_of_flags` of the recipe at that time.
    """

    recipe: str
    where: str
    when: str
    seconds: float
    phases: dict[str, float]
    checks: tuple[Check, ...]
    differing_flags: tuple[Difference, ...]
    smaller: tuple[str, ...]
    template: str
    flags: str = ""

    @property
    def ok(self) -> bool:
        return not any(check.ok is False for check in self.checks)


def document(outcome: Outcome) -> dict[str, Any]:
    """Return what is printed and kept. JSON has no infinity and no NaN: such a value is a string."""
    found = {"ok": outcome.ok, **asdict(outcome)}
    found["checks"] = [{**check, "value": _written(check["value"])} for check in found["checks"]]
    return found


def _written(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def show(outcome: Outcome) -> None:
    console = table_console()
    console.print(_flags(outcome.differing_flags))
    for line in outcome.smaller:
        console.print(f"smaller than the recipe's: {line}", markup=False, highlight=False)
    console.print(f"chat template: {outcome.template}", markup=False, highlight=False)
    console.print(_checks(outcome.checks))
    for check in outcome.checks:
        if check.ok is not True:
            what = "look at" if check.ok is False else "not made:"
            console.print(f"{check.name}: {what} {check.look_at}", markup=False, highlight=False)
    phases = " · ".join(f"{name} {duration(seconds)}" for name, seconds in outcome.phases.items())
    console.print(f"{duration(outcome.seconds)}: {phases}", markup=False, highlight=False)


def _checks(checks: Sequence[Check]) -> Table:
    table = Table("check", "", "value", "limit")
    for check in checks:
        table.add_row(check.name, MARKS[check.ok], figure(check.value), figure(check.limit))
    return table


def _flags(found: Sequence[Difference]) -> Table:
    table = Table("differing flag", "recipe", "rehearsed", title="The recipe's own command line, but for")
    for reason in dict.fromkeys(one.reason for one in found):
        table.add_row(f"[bold]{reason}[/]", end_section=False)
        for one in (one for one in found if one.reason == reason):
            table.add_row(one.flag, _short(one.own), _short(one.rehearsed))
        table.add_section()
    return table


def figure(value: float | None) -> str:
    """Format a value with two digits. Near 1 they are those of the distance to it: a share of 0.999 is not all."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if 0 < abs(1 - value) < 0.1:
        return f"{1 - float(f'{1 - value:.2g}'):.12g}"
    return f"{value:.0f}" if value in (0, 1) or (value > 1 and value == round(value)) else f"{value:.2g}"


def _short(text: str | None) -> str:
    if text is None:
        return "–"
    return text or "set" if len(text) <= 40 else f"…{text[-39:]}"


def _without_folders(one: Difference, folder: Path) -> Difference:
    own, rehearsed = (text and _shortened(text, folder) for text in (one.own, one.rehearsed))
    return Difference(one.flag, own, rehearsed, one.reason)


def _shortened(text: str, folder: Path) -> str:
    """Write the rehearsal's folder as RUN and the current one as `.`, so that the text is the same on every machine."""
    return text.replace(str(folder.resolve()), "RUN").replace(str(Path.cwd()), ".")
