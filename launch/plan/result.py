"""The parts of a plan, in bytes, seconds and tokens; nothing here computes more than sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from slime_swe.launch.plan.assumptions import GIB, Assumptions
from slime_swe.recipes.checks import Violation

IDLE = "idle slots"  # the phase of a rollout in which slots of episodes are empty
HOUR = 3600.0


@dataclass(frozen=True)
class Component:
    """A part of a budget, in bytes; `detail` says in a few words what it depends on."""

    name: str
    bytes: float
    detail: str = ""


@dataclass(frozen=True)
class Budget:
    """The bytes that a GPU, machine or disk must hold at once, and those it has; the share `margin` is to stay free."""

    name: str
    capacity: float
    components: tuple[Component, ...]
    margin: float = 0.0

    @property
    def bytes(self) -> float:
        return sum(part.bytes for part in self.components)

    @property
    def excess(self) -> float:
        """The bytes that are too many; negative where there is room."""
        return self.bytes - (1 - self.margin) * self.capacity

    @property
    def fits(self) -> bool:
        return self.excess <= 0

    @property
    def largest(self) -> Component:
        return max(self.components, key=lambda part: part.bytes)

    def __str__(self) -> str:
        return f"{self.name} {self.bytes / GIB:.1f} of {self.capacity / GIB:.1f} GiB"


@dataclass(frozen=True)
class TaskImages:
    """The container images of one task set that lie on each machine which has sandboxes.

    spec: the set. count: images that the run meets. gib: of one. how: `assumed`, `published` or `measured`.
    """

    spec: str
    count: int
    gib: float
    how: str

    @property
    def total(self) -> float:
        """The size of all of them in GiB."""
        return self.count * self.gib

    def __str__(self) -> str:
        return f"{self.count:,} of {self.spec} at {self.gib:.2f} GiB ({self.how})"


@dataclass(frozen=True)
class Phase:
    """A part of a step, in seconds, and what sets them."""

    name: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class Timing:
    """The time of one step: a rollout, and training on it.

    rollout, training: their phases, in order. overlap: they run at the same time, and a step takes the longer one.
    slot_use: of the seconds that all slots of episodes have while sampling may run, the share that is neither idle nor
    thrown away. limit: what holds the episodes in flight at their number.
    episodes, tokens: that a step trains on. cost: of a step, in the currency of `cluster.gpu_hour_price`.
    train_rate, sample_rate: tokens/s of one GPU, while training and while sampling.
    """

    rollout: tuple[Phase, ...]
    training: tuple[Phase, ...]
    overlap: bool
    slot_use: float
    limit: str
    episodes: int
    tokens: float
    train_rate: float
    sample_rate: float
    gpus: int
    gpu_hour_price: float

    @property
    def rollout_seconds(self) -> float:
        return math.fsum(phase.seconds for phase in self.rollout)

    @property
    def training_seconds(self) -> float:
        return math.fsum(phase.seconds for phase in self.training)

    @property
    def seconds(self) -> float:
        both = self.rollout_seconds, self.training_seconds
        return max(both) if self.overlap else sum(both)

    @property
    def waits_for_training(self) -> bool:
        """True where sampling beside training can do no more steps, since the trainer is busy all the time."""
        return self.overlap and self.training_seconds > 0.95 * self.seconds

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.seconds / 3600

    @property
    def cost(self) -> float:
        return self.gpu_hours * self.gpu_hour_price


@dataclass(frozen=True)
class Checkpoints:
    """The work between two checkpoints. rollouts: of so many one is saved. seconds: from one checkpoint to the next.
    lost: seconds of work that a kill at the worst moment costs, without what the save itself takes."""

    rollouts: int
    seconds: float
    lost: float

    @property
    def rare(self) -> bool:
        """True where more than an hour lies between two."""
        return self.seconds > HOUR


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of a run. count: how many. episodes, seconds: those of one. uncounted: sets of which nobody knows
    the size."""

    count: int
    episodes: int
    seconds: float
    uncounted: tuple[str, ...] = ()


@dataclass(frozen=True)
class WholeRun:
    """The time of a run: all steps, evaluations and the warm start. informative: share of the groups that pass the
    filter. step: seconds of one."""

    informative: float
    step: float
    hours: float
    gpu_hours: float


@dataclass(frozen=True)
class Outlook:
    """The times to which the run may come otherwise. low, high: at the bounds of the forecast's share of groups that
    pass; None where that share is assumed, or no group is dropped. carry: with `rollout.schedule=carry`; None where it
    is not `sync`."""

    low: WholeRun | None = None
    high: WholeRun | None = None
    carry: WholeRun | None = None


@dataclass(frozen=True)
class Supervised:
    """The stage of a warm start. steps: of the optimizer. episodes, tokens: of one of them. longest: of the samples, in
    tokens. step: its seconds; 0 where there is no GPU."""

    steps: int
    episodes: int
    tokens: float
    longest: int
    step: float
    gpus: int

    @property
    def seconds(self) -> float:
        return self.steps * self.step

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.seconds / 3600


@dataclass(frozen=True)
class Plan:
    """The plan of a recipe. recipe, hardware: both in words. problems: why it can't run; empty if it can. bottlenecks:
    what limits the run.

    budgets: empty where the layout makes no sense. images: those that tasks bring, where the cluster's machines hold
    them. timing, checkpoints, run: None where there is a problem, or no GPU. warm_start: None where there is none or a
    problem, and where its data are not on this machine. evaluations: None where there is none, or no timing. outlook:
    None where nobody asked for it.
    """

    recipe: str
    hardware: str
    problems: tuple[Violation, ...]
    budgets: tuple[Budget, ...] = ()
    images: tuple[TaskImages, ...] = ()
    timing: Timing | None = None
    checkpoints: Checkpoints | None = None
    warm_start: Supervised | None = None
    evaluations: Evaluations | None = None
    run: WholeRun | None = None
    outlook: Outlook | None = None
    bottlenecks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    assumptions: Assumptions = field(default_factory=Assumptions)

    @property
    def fits(self) -> bool:
        """True where the recipe is legal, and has the memory that it needs."""
        return not self.problems

    def budget(self, name: str) -> Budget:
        """Return the budget named `training`, `serving`, `weight synchronisation`, `machine` or `disk`; of a pipeline,
        that of the fullest stage."""
        return next(budget for budget in self.budgets if budget.name.partition(",")[0] == name)
