"""What is refused before a run has a folder: missing plug-ins and tasks, a sandbox that can't hold these, overlapping
sets, graders that a cheat passes, GPUs on which a rehearsal fails.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from slime_swe.data_sources.contamination import Overlap, find_overlaps, require_clean
from slime_swe.data_sources.corpora.corpus import NotFetched, fetch_command
from slime_swe.data_sources.registry import counted, load_tasks
from slime_swe.data_sources.task import Task
from slime_swe.dotted import load_object
from slime_swe.errors import UserError
from slime_swe.launch.doctor import Machine
from slime_swe.launch.engines import engine_of
from slime_swe.launch.images import images_command, needs_images, remedy, survey
from slime_swe.launch.slime.render import PLUG_INS
from slime_swe.recipes.base import Data, Recipe, Reward
from slime_swe.recipes.checks import lookup
from slime_swe.rewards.grade import GradingSettings
from slime_swe.rewards.redteam.cases import target_of
from slime_swe.rewards.redteam.proof import require_integrity
from slime_swe.rollout.agents.base import agent_class
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.pool import make_backend, on_one_machine

OVERLAP_FILE = "overlap.json"


def require_plug_ins(recipe: Recipe) -> None:
    """Raise `UserError`, with the recipe's key, for a plug-in of the user's own that can't be imported."""
    for key in PLUG_INS.values():
        path = lookup(recipe, key)
        if path and not path.startswith("slime_swe."):
            load_object(path, key)


def task_sets(recipe: Recipe) -> dict[str, str]:
    """Map each task set that a run reads to the key that names it. A data source of one's own has its own training."""
    data = recipe.data
    training = data.training_sets if data.source == Data.source else []
    return {spec: f"data.eval.{name}" for name, spec in data.evaluation_sets.items()} | dict.fromkeys(
        training, "data.train"
    )


def require_agent(recipe: Recipe) -> None:
    """Raise `UserError` for a short name that no agent has. One of the user's own is not imported."""
    if "." not in recipe.rollout.agent:
        agent_class(recipe.rollout.agent)


def require_sandbox(recipe: Recipe) -> None:
    """Raise `UserError` with what to do, for tasks in images and a sandbox that takes none."""
    if make_backend(recipe.rollout.sandbox).takes_images:
        return
    for spec, key in task_sets(recipe).items():
        if needs_images(spec):
            raise UserError(
                f"{key}: tasks of {spec} run in container images, and rollout.sandbox={recipe.rollout.sandbox} takes "
                f"none: {remedy(Machine())}"
            )


def read_sets(recipe: Recipe) -> tuple[list[Task], list[str]]:
    """Read the tasks of the sets that are on this machine, and list the sets that are not. Raises `UserError`."""
    tasks: list[Task] = []
    missing: dict[str, None] = {}
    for spec in task_sets(recipe):
        try:
            tasks += load_tasks(spec)
        except NotFetched as error:
            missing[error.set] = None
    return tasks, list(missing)


def left_out(recipe: Recipe) -> str:
    """Say how many tasks the options of the training sets leave of each; empty where they leave all."""
    sizes = {spec: counted(spec) for spec, key in task_sets(recipe).items() if key == "data.train" and "?" in spec}
    fewer = [f"{len(tasks)} of {of} tasks of {spec}" for spec, (tasks, of) in sizes.items() if len(tasks) < of]
    return f"data.train has {', '.join(fewer)}" if fewer else ""


def not_here(sets: Sequence[str]) -> str:
    """Say which task sets are not on this machine, with the one command that brings them all."""
    return f"{', '.join(sets)} not on this machine: {fetch_command(sets)}"


def missing_images(recipe: Recipe, tasks: Sequence[Task]) -> str:
    """Say how many of the tasks' images are missing on this machine, and the command that gets them; empty for none."""
    sandbox = recipe.rollout.sandbox
    if not make_backend(sandbox).takes_images:
        return ""
    try:
        found = survey(tasks, sandbox)
    except (UserError, SandboxError) as error:
        return f"which images are here can't be told: {error}"
    return f"{found}. To get them before: {images_command(list(task_sets(recipe)), sandbox)}" if found.missing else ""


@dataclass(frozen=True)
class Comparison:
    """The tasks of a run that were compared. `compared` is false where another data source decides what is trained."""

    compared: bool
    trained: int = 0
    evaluated: int = 0
    allowed: Sequence[Overlap] = ()


def check_overlap(recipe: Recipe) -> Comparison:
    """Raise `UserError` where training shows what is evaluated and `data.allow_overlap` does not name it."""
    data = recipe.data
    if data.source != Data.source:
        return Comparison(compared=False)
    training = [task for spec in data.training_sets for task in load_tasks(spec)]
    evaluation = [task for spec in data.evaluation_sets.values() for task in load_tasks(spec)]
    allowed = require_clean(find_overlaps(training, evaluation), data.allow_overlap)
    return Comparison(True, len(training), len(evaluation), allowed)


def record_overlap(comparison: Comparison, folder: Path) -> None:
    """Write the comparison into the run's folder."""
    (folder / OVERLAP_FILE).write_bytes(
        orjson.dumps(comparison, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    )


def check_integrity(recipe: Recipe, *, ignore: bool = False) -> None:
    """Raise `UserError` where a known cheat gets past the recipe's sandbox and the grader of its training tasks.

    A reward function, a data source or an oracle of the user's own is not checked: there is no telling what it does.
    For sandboxes on other nodes, those of this machine stand.
    """
    if recipe.reward.function != Reward.function or recipe.data.source != Data.source:
        return
    if ignore:
        print("the integrity gate is ignored: a policy may learn to cheat", file=sys.stderr)
        return
    if not recipe.reward.negative_control:
        print("reward.negative_control=false: forged test logs are believed", file=sys.stderr)
    settings = GradingSettings(recipe.reward.mode, recipe.reward.harness, recipe.reward.harness_python)
    for grader in sorted({target_of(task) for spec in recipe.data.training_sets for task in load_tasks(spec)} - {""}):
        require_integrity(on_one_machine(recipe.rollout.sandbox), grader, settings)


def check_rehearsal(recipe: Recipe, *, skip: bool = False) -> None:
    """Raises where the recipe's rehearsal on this machine's GPUs fails, which is made once for each version of all that
    it depends on. Where this machine has no GPU, as one that only submits, there is none to make."""
    if not engine_of(recipe).rehearsed:
        return
    if skip:
        print("the recipe is not rehearsed on this machine's GPUs: a fault may show after hours", file=sys.stderr)
        return
    if not Machine().has("nvidia-smi"):
        print(
            "note: this machine has no GPU to rehearse the recipe on; on a node of the cluster: "
            f"slime-swe rehearse recipe={recipe.name} on=gpu",
            file=sys.stderr,
        )
        return
    from slime_swe.launch.rehearse.proof import require_rehearsal  # torch and Transformers take seconds to import

    require_rehearsal(recipe)
