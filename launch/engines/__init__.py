"""`Engine`: what turns samples into gradients. It states here what it can do: no other module asks for its name.

Adding one is a subclass in one file, given to a recipe by its dotted path (`engine=my_engine.MyEngine`); a line in
`ENGINES` gives it a short name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from slime_swe.attempts import Attempt
from slime_swe.dotted import load_registered
from slime_swe.errors import UserError
from slime_swe.recipes import checks
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.checks import Fixed, Violation, against, only, refuse

if TYPE_CHECKING:
    from slime_swe.launch.slime.job import Job
    from slime_swe.launch.slime.upstream import Upstream

ENGINES: Mapping[str, str] = {
    "embedded": "slime_swe.launch.engines.embedded.Embedded",
    "slime": "slime_swe.launch.engines.slime.Slime",
    "miles": "slime_swe.launch.engines.miles.Miles",
    "slime_cpu": "slime_swe.launch.engines.slime_cpu.SlimeCpu",
}


@dataclass(frozen=True)
class Start:
    """The options with which a run is started.

    resume: go on with the run that the folder holds.
    as_json: print one JSON document on standard output, and no other line there.
    ignore_plan: start what the planner says does not fit.
    ends_at: by when the run must have stopped, in seconds of Unix time; None for no such time.
    attempt: the run's, which lasts while the engine runs; None for a start that writes nothing.
    """

    resume: bool = False
    as_json: bool = False
    ignore_plan: bool = False
    ends_at: float | None = None
    attempt: Attempt | None = None


class Engine:
    """One engine.

    on_gpus: it trains on GPUs, so that the planner counts and times them; else on one machine's CPU.
    samples_while_training: where the schedule has it so, the next rollout begins before the weights are updated.
    on_cluster: its job goes to the Ray cluster at `cluster.ray_address` where there is one.
    upstream: the train loop whose script it runs; None where it runs none.
    doctor: the checks that `slime-swe doctor` makes for it: names in `slime_swe.launch.doctor.CHECKS`, or dotted
        paths of one's own.
    open_files: of this process: doctor's check fails below the first number and warns below the second.
    raises_open_files: it raises the soft limit to the hard one by itself, as Ray does.
    records_dropped: `episodes.jsonl` has the groups that the run's filter dropped too.
    rehearsed: `slime-swe rehearse` plays its recipes, and `train` does on this machine's GPUs before a run.
    """

    on_gpus: ClassVar[bool] = False
    samples_while_training: ClassVar[bool] = True
    on_cluster: ClassVar[bool] = False
    upstream: ClassVar[Upstream | None] = None
    doctor: ClassVar[tuple[str, ...]] = ()
    open_files: ClassVar[tuple[int, int]] = (512, 1024)
    raises_open_files: ClassVar[bool] = False
    records_dropped: ClassVar[bool] = False
    rehearsed: ClassVar[bool] = False

    def violations(self, recipe: Recipe) -> Iterable[Violation]:
        """Return the rules of this engine that the recipe breaks; its fields are taken to be valid one by one."""
        return ()

    def check(self, recipe: Recipe, start: Start) -> None:
        """Raise the `UserError` of what would keep the recipe from running, before a folder is made for it."""

    def run(self, recipe: Recipe, folder: Path, start: Start) -> int:
        """Train in `folder`, which holds the recipe; the exit code."""
        raise NotImplementedError

    def trained(self, recipe: Recipe, folder: Path) -> str:
        """Return the model, in Hugging Face format, of the run's last step; empty where `folder` does not have it yet.
        Raises `UserError` where the engine has no supervised stage."""
        raise UserError(f"engine={recipe.engine} has no supervised stage: leave warm_start.data empty")

    def job(self, recipe: Recipe, folder: Path, *, resume: bool) -> Job:
        """Return the command that `run` would start; touches nothing. Raises `UserError` where it starts none."""
        raise UserError(f"engine={recipe.engine} trains in this process: --dry-run has no command to show")


def engine_of(recipe: Recipe) -> Engine:
    """Return the engine that the recipe names. Raises `UserError` with what there is where it names none."""
    found = load_registered(recipe.engine, ENGINES, "engine")
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise UserError(f"engine={recipe.engine}: it must be a subclass of slime_swe.launch.engines.Engine")
    return found()


def violations(recipe: Recipe) -> list[Violation]:
    """List every rule that the recipe breaks, its engine's among them; where single fields are wrong, only these."""
    return checks.violations(recipe, engine_of(recipe).violations)


def require_legal(recipe: Recipe) -> None:
    """Raise `UserError` with every rule that the recipe breaks."""
    refuse(violations(recipe))


_ONE_PROCESS = "this engine trains in one process on one machine"
_ONE_MACHINE = "this engine runs on one machine"
_NO_GPUS = "this engine asks for no GPUs"
_DENSE = "the embedded server runs dense Qwen2 models"
_NO_GRAMMAR = "the embedded server samples by none; SGLang does (engine=slime, or slime_cpu serving.server=sglang)"
_SMALL = "this engine keeps everything in one machine's memory"

_SIZES = tuple(f"parallel.{way}" for way in ("tp", "pp", "cp", "ep", "etp"))

WHOLE_WEIGHTS = only(
    0,
    "this engine trains whole weights, and miles, SLiME's fork for GPUs, adapters too (engine=miles)",
    "algorithm.lora_rank",
)

BY_EMBEDDED: tuple[Fixed, ...] = (  # what the embedded server leaves out
    *only("qwen2", _DENSE, "model.config.model_type"),
    *only("none", _DENSE, "algorithm.routing_replay"),
    *only("", _NO_GRAMMAR, "rollout.grammar"),
)
IN_ONE_PROCESS: tuple[Fixed, ...] = (
    *only(1, _ONE_PROCESS, *_SIZES),
    *only("none", _SMALL, "parallel.recompute"),
)


def without_caches(recipe: Recipe) -> Iterator[Violation]:
    """Refuse `serving.concurrency=0` for an engine without GPUs: the planner counts no KV cache of its server."""
    if not recipe.serving.concurrency:
        why = "is what the KV cache of GPUs holds, and this engine has none"
        yield against(recipe)("serving.concurrency", why, "give the episodes at once, such as 128")


WITHOUT_GPUS: tuple[Fixed, ...] = (  # what an engine without GPUs leaves out: one value a field, and why
    *only(1, _ONE_MACHINE, "cluster.nodes", "serving.ep"),
    *only(0, _NO_GPUS, "cluster.gpus_per_node", "cluster.rollout_gpus", "serving.gpus_per_engine"),
    *only("", _NO_GPUS, "cluster.gpu"),
    *only("", _ONE_MACHINE, "cluster.interface"),
    *only(False, _NO_GPUS, "serving.dp_attention"),
    *only(False, _SMALL, "optimizer.cpu_offload"),
    *WHOLE_WEIGHTS,
)
