"""The drills of one recipe, one after another, from a toy of its model in Megatron's format."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.files import replace_file
from slime_swe.launch.args import converted_folder
from slime_swe.launch.progress import Bar
from slime_swe.launch.rehearse import jobs
from slime_swe.launch.rehearse.faults import PARTS, Drill
from slime_swe.launch.rehearse.faults.drill import Play
from slime_swe.launch.rehearse.faults.outcome import Outcome, judge, record
from slime_swe.launch.rehearse.phases import Rehearsal
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.rehearse.scaled import CONTEXT
from slime_swe.launch.slime_cpu.process import follow
from slime_swe.recipes.base import Parallel, Recipe, Slime

GROUPS = 6  # of a rollout, which then takes a toy some seconds
CHECKED = {"rollout-health-check-first-wait": 0, "rollout-health-check-interval": 0.5}  # seconds


def drilled(recipe: Recipe, drill: Drill) -> Recipe:
    """A scaled recipe as it is drilled: a trainer rank and an engine, two of that which fails or one on each node, and
    one checkpoint kept.

    Without routing replay, for which PyPI's router would have to be replaced. SLiME looks for dead engines as often in
    a rollout of seconds as it does in one of minutes.
    """
    part = PARTS[drill.part]
    ranks, engines = (part.count if part.title == PARTS[name].title else 1 for name in ("rank", "engine"))
    ports = {} if part.nodes == 1 else {"num-gpus-per-node": 1}  # of a server are asked for on its own node
    alike = Parallel(max_tokens_per_gpu=CONTEXT, recompute=recipe.parallel.recompute)
    return replace(
        recipe,
        parallel=alike,
        cluster=replace(recipe.cluster, gpus_per_node=ranks, rollout_gpus=max(engines, part.nodes)),
        rollout=replace(recipe.rollout, batch_size=GROUPS),
        algorithm=replace(recipe.algorithm, routing_replay="none"),
        run=replace(recipe.run, keep_checkpoints=1, keep_exports=1),
        slime=Slime({**recipe.slime.flags, **CHECKED, **ports}),
    )


def play(own: Recipe, platform: Platform, folder: Path, drills: Sequence[Drill]) -> Iterator[Outcome]:
    """Each drill's outcome, as soon as it is there, and in `PART.MOMENT.json` in the folder.

    Raises `UserError` on GPUs, and for a model that no server has on a CPU.
    """
    if platform.name != "cpu":
        raise UserError(f"faults are drilled on a CPU alone: leave on={platform.name} out")
    why = platform.unserved(own)
    if why:
        raise UserError(f"faults of recipe={own.name} can't be drilled here: {why}")
    with Bar("drilling", len(drills) + 2) as progress:
        progress.say(f"{own.name} · {folder}")
        rehearsal = Rehearsal(own, platform, folder, progress)
        checkouts = rehearsal.checkouts
        if not converted_folder(rehearsal.recipe).exists():
            job = jobs.to_megatron(rehearsal.recipe, platform, rehearsal.folder, checkouts)
            asyncio.run(follow(job, rehearsal.folder / "conversion.log", lambda: None))
        progress.advance("toy in Megatron's format", keep=True)
        for drill in drills:
            recipe = drilled(rehearsal.recipe, drill)
            seen = Play(drill, recipe, platform, rehearsal.folder / drill.name, checkouts, progress.say).play()
            outcome = judge(seen, own.name, f"{datetime.now(UTC):%Y-%m-%d}")
            content = json.dumps(record(outcome), indent=2).encode() + b"\n"
            replace_file(rehearsal.folder / f"{drill.name}.json", content)
            progress.advance(f"{drill.name}: {outcome.ending}, {len(outcome.broken)} promises broken", keep=True)
            yield outcome
