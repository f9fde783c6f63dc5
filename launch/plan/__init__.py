"""A plan in its parts: what it assumes, and what it says in bytes, seconds and tokens.

`plan.py` makes one of a recipe. Nothing here computes more than sums.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from slime_swe.errors import UserError
from slime_swe.recipes.checks import Violation

GIB = 2**30
HOUR = 3600.0
IDLE = "idle slots"  # the phase of a rollout in which slots of episodes are empty
ABOVE_ZERO = ("turn_seconds", "grade_seconds", "sandbox_cpus")
"""Without these there is no episode to simulate."""
AT_MOST_ONE = ("context", "sampled", "turns", "informative")


@dataclass(frozen=True)
class Assumptions:
    """The numbers that the planner assumes where no recipe says them and no formula gives them, to be replaced by what
    a first run measures (`--assume NAME=VALUE`).

    These are means over episodes; how they spread is in `simulation/workload.py`. The first four are 0 for what the
    recipe's `forecast` says:

    context: the length at the end, as a share of `rollout.max_context`.
    sampled: tokens that the policy sampled, as a share of that length.
    turns: model calls, as a share of `rollout.max_turns`.
    informative: groups that pass the filter, as a share of those that are sampled.
    turn_seconds: in the sandbox, for one model call's commands.
    grade_seconds: for grading; the median.

    These are of machines:

    mfu: share of the GPU's FLOP/s that training reaches; 0 takes the value of the GPU's kind.
    prefill_mfu, decode_bandwidth: shares of FLOP/s and of memory bandwidth that serving reaches.
    layer_latency: microseconds of one layer in a decoding step, however little there is to read.
    prefill_chunk: tokens of one prefill pass.
    skew: tokens of the busiest expert-parallel rank, over the mean.
    context_gib, group_gib: GiB of a CUDA context with its libraries, and of one NCCL communicator.
    trainer_rest, server_rest: GiB that a paused trainer keeps on a GPU (SLiME reports 3 to 5), and a paused server.
    fragmentation: of what the allocator hands out and takes back, as a share of it.
    margin: share of a GPU's memory, and of a machine's, to keep free: the formulae are no better than that, and Ray
        kills workers of a machine that is 95 % full.
    sync_rate: GB/s at which one node's engines receive weights. SLiME's co-located 30B-A3B takes 7 s for 61 GB.
    pcie, host_bandwidth: GB/s of one GPU's link, and of one machine's memory.
    sandbox_cpus, sandbox_gib: CPU cores that a command in a sandbox keeps busy, and a sandbox's memory.
    image_gib: of one task's container image beside the layers it shares; 0 takes what is published of its corpus, and
        where nothing is, 0.5, or 3 where a sandbox unpacks it.
    process_gib, node_gib: machine memory of the processes of one GPU, and of everything else on a node.
    """

    context: float = 0.0
    sampled: float = 0.0
    turns: float = 0.0
    informative: float = 0.0
    turn_seconds: float = 2.0
    grade_seconds: float = 60.0
    mfu: float = 0.0
    prefill_mfu: float = 0.4
    decode_bandwidth: float = 0.6
    layer_latency: float = 60.0
    prefill_chunk: float = 8192
    skew: float = 1.25
    context_gib: float = 1.5
    group_gib: float = 0.5
    trainer_rest: float = 4.0
    server_rest: float = 3.0
    fragmentation: float = 0.05
    margin: float = 0.05
    sync_rate: float = 8.7
    pcie: float = 25.0
    host_bandwidth: float = 200.0
    sandbox_cpus: float = 1.0
    sandbox_gib: float = 2.0
    image_gib: float = 0.0
    process_gib: float = 12.0
    node_gib: float = 16.0


def assume(options: Iterable[str]) -> Assumptions:
    """Return the assumptions with `NAME=VALUE` changes. Raises `UserError` for an unknown name or a wrong value."""
    names = [field.name for field in dataclasses.fields(Assumptions)]
    changes = {}
    for option in options:
        name, _, value = option.partition("=")
        if name not in names:
            raise UserError(f"--assume {option!r}: there is no assumption {name!r}. There are {', '.join(names)}")
        changes[name] = _positive(option, value)
        if (name in ABOVE_ZERO and not changes[name]) or (name in AT_MOST_ONE and changes[name] > 1):
            raise UserError(f"--assume {option!r}: give more than 0{', and at most 1' * (name in AT_MOST_ONE)}")
    return dataclasses.replace(Assumptions(), **changes)


def _positive(option: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError as error:
        raise UserError(f"--assume {option!r}: {value!r} is not a number") from error
    if not 0 <= number < float("inf"):
        raise UserError(f"--assume {option!r}: {value!r} must be a number of at least 0")
    return number


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
