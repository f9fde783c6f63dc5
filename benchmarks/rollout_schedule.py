"""How well each rollout schedule uses its slots: our schedulers and SLiME's loops, on a simulated clock.

The schedulers of `slime_swe.rollout.scheduling` decide over simulated episodes on simulated machines
(`slime_swe.launch.plan.simulation`; its `workload.py` says where the episodes' lengths come from, and `--episodes FILE`
resamples those of a run's `episodes.jsonl`). SLiME's loops are a model, which equals SLiME's own code; `--slime real`
runs that code itself.

slots: episodes in flight at most. batch: groups of a training step; 0: 1.25 times the slots' worth of episodes.
nodes: 0: one for 128 slots. oracles: 1 adds two synchronous schedules that know outcomes and lengths beforehand
(`schedule_oracle.py`), which bound what `sync` could be.

Figures, each with the schedule's name behind it:

- slot_use: of the seconds that all slots have while sampling may run (with co-located GPUs not while they train), the
  share in which an episode samples or runs commands, and its group is trained, dropped for being uniform, or goes on.
- seconds_per_group: of the whole run, per informative group that was trained. step_seconds: per training step.
- episodes_lost, tokens_discarded: attempts that the schedule threw away, as a share of all; their tokens.
- staleness_mean, staleness_max: training steps between a trained group's first token and its training.
- ks: Kolmogorov-Smirnov distance between the sampled tokens of trained episodes and those of all episodes that the
  policy set out to sample in the same groups, each at its first attempt. Groups are those that began early enough to be
  trained by the end, and are informative.

    python -m benchmarks.rollout_schedule [--slots N] [--batch N] [--steps N] [--json] [--check] [--save]
"""

from __future__ import annotations

import asyncio
import math
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

from benchmarks import schedule_oracle, schedule_slime
from benchmarks.command import Figures, run
from slime_swe.errors import UserError
from slime_swe.launch.plan import simulation
from slime_swe.launch.plan.simulation import Ledger, Schedule
from slime_swe.launch.plan.simulation.machines import Cluster, simulate
from slime_swe.launch.plan.simulation.workload import Assumed, Recorded, Workload
from slime_swe.launch.slime.upstream import SLIME

GROUP = 8
RATIO = 1.25  # episodes of a batch to slots
LEAST = {"slot_use_continuous": 0.95, "slot_use_carry": 0.90}
MOST = {"tokens_discarded_continuous": 0.0, "tokens_discarded_carry": 0.0, "ks_continuous": 0.02}


def schedules(steps: int, staleness: int, slime: str, oracles: int = 0) -> dict[str, tuple[Schedule, int, int]]:
    """Each with its training steps, and the number of steps after which what it has begun should be trained.

    SLiME's asynchronous loop trains uniform groups too, so it has more steps for about as many informative groups, and
    much more time to train a group, since nothing bounds its staleness.
    """
    if slime not in ("model", "real"):
        raise UserError(f"--slime {slime}: give model or real")
    loops = schedule_slime if slime == "model" else _real()
    found: dict[str, tuple[Schedule, int, int]] = {
        "continuous": (partial(simulation.continuous, max_staleness=staleness), steps, staleness),
        "carry": (partial(simulation.carry, max_staleness=staleness), steps, staleness),
        "sync": (simulation.sync, steps, 0),
        "slime_sync": (loops.slime_sync, steps, 0),
        "slime_fully_async": (loops.slime_fully_async, 2 * steps, steps // 2),
    }
    if oracles:
        found["known_outcomes"] = (schedule_oracle.known_outcomes, steps, 0)
        found["known_lengths"] = (schedule_oracle.known_lengths, steps, 0)
    return found


async def measure(
    slots: int, batch: int, steps: int, nodes: int, staleness: int, seed: int, oracles: int = 0, **options: str
) -> Figures:
    """options: `episodes`, a journal; `slime`, model or real."""
    journal = options["episodes"]
    workload: Workload = Recorded(Path(journal), seed) if journal else Assumed(seed)
    cluster = Cluster(nodes or math.ceil(slots / 128))
    size = batch or math.ceil(RATIO * slots / GROUP)
    figures: Figures = {"slots": slots, "batch": size, "nodes": cluster.nodes, "max_staleness": staleness}
    for name, (schedule, number, bound) in schedules(steps, staleness, options["slime"], oracles).items():
        # In another thread, since this one has a loop that runs.
        found = await asyncio.to_thread(simulate, play(schedule, workload, cluster, slots, size, number, bound))
        figures |= {f"{figure}_{name}": value for figure, value in found.items()}
    return figures


async def play(
    schedule: Schedule, workload: Workload, cluster: Cluster, slots: int, batch: int, steps: int, bound: int
) -> Figures:
    ledger = Ledger(workload, cluster, slots, GROUP)
    await schedule(ledger, batch, steps)
    return ledger.figures(bound)


def _real() -> ModuleType:
    """SLiME's own loops, with what SLiME needs of a machine without GPUs."""
    SLIME.require()
    checkouts = SLIME.checkouts()
    sys.path[:0] = [str(checkouts.loop), str(checkouts.megatron)]
    try:
        from slime_swe.launch.slime_cpu.shims import install

        install()
        from benchmarks import schedule_slime_real
    except ImportError as error:
        raise UserError(f"--slime real: {error}. Run it with .venv-slime (docs/slime_on_a_cpu.md)") from error
    return schedule_slime_real


if __name__ == "__main__":
    sys.exit(
        run(
            __doc__,
            "rollout_schedule",
            measure,
            limits=MOST,
            floors=LEAST,
            slots=256,
            batch=0,
            steps=16,
            nodes=0,
            staleness=2,
            seed=0,
            oracles=0,
            episodes="",
            slime="model",
        )
    )
