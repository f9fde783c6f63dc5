"""A recipe -> the seconds of one step's rollout: its schedule is simulated (`simulation/`), on engines as fast as the
roofline has them and on the cores of its machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import NormalDist

from slime_swe.errors import UserError
from slime_swe.launch.plan import IDLE, Assumptions, Phase, serving, simulation
from slime_swe.launch.plan.admission import (
    Episodes,
    bounds_of,
    episodes_of,
    informative,
    sandbox_nodes,
    sandboxes_at_once,
)
from slime_swe.launch.plan.serving import cache_tokens, engines, running_requests, sglang_engine
from slime_swe.launch.plan.simulation import Ledger, Schedule
from slime_swe.launch.plan.simulation.machines import simulate
from slime_swe.launch.plan.simulation.workload import Assumed
from slime_swe.launch.plan.training import forward_flops
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.forecast import informative_share
from slime_swe.recipes.gpus import GPUS
from slime_swe.recipes.rules import at_once, staleness
from slime_swe.rollout.collect import FilterError
from slime_swe.rollout.scheduling.schedulers import SCHEDULES, SYNC

WARM_UP, MEASURED = 2, 4  # steps that are simulated
MOST_EPISODES = 8_000  # with more of them fewer steps are simulated, and in the end one alone
MOST_TURNS = 15_000  # that are simulated one by one; more are put together
SLOW = 1.5  # from here on, commands that take so many times as long are what limits a rollout
CORES = "the cores that commands run on (cluster.cpus_per_node; of all nodes with rollout.sandbox=ray:BACKEND)"
WANTED = "the groups that the schedule begins (rollout.batch_size x rollout.samples_per_task)"
KV_CACHE = "the KV cache (serving.mem_fraction, serving.gpus_per_engine)"
STATES = "the states of linear attention (serving.mem_fraction, serving.gpus_per_engine)"
CONCURRENCY = "serving.concurrency"
SANDBOXES = "rollout.sandbox_concurrency"


@dataclass(frozen=True)
class Planned:
    """A recipe's `Machines`. by_calls: seconds of a token, with 1, 2, ... calls in flight on all engines."""

    cores: float
    train: float
    update: float
    by_calls: tuple[float, ...]

    def token_seconds(self, calls: int) -> float:
        return self.by_calls[calls - 1]


@dataclass(frozen=True)
class Case:
    """One simulation: all that its result depends on. max_staleness: in training steps. measured: steps, after those of
    warm_up. The rest is as in `Ledger`."""

    schedule: str
    max_staleness: int
    max_over_sampling: float
    machines: Planned
    workload: Assumed
    slots: int
    batch_size: int
    group_size: int
    filtered: bool
    grades_in_slots: bool
    warm_up: int
    measured: int


@dataclass(frozen=True)
class Found:
    """The result of a simulation. step: seconds of one, without the luck of its batches. slot_use: that of
    `Ledger.slot_use`. calls, commands: shares of the slots' time. slowness: of commands, for want of cores. sampled:
    tokens a second, of all slots."""

    step: float
    slot_use: float
    calls: float
    commands: float
    slowness: float
    sampled: float
    most_open: int


@dataclass(frozen=True)
class SampledRollout:
    """The rollout of one step. phases: they add up to its seconds of sampling. limit: what holds the episodes in flight
    at their number."""

    phases: tuple[Phase, ...]
    slot_use: float
    limit: str
    sampled: float  # tokens a second


def sample_step(recipe: Recipe, assumed: Assumptions, train: float, update: float) -> SampledRollout:
    """Simulate the rollout. train, update: seconds of a training step, and of bringing its weights to the engines."""
    work = episodes_of(recipe, assumed)
    case = case_of(recipe, assumed, train, update)
    found = simulated(case)
    seconds = found.step if at_once(recipe) else found.step - case.machines.train - case.machines.update
    full = CORES if found.slowness >= SLOW else slots_of(recipe, assumed)[1]
    limit = full if found.most_open == case.slots else WANTED
    calls = max(round(found.calls * case.slots), 1)
    prefill = found.calls * _prefill(recipe, work, calls, assumed) / case.machines.token_seconds(calls)
    slow = f", {found.slowness:.1f} x for want of cores" if found.slowness >= 1.05 else ""
    turns = f"{work.turns:.0f} turns of {assumed.turn_seconds:g} s"
    graded = ", grading" if case.grades_in_slots else ""
    new = work.length - work.sampled  # tokens of an episode
    phases = (
        Phase("sample", seconds * (found.calls - prefill), f"{found.most_open} episodes in flight: {limit}"),
        Phase("prefill", seconds * prefill, f"{new:.0f} new tokens an episode"),
        Phase("sandboxes", seconds * found.commands, f"{turns}{graded}{slow}"),
        Phase(IDLE, seconds * (1 - found.calls - found.commands), _idle(recipe)),
    )
    return SampledRollout(phases, found.slot_use, limit, found.sampled)


def evaluation_seconds(recipe: Recipe, assumed: Assumptions, episodes: int) -> float:
    """Return the seconds of so many episodes on all slots and nothing beside: each is as long as one of training."""
    case = case_of(recipe, assumed, 0.0, 0.0)
    case = replace(case, schedule=SYNC, batch_size=episodes, group_size=1, filtered=False, warm_up=0, measured=1)
    return simulated(case).step


def _idle(recipe: Recipe) -> str:
    if SCHEDULES[recipe.rollout.schedule].carries:
        return "the oldest group is waited for, or weights are updated"
    return "the slowest episodes of a batch are waited for"


def slots_of(recipe: Recipe, assumed: Assumptions) -> tuple[int, str]:
    """Return how many episodes run at once, and what limits them: the run must admit them at its start, and each needs
    a sandbox."""
    admitted, sandboxes = bounds_of(recipe, assumed).start, sandboxes_at_once(recipe)
    return min(admitted, sandboxes), _admits(recipe, assumed) if admitted < sandboxes else SANDBOXES


def _admits(recipe: Recipe, assumed: Assumptions) -> str:
    """Name what limits the episodes that the run admits at once."""
    stated, length = recipe.serving.concurrency or math.inf, episodes_of(recipe, assumed).length
    if recipe.serving.external_engines:
        return CONCURRENCY
    held = cache_tokens(recipe) / length
    limits = {CONCURRENCY: stated, KV_CACHE: held, STATES: running_requests(recipe)}
    return min(limits, key=lambda name: limits[name])


def case_of(recipe: Recipe, assumed: Assumptions, train: float, update: float) -> Case:
    """Return the simulation of a recipe. Grading takes a sandbox too: where these hold the episodes at their number, an
    episode keeps its own for it."""
    rollout, work = recipe.rollout, episodes_of(recipe, assumed)
    slots, limit = slots_of(recipe, assumed)
    if rollout.schedule == SYNC:  # nothing is sampled meanwhile, so the same case serves for all
        train = update = 0.0
    cores = recipe.cluster.cpus_per_node * sandbox_nodes(recipe) / assumed.sandbox_cpus
    by_calls = tuple(
        _decode(recipe, work, calls, assumed) + _prefill(recipe, work, calls, assumed) for calls in range(1, slots + 1)
    )
    steps = int(MOST_EPISODES / _step_episodes(recipe, assumed))
    warm_up = min(WARM_UP, max(0, steps - 1))
    return Case(
        schedule=rollout.schedule,
        max_staleness=staleness(recipe),
        max_over_sampling=recipe.max_over_sampling,
        machines=Planned(cores, train, update, by_calls),
        workload=_workload(recipe, work, assumed),
        slots=slots,
        batch_size=rollout.batch_size,
        group_size=rollout.samples_per_task,
        filtered=informative(recipe, assumed) < 1,
        grades_in_slots=limit == SANDBOXES,
        warm_up=warm_up,
        measured=min(MEASURED, max(1, steps - warm_up)),
    )


@lru_cache(maxsize=128)
def simulated(case: Case) -> Found:
    """Simulate a case; this is pure, so the same case runs once. Raises `UserError` where no batch is ever full."""
    try:
        return simulate(_play(case))
    except FilterError as error:
        raise UserError(f"forecast.solved, or --assume informative=VALUE, is too small: {error.__cause__}") from error


async def _play(case: Case) -> Found:
    ledger = ledger_of(case)
    await schedule_of(case)(ledger, case.batch_size, case.warm_up + case.measured)
    return found_in(ledger, case)


def found_in(ledger: Ledger, case: Case) -> Found:
    """Return the result of a simulation. A few batches need more or fewer groups than usual by chance: of the seconds
    in which slots are of use, `step` counts as many as the usual number would take."""
    attempts, time, slot_use = ledger.every_attempt(), ledger.sampling(), ledger.slot_use()
    begun, luck = ledger.ends[case.warm_up - 1] if case.warm_up else 0.0, 1.0
    if case.filtered:
        usual = informative_share(case.workload.solved, case.workload.certainty, case.group_size)
        luck = ledger.informative_rate(case.warm_up * case.batch_size) / usual
    return Found(
        step=(ledger.ends[-1] - begun) / case.measured * (1 + slot_use * (luck - 1)),
        slot_use=slot_use,
        calls=math.fsum(attempt.calls for attempt in attempts) / (time * case.slots),
        commands=math.fsum(attempt.commands for attempt in attempts) / (time * case.slots),
        slowness=ledger.processors.taken / ledger.processors.asked,
        sampled=sum(attempt.tokens for attempt in attempts) / time,
        most_open=ledger.most_open,
    )


def ledger_of(case: Case) -> Ledger:
    return Ledger(
        case.workload,
        case.machines,
        case.slots,
        case.group_size,
        filtered=case.filtered,
        grades_in_slots=case.grades_in_slots,
    )


def schedule_of(case: Case) -> Schedule:
    schedule = SCHEDULES[case.schedule]
    if schedule.carries:
        paced = simulation.carry if schedule.pauses else simulation.continuous
        return partial(paced, max_staleness=case.max_staleness)
    synchronous = simulation.ahead if schedule.overlaps else simulation.sync
    return partial(synchronous, max_over_sampling=case.max_over_sampling)


def _workload(recipe: Recipe, work: Episodes, assumed: Assumptions) -> Assumed:
    """Return `Assumed` with its spreads, and with means and limits of the recipe: an episode ends after `max_turns`,
    or, if that is earlier, after as many turns as fill `max_context` at the mean tokens of a turn."""
    rollout, shape = recipe.rollout, Assumed()
    most_turns = min(rollout.max_turns, max(round(rollout.max_context * work.turns / work.length), 1))
    turns = _step_episodes(recipe, assumed) * work.turns * (WARM_UP + MEASURED)
    tool = assumed.turn_seconds / capped_mean(
        shape.tool_median * math.exp(shape.tool_spread**2 / 2), shape.tool_spread, shape.most_tool
    )
    return Assumed(
        turns=mean_before_cap(work.turns, shape.turns_spread, most_turns),
        most_turns=most_turns,
        tokens=mean_before_cap(work.sampled / work.turns, shape.tokens_spread, rollout.max_response),
        most_tokens=rollout.max_response,
        tool_median=tool * shape.tool_median,
        most_tool=tool * shape.most_tool,
        time_budget=rollout.time_budget,
        grading=assumed.grade_seconds,
        certainty=certainty_of(min(informative(recipe, assumed), 0.98), shape.solved, rollout.samples_per_task),
        together=math.ceil(turns / MOST_TURNS),
    )


# From the means that the planner assumes to the parameters of `simulation.workload.Assumed`. Pure arithmetic.
def capped_mean(mean: float, spread: float, most: float) -> float:
    """Return the mean of a log-normal variable, with what is above `most` set to `most`. mean: without that. spread:
    the logarithm's standard deviation."""
    middle, normal = math.log(mean) - spread**2 / 2, NormalDist()
    below = (math.log(most) - middle) / spread
    return mean * normal.cdf(below - spread) + most * (1 - normal.cdf(below))


def mean_before_cap(capped: float, spread: float, most: float) -> float:
    """Invert `capped_mean` in its first argument; of a mean that comes too near to `most`, take 0.95 of `most`."""
    capped = min(capped, 0.95 * most)
    return _where(lambda mean: capped_mean(mean, spread, most), capped, capped, 1e3 * most)


def certainty_of(informative: float, solved: float, size: int) -> float:
    """Return the `Assumed.certainty` at which that share of the groups of `size` episodes is informative."""
    return _where(lambda certainty: informative_share(solved, certainty, size), informative, 1e-4, 1e4)


def _where(rising: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Return the argument at which a rising function has that value; an end of the range where it has it nowhere."""
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return high


def _step_episodes(recipe: Recipe, assumed: Assumptions) -> float:
    """Return how many episodes a step samples, those of groups that the filter drops too."""
    rollout = recipe.rollout
    return rollout.batch_size * rollout.samples_per_task / informative(recipe, assumed)


def _decode(recipe: Recipe, work: Episodes, calls: int, assumed: Assumptions) -> float:
    """Return the seconds of one token of a call."""
    gpu = GPUS[recipe.cluster.gpu]
    return serving.decode_seconds(
        recipe.model.shape,
        sglang_engine(recipe),
        max(calls / engines(recipe), 1.0),
        work.length / 2,
        bandwidth=gpu.bandwidth * 1e12 * assumed.decode_bandwidth,
        flops=gpu.flops * 1e12 * assumed.prefill_mfu,
        layer_latency=assumed.layer_latency * 1e-6,
    )


def _prefill(recipe: Recipe, work: Episodes, calls: int, assumed: Assumptions) -> float:
    """Return the seconds by which prefill lengthens `_decode`: new tokens of one call delay the decoding of the others
    on its engine. What earlier turns left in the cache is not computed again."""
    new = work.length / work.sampled - 1  # for one that is sampled
    flops = new * forward_flops(recipe.model.shape, work.length)
    rate = sglang_engine(recipe).gpus * GPUS[recipe.cluster.gpu].flops * 1e12 * assumed.prefill_mfu
    return max(calls / engines(recipe), 1.0) * flops / rate
