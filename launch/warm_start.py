"""The supervised stage that a recipe's `warm_start` puts before its first rollout.

It is a run of its own in the run's folder, by the same engine, and may be watched, resumed, shown and evaluated as any
other. The rollouts then begin with its weights, which are their reference policy too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from slime_swe.data_sources.registry import load_tasks
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.config import read_recipe
from slime_swe.launch.engines import Engine, Start
from slime_swe.launch.model import checkpoint_path
from slime_swe.launch.runs import RECIPE_FILE, attempt_with_status, create_run, record_end, to_go_on
from slime_swe.recipes import checks
from slime_swe.recipes.base import RECORDED_GENERATE, RECORDED_SOURCE, Algorithm, Data, Recipe, Slime, WarmStart
from slime_swe.recipes.checks import Violation, refuse
from slime_swe.rollout.chat.tokenizer import vocabulary_of
from slime_swe.rollout.scheduling.schedulers import SYNC
from slime_swe.rollout.warm_start import RecordedEpisode, read_recorded
from slime_swe.saving import STOP_BY, raise_if_stopped
from slime_swe.status import StatusFile

OF_SERVERS = ("router-", "sglang-")  # how flags begin that SLiME knows only where it starts servers
FOLDER = "warm_start"  # in the run's; the name of the stage's run, and its phase


def stage_of(recipe: Recipe, folder: Path, episodes: Sequence[RecordedEpisode] = ()) -> Recipe:
    """Return the recipe of the stage of a run in `folder`. `episodes`: of its data, where they were read already.

    Raises `UserError` for data that are none.
    """
    warm, rollout = recipe.warm_start, recipe.rollout
    episodes = episodes or read_recorded(Path(warm.data))
    return replace(
        recipe,
        data=Data(train=[str(Path(warm.data).resolve())], source=RECORDED_SOURCE),
        rollout=replace(
            rollout,
            batch_size=warm.batch_size,
            samples_per_task=1,
            schedule=SYNC,
            generate=RECORDED_GENERATE,
        ),
        algorithm=Algorithm(std_normalization=False, group_filter=""),
        optimizer=replace(recipe.optimizer, lr=warm.lr, schedule="linear"),
        run=replace(
            recipe.run,
            name=FOLDER,
            dir=str(folder),
            num_rollouts=-(-warm.epochs * len(episodes) // warm.batch_size),
            eval_interval=0,
            keep_best="",
        ),
        warm_start=WarmStart(),
        slime=Slime({name: value for name, value in recipe.slime.flags.items() if not name.startswith(OF_SERVERS)}),
    )


def run_stage(engine: Engine, recipe: Recipe, folder: Path, start: Start) -> Recipe:
    """Train the stage of the run in `folder`, or the rest of it; return the recipe of the rollouts, with its weights.

    Raises `InfrastructureError` where the engine ends it with an exit code, `UserError` where it ends without weights,
    and `StoppedToResume`. `start`: the run's.
    """
    own = folder / FOLDER
    begun = (own / RECIPE_FILE).is_file()  # its own recipe, as the data may have been changed since
    stage = read_recipe(own / RECIPE_FILE) if begun else stage_of(recipe, folder)
    stage = replace(stage, run=replace(stage.run, dir=str(folder)))  # a run may be moved
    if not engine.trained(stage, own):
        if start.attempt is not None:
            StatusFile(folder, start.attempt.number).on_phase(FOLDER)
        if not begun:
            create_run(stage)
        if not (own / STOP_BY).is_symlink():
            (own / STOP_BY).symlink_to(Path("..") / STOP_BY)  # what is asked of the run is asked of its stage
        with attempt_with_status(own) as attempt, redirect_stdout(sys.stderr):  # what is printed is the run's summary
            code = engine.run(stage, own, replace(start, resume=begun, attempt=attempt))
            raise_if_stopped(code)
            record_end(own, attempt, code)
        if code:
            raise InfrastructureError(f"the supervised stage in {own} has ended with exit code {code}: see its log")
    weights = engine.trained(stage, own)
    if not weights:
        raise UserError(
            f"the supervised stage in {own} has ended without the weights of its last step: see its log for what kept "
            f"them from being written. Then resume the run ({to_go_on(recipe)}), or first remove {own} to train the "
            "stage anew"
        )
    return replace(recipe, model=replace(recipe.model, checkpoint=weights))


def unfit(
    engine: Engine, recipe: Recipe, episodes: Sequence[RecordedEpisode], known: Sequence[Violation] = ()
) -> list[Violation]:
    """Return what keeps the engine from training the stage: rules that its recipe breaks, beside the rollouts' own that
    are `known`, and samples that no micro-batch was planned for."""
    stage = stage_of(recipe, Path(recipe.run.dir), episodes)
    what = "the supervised stage, whose rollout.batch_size is warm_start.batch_size, can't be trained"
    found = [
        Violation(one.field.replace("rollout.batch", "warm_start.batch"), f"{what}: {one.message}", one.fix)
        for one in checks.violations(stage, engine.violations)
        if one.message not in {each.message for each in known}
    ]
    most, lengths = recipe.rollout.max_context, [about.tokens for episode in episodes for about in episode.abouts]
    if longer := sum(length > most for length in lengths):
        why = f"{longer} of {len(lengths)} samples have more tokens than rollout.max_context={most}"
        fix = f"write it with --max-tokens {most}, or raise max_context to {max(lengths)}"
        found.append(Violation("warm_start.data", f"warm_start.data={recipe.warm_start.data}: {why}", fix))
    return found


def require_trainable(engine: Engine, recipe: Recipe) -> None:
    """Raise `UserError` where the engine has no such stage, and for data that it can't train: samples must fit, be of
    the policy's vocabulary, and of no task that is evaluated."""
    engine.trained(recipe, Path(recipe.run.dir) / FOLDER)
    episodes = read_recorded(Path(recipe.warm_start.data))
    refuse(unfit(engine, recipe, episodes))
    given, abouts = f"warm_start.data={recipe.warm_start.data}", [one for each in episodes for one in each.abouts]
    own = vocabulary_of(checkpoint_path(recipe.model.checkpoint, recipe.model.folder))
    if other := sum(bool(own and about.vocabulary) and about.vocabulary != own for about in abouts):
        raise UserError(
            f"{given}: {other} of {len(abouts)} samples are of another vocabulary than model.checkpoint="
            f"{recipe.model.checkpoint}, for which their tokens mean something else. Their messages can be trained by "
            "any trainer of chat (docs/warm_start.md)"
        )
    evaluated = {task.id.lower(): task.id for spec in recipe.data.evaluation_sets.values() for task in load_tasks(spec)}
    shown = sorted({evaluated[one.task.lower()] for one in episodes if one.task.lower() in evaluated})
    shown = [name for name in shown if not any(fnmatchcase(name, allowed) for allowed in recipe.data.allow_overlap)]
    if shown:
        raise UserError(
            f"{given} has episodes of {len(shown)} of the evaluation's tasks, such as {shown[0]}: write it with "
            "--against and these sets, or allow them by data.allow_overlap"
        )
