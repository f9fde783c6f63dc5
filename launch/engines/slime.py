"""The engine for GPUs: SLiME's own `train.py` as a Ray job."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import ClassVar

from slime_swe.errors import UserError
from slime_swe.journal import Journal
from slime_swe.launch.doctor.checkpoint import unfinished
from slime_swe.launch.engines import WHOLE_WEIGHTS, Engine, Start
from slime_swe.launch.model import checkpoint_folder, converted_folder
from slime_swe.launch.output import print_json
from slime_swe.launch.plan.plan import fit
from slime_swe.launch.progress import EVALUATED_ONLY, held, say_untrained
from slime_swe.launch.slime import flags
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.paths import CHECKPOINTS, EXPORTS, cut_back
from slime_swe.launch.slime.render import render
from slime_swe.launch.slime.upstream import SLIME, Upstream
from slime_swe.recipes import rules
from slime_swe.recipes.base import Data, Recipe
from slime_swe.recipes.checks import Violation, not_fixed
from slime_swe.rollout.alarms import Alarms
from slime_swe.rollout.metrics import why_untrained
from slime_swe.rollout.records import METRICS
from slime_swe.rollout.retention import INDEX, last_saved


class Slime(Engine):
    """SLiME, Megatron-core and SGLang on the GPUs of a Ray cluster, which is started here where there is none."""

    upstream: ClassVar[Upstream] = SLIME
    on_gpus = True
    on_cluster = True
    doctor = (
        *("recipe", "plan", "gpus", "nvlink", "machine", "limits", "run folder", "model folder", "sources"),
        *(
            "versions",
            "ports",
            "fields",
            "ray",
            "proxies",
            "interface",
            "checkpoint",
            "converted",
            "chat template",
            "tasks",
            "overlap",
            "plug-ins",
        ),
        "sandbox",
    )
    open_files = (8192, 65536)
    raises_open_files = True
    rehearsed = True

    def violations(self, recipe: Recipe) -> Iterable[Violation]:
        return chain(
            not_fixed(recipe, WHOLE_WEIGHTS), rules.violations(recipe), flags.violations(recipe, self.upstream)
        )

    def check(self, recipe: Recipe, start: Start) -> None:
        """Raise what would keep the recipe from running, before Ray or a GPU is touched."""
        if not start.ignore_plan and not (plan := fit(recipe)).fits:
            problems = "\n".join(f"  {problem}" for problem in plan.problems)
            raise UserError(
                f"the plan of {recipe.name} does not fit its cluster:\n{problems}\n`slime-swe plan` shows the figures "
                "and proposes a change; --ignore-plan starts it all the same"
            )
        self.upstream.require()
        _require_weights(recipe)
        self.job(recipe, Path(recipe.run.dir), resume=start.resume)

    def run(self, recipe: Recipe, folder: Path, start: Start) -> int:
        from slime_swe.launch.ray.jobs import run_job  # Ray takes seconds to import

        folder = folder.resolve()
        if start.resume:
            cut_back(folder, own_state=recipe.data.source == Data.source, rollouts=recipe.run.num_rollouts)
        code = run_job(self.job(recipe, folder, resume=start.resume), recipe, folder)
        steps = [line for line in Journal(folder / METRICS).read() if line["kind"] == "train"]
        why, alarms = why_untrained(steps), Alarms.of(recipe.alarm_limits, steps).as_json()
        if start.as_json:
            print_json(
                {"run": str(folder), "exit_code": code, "nothing_trained_because": why or None, "alarms": alarms}
            )
        elif not recipe.run.num_rollouts:
            print(EVALUATED_ONLY)
        for alarm in () if start.as_json else alarms:
            print(f"alarm  {held(alarm)}")
        say_untrained(why)
        return code

    def trained(self, recipe: Recipe, folder: Path) -> str:
        """Return the model, and link it beside itself in Megatron's format too, where the trainer looks for that."""
        found = exported(recipe, folder)
        if found is None:
            return ""
        converted = Path(f"{found}_torch_dist")
        target = os.path.relpath(folder.resolve() / CHECKPOINTS, converted.parent.resolve())  # a run may be moved
        if not (converted.is_symlink() and os.readlink(converted) == target):
            converted.unlink(missing_ok=True)
            converted.symlink_to(target)
        return str(found)

    def job(self, recipe: Recipe, folder: Path, *, resume: bool) -> Job:
        return render(recipe, folder, upstream=self.upstream, resume=resume)


def exported(recipe: Recipe, folder: Path) -> Path | None:
    """Return the model of the run's last step in Hugging Face format; None where the folder does not have it yet."""
    last = recipe.run.num_rollouts - 1
    path = folder.resolve() / EXPORTS / str(last)
    there = last_saved(folder / CHECKPOINTS, unreadable=-1) >= last and (path / INDEX).is_file()
    return path if there else None


def _require_weights(recipe: Recipe) -> None:
    """Raise `UserError` where the policy is missing, in Hugging Face format or, unless an adapter is trained beside it,
    in Megatron's."""
    folder, converted = checkpoint_folder(recipe.model.checkpoint, recipe.model.folder), converted_folder(recipe)
    if not recipe.algorithm.lora_rank and (missing := unfinished(converted)):
        raise UserError(
            f"{converted} holds no Megatron checkpoint ({missing}): `slime-swe doctor recipe={recipe.name}` prints "
            f"the command that converts {folder}"
        )
