"""The engine for GPUs: SLiME's own `train.py` as a Ray job."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.launch.args import checkpoint_folder, converted_folder
from slime_swe.launch.doctor.checkpoint import unfinished
from slime_swe.launch.engines import Engine, Start
from slime_swe.launch.output import print_json
from slime_swe.launch.plan.plan import make_plan
from slime_swe.launch.slime import flags
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.paths import cut_back
from slime_swe.launch.slime.render import render
from slime_swe.recipes import rules
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.violation import Violation


class Slime(Engine):
    """SLiME, Megatron-core and SGLang on the GPUs of a Ray cluster, which is started here where there is none."""

    on_gpus = True
    on_cluster = True
    doctor = (
        *("recipe", "plan", "gpus", "nvlink", "machine", "limits", "run folder", "model folder", "sources"),
        *("versions", "ports", "ray", "checkpoint", "converted", "chat template", "tasks", "overlap", "plug-ins"),
        "sandbox",
    )
    open_files = (8192, 65536)
    raises_open_files = True

    def violations(self, recipe: Recipe) -> Iterable[Violation]:
        return chain(rules.violations(recipe), flags.violations(recipe))

    def check(self, recipe: Recipe, start: Start) -> None:
        """Raises before Ray or a GPU is touched."""
        if not start.ignore_plan and not (plan := make_plan(recipe)).fits:
            problems = "\n".join(f"  {problem}" for problem in plan.problems)
            raise UserError(
                f"the plan of {recipe.name} does not fit its cluster:\n{problems}\n`slime-swe plan` shows the figures "
                "and proposes a change; --ignore-plan starts it all the same"
            )
        Checkouts.find().require()
        folder, converted = checkpoint_folder(recipe.model.checkpoint, recipe.model.folder), converted_folder(recipe)
        if missing := unfinished(converted):
            raise UserError(
                f"{converted} holds no Megatron checkpoint ({missing}): `slime-swe doctor recipe={recipe.name}` prints "
                f"the command that converts {folder}"
            )
        render(recipe, Path(recipe.run.dir))

    def run(self, recipe: Recipe, folder: Path, start: Start) -> int:
        from slime_swe.launch.ray.run import run_job  # Ray takes seconds to import

        folder = folder.resolve()
        if start.resume:
            cut_back(folder)
        code = run_job(self.job(recipe, folder, resume=start.resume), recipe, folder)
        if start.as_json:
            print_json({"run": str(folder), "exit_code": code})
        return code

    def job(self, recipe: Recipe, folder: Path, *, resume: bool) -> Job:
        return render(recipe, folder, resume=resume)
