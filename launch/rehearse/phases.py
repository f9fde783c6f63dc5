"""The phases of a rehearsal, one after another, each a process or a few; what they leave behind is `Evidence`."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from slime_swe.data_sources.registry import load_tasks
from slime_swe.launch.engines import require_legal
from slime_swe.launch.model import converted_folder
from slime_swe.launch.progress import Bar
from slime_swe.launch.ray.node import free_ports
from slime_swe.launch.rehearse import jobs
from slime_swe.launch.rehearse.differences import Difference, differences
from slime_swe.launch.rehearse.evidence import ROLLOUTS, Evidence, Reference, Trainer, read_rollouts, read_steps
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.rehearse.router import Router, serve
from slime_swe.launch.rehearse.toy import EPISODES as SCALED_EPISODES
from slime_swe.launch.rehearse.toy import GROUPS, end_replies, one_rank, scaled, shape_keys, write_toy
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
from slime_swe.rollout.records import EPISODES, write_version_spans
from slime_swe.rollout.retention import TRACKER, saved
from slime_swe.sample import Sample

PHASES = ("toy", "conversion", "rollouts", "alone", "resume", "export")


@dataclass
class Rehearsal:
    """One recipe's, in a folder of its own. `recipe` is the one that is rehearsed.

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
        """Every phase, those beside each other that need nothing of each other: most of one is the start of processes.

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
        """What the phases have left in the folder."""
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
        """The job that trains on what `source`, or else the rehearsal's own run, has dumped."""
        run = self.run_of(name)
        return jobs.replay_job(recipe, self.platform, run, self.checkouts, source or self.source, resume=resume)

    def leave_last(self) -> None:
        """A copy of the run's checkpoints without the last."""
        source, target = (self.run_of(name) / CHECKPOINTS for name in ("rollouts", "resume"))
        last = self._newest(source)
        shutil.copytree(source, target, ignore=lambda folder, names: [last.name] if Path(folder) == source else [])
        (target / TRACKER).write_text(str(max(saved(target))), encoding="ascii")

    async def train(self, name: str, job: Job) -> None:
        await self._follow(name, job)
        self.progress.advance(f"{name}: {len(list(job.directory.glob('dumps/step_*.pt')))} steps", keep=True)

    def left(self, name: str) -> Trainer:
        """What a run of the trainer has left."""
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


# What a trainer's log says of it: Megatron's table of its arguments, and its count of each rank's parameters.
_ARGUMENT = re.compile(r"^(?:\(.*?\)\s)?\s{2}(\w+) \.{2,} ?(.*)$")
_COUNTED = re.compile(r"number of parameters on \(tensor, pipeline\) model parallel rank \((\d+), (\d+)\): (\d+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def arguments(log: str) -> dict[str, str]:
    """Attribute -> its value as text, as Megatron prints them once all are final."""
    lines = _COLOURS.sub("", log).splitlines()
    return {match[1]: match[2] for line in lines if (match := _ARGUMENT.match(line))}


def parameters(log: str) -> dict[tuple[int, int], int]:
    """Rank of tensor and of pipeline parallelism -> parameters, those of its experts among them."""
    return {(int(tp), int(pp)): int(count) for tp, pp, count in _COUNTED.findall(_COLOURS.sub("", log))}


# Batches of random tokens in the format of SLiME's dumps, to train on where no server can sample from the model.
#
# They are no rollouts: there is no agent, no sandbox and no reward in them. Their log-probabilities, and experts where
# the recipe replays them, are those that Transformers computes with the toy's weights.
LEAST, MOST, PROMPT = 200, 400, 100  # tokens of a sample, and of its prompt


def write_batches(recipe: Recipe, config: dict[str, Any], folder: Path) -> None:
    """One for each rollout of the recipe, all of the first weights."""
    model, generator = Reference(config, Path(recipe.model.checkpoint)), torch.Generator().manual_seed(recipe.run.seed)
    for number in range(recipe.run.num_rollouts):
        samples = [_sample(recipe, model, generator, number, place) for place in range(GROUPS * SCALED_EPISODES)]
        path = folder / ROLLOUTS.format(rollout_id=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"rollout_id": number, "samples": [sample.to_dict() for sample in samples]}, path)


def _sample(recipe: Recipe, model: Reference, generator: torch.Generator, number: int, place: int) -> Sample:
    length = int(torch.randint(LEAST, MOST, (), generator=generator))
    tokens = torch.randint(recipe.model.shape.vocab, (length,), generator=generator).tolist()
    found, first = model.forward(tokens), number * GROUPS * SCALED_EPISODES
    sample = Sample(index=first + place, group_index=number * GROUPS + place // SCALED_EPISODES, metadata={})
    sample.tokens, sample.response_length = tokens, length - PROMPT
    sample.loss_mask = [1] * sample.response_length
    sample.rollout_log_probs = found.log_probs_T[PROMPT - 1 :].tolist()
    sample.reward, sample.status = float(torch.rand((), generator=generator)), Sample.Status.COMPLETED
    write_version_spans(sample, [("1", sample.response_length)])
    if recipe.algorithm.routing_replay == "rollout":
        layers = recipe.model.shape.megatron["num_layers"]
        chosen = next(iter(found.experts.values()))
        table = torch.zeros(length - 1, layers, chosen.shape[-1], dtype=torch.int32)
        for layer, experts in found.experts.items():
            table[:, layer] = experts[: length - 1].int()
        sample.rollout_routed_experts = table
    return sample
