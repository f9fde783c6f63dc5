"""Run the train loop's own `train.py` or `train_async.py`, which then also saves by time, stops when it is asked, and
evaluates before the first step.

    python -m slime_swe.launch.slime.loop SCRIPT ARGUMENT ...

It is started in the run's folder. The script asks twice after each step of training, by one function: whether to save,
and whether to evaluate. SLiME has no flag or hook by which a plug-in could answer the first question, so two of its
functions are wrapped in this process, the driver's, alone: that function (`utils/misc.py`), and the one which has the
trainers save (`ray/actor_group.py`), after which a run that is to stop ends with code 75. What runs in Ray's workers is
SLiME's own. Where miles saves by its fault-tolerant trainers (`ray/train/group.py`), the run stops at the second
question, which `train_async.py` asks once the next rollout has been sampled.

SLiME's `train_async.py` at 624b824a evaluates after steps alone, which its pull request 1906 would change; its
`train.py` and both of miles' scripts evaluate before the first one too. So there the first update of the engines'
weights, which the script makes before it samples, is followed by the evaluation that `train.py` makes.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from slime_swe.dotted import PACKAGES
from slime_swe.launch.slime.paths import SETTINGS
from slime_swe.saving import TRY_AGAIN, Due, Saves, StoppedToResume

EVERY = "swe_save_every_minutes"


def run(script: str, arguments: list[str], clock: Callable[[], float] = time.time) -> None:
    """Run the driver. Exits with code 75 where the run has stopped to be resumed. clock: seconds of Unix time."""
    settings = yaml.safe_load(Path(SETTINGS).read_text(encoding="utf-8"))
    package = package_of(Path(script))
    sys.path.insert(0, str(Path(script).parent))  # as Python does for a script
    answers = Answers(Saves(Path.cwd(), 60 * settings.get(EVERY, 0.0), clock))
    misc: Any = importlib.import_module(f"{package}.utils.misc")
    trainers: Any = importlib.import_module(f"{package}.ray.actor_group").RayTrainGroup
    misc.should_run_periodic_action = answers.to_questions(misc.should_run_periodic_action)
    trainers.save_model = answers.to_saves(trainers.save_model)
    if (package, Path(script).name) == ("slime", "train_async.py"):
        _evaluate_first(importlib.import_module(f"{package}.ray.placement_group"), trainers)
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except StoppedToResume as stopped:
        print(f"slime-swe: {stopped}", file=sys.stderr, flush=True)
        sys.exit(TRY_AGAIN)


def _evaluate_first(placement: Any, trainers: Any) -> None:
    """Have the rollout manager evaluate once the engines have the weights that a fresh run begins with.

    `train.py`'s own conditions hold: an interval of evaluations, no `--skip-eval-before-train`, and a run that begins
    with rollout 0, which a resumed one does only before its first checkpoint. A run without a rollout has none to
    come before.
    """
    create, update = placement.create_rollout_manager, trainers.update_weights
    waiting: list[tuple[Any, Any]] = []  # the run's arguments and its rollout manager, until the first update

    @functools.wraps(create)
    def create_rollout_manager(args: Any, *rest: Any, **named: Any) -> Any:
        manager, *others = create(args, *rest, **named)
        waiting.append((args, manager))
        return manager, *others

    @functools.wraps(update)
    def update_weights(self: Any, *given: Any, **named: Any) -> Any:
        updated = update(self, *given, **named)
        for args, manager in waiting:
            first = args.start_rollout_id == 0 < args.num_rollout
            if first and args.eval_interval is not None and not args.skip_eval_before_train:
                ray = importlib.import_module("ray")  # the one that the script uses
                ray.get(manager.eval.remote(0))
        waiting.clear()
        return updated

    placement.create_rollout_manager, trainers.update_weights = create_rollout_manager, update_weights


def package_of(script: Path) -> str:
    """Return `slime` or `miles`: the one that lies beside the script."""
    return next(name for name in PACKAGES if (script.parent / name).is_dir())


class Answers:
    """The answers that the loop gets to its questions after each of its steps."""

    def __init__(self, saves: Saves) -> None:
        self._saves = saves
        self._asked: int | None = None  # the rollout after which was asked whether to save
        self._due = Due(save=False, stop=False)

    def to_questions(self, theirs: Callable[..., bool]) -> Callable[..., bool]:
        """Wrap the loop's function that answers its questions. Of a rollout the first is whether to save, the second
        whether to evaluate, before which a run may stop."""

        signature = inspect.signature(theirs)

        @functools.wraps(theirs)
        def answer(rollout_id: int, *rest: Any, **named: Any) -> bool:
            says = theirs(rollout_id, *rest, **named)
            if rollout_id == self._asked:
                self._stop_if_due(rollout_id)
                return says
            count = signature.bind(rollout_id, *rest, **named).arguments.get("num_rollout")
            self._asked, self._due = rollout_id, self._saves.after_step()
            if rollout_id + 1 == count:  # a resumed run would not make the evaluation that ends it
                self._due = Due(save=True, stop=False)
            return says or self._due.save

        return answer

    def to_saves(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the loop's method that saves. A save after which the run stops is waited for (`async-save`): no other
        would finish it. Where the loop saves without a question (`release-train`, miles' `save-trigger-sentinel`), the
        next one is whether to evaluate."""
        signature = inspect.signature(theirs)

        def forced(*given: Any, **named: Any) -> tuple[int, dict[str, Any]]:
            bound = signature.bind(*given, **named)
            if bound.arguments["rollout_id"] != self._asked:
                self._asked, self._due = bound.arguments["rollout_id"], self._saves.after_step()
            bound.arguments["force_sync"] = bound.arguments.get("force_sync", False) or self._due.stop
            return bound.arguments["rollout_id"], bound.arguments

        def saved(rollout_id: int) -> None:
            self._saves.on_saved()
            self._stop_if_due(rollout_id)

        @functools.wraps(theirs)
        def save(*given: Any, **named: Any) -> Any:
            rollout_id, arguments = forced(*given, **named)
            found = theirs(**arguments)
            saved(rollout_id)
            return found

        @functools.wraps(theirs)
        async def save_async(*given: Any, **named: Any) -> Any:
            rollout_id, arguments = forced(*given, **named)
            found = await theirs(**arguments)
            saved(rollout_id)
            return found

        return save_async if inspect.iscoroutinefunction(theirs) else save

    def _stop_if_due(self, rollout_id: int) -> None:
        if self._due.stop:
            raise StoppedToResume(rollout_id)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
