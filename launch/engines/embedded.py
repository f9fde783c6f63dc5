"""The engine for a machine without a GPU: trains in this process."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path

from slime_swe.fields import read_arguments
from slime_swe.launch.engines import BY_EMBEDDED, IN_ONE_PROCESS, WITHOUT_GPUS, Engine, Start, without_caches
from slime_swe.launch.extras import EMBEDDED, require
from slime_swe.launch.progress import RunProgress, show_summary
from slime_swe.launch.slime.render import to_args
from slime_swe.recipes.base import SGLANG, Recipe
from slime_swe.recipes.checks import Fixed, Violation, acting_on_ratio, against, listed, not_fixed, only
from slime_swe.recipes.rules import schedules, staleness
from slime_swe.rollout.scheduling.schedulers import SCHEDULES
from slime_swe.status import StatusFile

_LOSS = "the embedded engine has no other"
_NO_SERVER_YET = {"sglang_router_ip": "127.0.0.1", "sglang_router_port": 1}

PLAYED = [name for name, schedule in SCHEDULES.items() if schedule.carries or not schedule.overlaps]

RULES: tuple[Fixed, ...] = (
    *WITHOUT_GPUS,
    *BY_EMBEDDED,
    *IN_ONE_PROCESS,
    *only(True, "the embedded engine trains and serves on the same machine", "cluster.colocate"),
    *only("", "the embedded engine uses no Ray", "cluster.ray_address"),
    *only([], "a running server is named by serving.router_ip and serving.router_port", "serving.external_engines"),
    *only(0.0, "the embedded engine's loss leaves out no sequences", "algorithm.opsm_delta"),
    *only(False, "the embedded engine keeps no weights but those that it trains", "algorithm.keep_old_actor"),
    *only("trajectory", _LOSS, "algorithm.reduction"),
    *only("loss", _LOSS, "algorithm.kl_in"),
    *only(False, _LOSS, "algorithm.kl_unbiased"),
    *only(
        1,
        "the embedded engine writes one after every rollout, and run.keep_checkpoints says how many stay",
        "run.save_interval",
    ),
    *only(0, "each checkpoint of the embedded engine holds the policy in Hugging Face format", "run.keep_exports"),
    *only({}, "the embedded engine is not SLiME, and has none of its flags", "slime.flags"),
)


class Embedded(Engine):
    """The trainer and the server of `embedded/`, on this machine's CPU."""

    records_dropped = True
    samples_while_training = False
    doctor = (
        *("recipe", "machine", "limits", "run folder", "packages", "ports", "fields", "checkpoint"),
        *("chat template", "tasks", "overlap", "plug-ins", "engine", "sandbox"),
    )

    def violations(self, recipe: Recipe) -> Iterable[Violation]:
        yield from not_fixed(recipe, RULES)
        yield from without_caches(recipe)
        if recipe.serving.server == SGLANG:
            yield against(recipe)("serving.server", "is what SLiME starts", "use engine=slime_cpu, or embedded")
        yield from schedules(recipe)
        if recipe.rollout.schedule not in PLAYED:
            why = "samples a rollout while SLiME trains on another"
            yield against(recipe)("rollout.schedule", why, f"use {listed(PLAYED)}")
        yield from losses(recipe)

    def check(self, recipe: Recipe, start: Start) -> None:
        require(*EMBEDDED)
        require(*recipe.run.trackers, extra="trackers")
        if "wandb" in recipe.run.trackers:
            from slime_swe.embedded.trackers import require_account

            require_account()
        if not start.resume:  # a resumed run has started once, and the loop compares what it resumes
            check_args(to_args(recipe, Path(recipe.run.dir)))

    def run(self, recipe: Recipe, folder: Path, start: Start) -> int:
        from slime_swe.embedded.loop import train  # torch takes seconds to import; other commands don't need it

        args = to_args(recipe, folder, resume=start.resume)
        status = StatusFile(folder, start.attempt.number) if start.attempt else None
        with RunProgress(recipe, folder, status=status) as progress:
            summary = train(args, progress, start.attempt)
        show_summary(summary, folder, as_json=start.as_json)
        return 0

    def trained(self, recipe: Recipe, folder: Path) -> str:
        from slime_swe.embedded import checkpoint

        found = checkpoint.latest(folder.resolve() / "checkpoints")
        last = found is not None and found.state.rollout_id + 1 >= recipe.run.num_rollouts
        return str(found.model_dir) if found is not None and last else ""


def losses(recipe: Recipe) -> Iterator[Violation]:
    """The embedded server's log-probabilities are the trainer's own, so that with them too the ratio is 1 in a
    rollout's first step, but for tokens that older weights sampled."""
    no, algorithm, schedule = against(recipe), recipe.algorithm, SCHEDULES[recipe.rollout.schedule]
    if algorithm.mismatch == "mis":
        why = "takes tokens out of the loss, and the embedded engine's weighs them alone"
        yield no("algorithm.mismatch", why, "use none, truncate or icepop")
    stale = schedule.carries and staleness(recipe) > 0
    if algorithm.rollout_logprobs and algorithm.steps_per_rollout == 1 and not stale:
        why = "acts on a ratio that is 1 throughout: the embedded server's log-probabilities are the trainer's own"
        for key in acting_on_ratio(recipe):
            yield no(key, why, f"use {'grpo' if key == 'algorithm.estimator' else 0}, or more steps_per_rollout")


def check_args(args: Namespace) -> None:
    """Load every part that needs no server. Raises the `UserError` of the first that can't be used."""
    from slime_swe.embedded.loop import Hooks
    from slime_swe.embedded.loss import LossConfig
    from slime_swe.rewards.grade import GradingSettings
    from slime_swe.rollout.evaluation import load_evaluation_tasks
    from slime_swe.rollout.loop_scope import require_room_for
    from slime_swe.rollout.settings import RolloutSettings
    from slime_swe.sandbox.pool import make_backend

    read_arguments(GradingSettings, args)
    settings = RolloutSettings.from_args(args if args.sglang_router_ip else Namespace(**vars(args) | _NO_SERVER_YET))
    LossConfig.from_args(args)
    make_backend(settings.sandbox)
    require_room_for(settings.agent, settings.sandbox)
    Hooks.load(args).data_source(args)  # reads the training tasks
    load_evaluation_tasks(args)
