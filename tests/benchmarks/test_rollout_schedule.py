"""What the benchmark of schedules says of each of them."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from benchmarks import schedule_oracle, schedule_slime
from benchmarks.rollout_schedule import measure, play
from slime_swe.launch.plan import simulation
from slime_swe.launch.plan.simulation import Ledger
from slime_swe.launch.plan.simulation.machines import Cluster, simulate
from slime_swe.launch.plan.simulation.workload import Assumed, Recorded
from slime_swe.rollout.episode import Episode, StopReason, Timings
from slime_swe.rollout.journals import append_records
from slime_swe.rollout.records import Score, write_episode, write_score
from slime_swe.sample import Sample

SMALL = Assumed(turns=6.0, most_turns=20)


def journal(path, groups=6, size=8):
    """As a run writes it: episodes of 3 to 10 turns, of which the even ones solve their task."""
    samples = []
    for index in range(groups * size):
        turns = 3 + index % 8
        sample = Sample(index=index, group_index=index // size, status=Sample.Status.COMPLETED)
        sample.loss_mask = [1, 0] * (20 * turns)
        sample.tokens, sample.response_length = [1] * len(sample.loss_mask), len(sample.loss_mask)
        episode = Episode("t", (), "", StopReason.SUBMITTED, turns=turns, timings=Timings(sandbox=4.0 * turns))
        write_episode(sample, episode, evaluation=False)
        write_score([sample], Score(solved=index % 2 == 0))
        samples.append(sample)
    append_records(path, samples)
    return path


def test_every_schedule_plays_the_episodes_of_a_journal(tmp_path):
    path = journal(tmp_path / "episodes.jsonl")
    found = asyncio.run(measure(16, 4, 6, 1, 2, 0, episodes=str(path), slime="model"))
    assert found["step_seconds_continuous"] < found["step_seconds_carry"] < found["step_seconds_sync"]
    assert found["tokens_discarded_continuous"] == found["tokens_discarded_carry"] == 0
    lengths = {20 * turns for turns in range(3, 11)}
    schedule = partial(simulation.carry, max_staleness=1)

    async def trained():
        ledger = Ledger(Recorded(path, 0), Cluster(1), slots=16, size=8)
        await schedule(ledger, 4, 4)
        return {length for group in ledger.trained for length in group.lengths}

    assert simulate(trained()) == lengths


def figures(schedule, bound=0, steps=8):
    return simulate(play(schedule, SMALL, Cluster(nodes=1), slots=16, batch=4, steps=steps, bound=bound))


@pytest.mark.parametrize("schedule", (simulation.carry, simulation.continuous))
@pytest.mark.parametrize("bound", (0, 1, 2))
def test_carried_episodes_are_neither_lost_nor_stale(schedule, bound):
    found = figures(partial(schedule, max_staleness=bound), bound)
    assert found["tokens_discarded"] == found["episodes_lost"] == 0
    assert found["staleness_max"] <= bound
    assert found["slot_use"] <= 1


def test_a_larger_bound_uses_more_of_the_slots():
    use = [figures(partial(simulation.continuous, max_staleness=bound), bound)["slot_use"] for bound in (0, 1, 2)]
    assert use == sorted(use)
    assert use[2] > 1.3 * use[0]


def test_a_synchronous_batch_is_never_stale():
    assert figures(simulation.sync)["staleness_max"] == 0


def test_who_knows_more_beforehand_is_done_sooner():
    async def played(schedule):
        ledger = Ledger(SMALL, Cluster(nodes=1), slots=16, size=8)
        await schedule(ledger, 4, 8)
        return [trained.group for trained in ledger.trained], ledger.ends[-1], ledger.figures(0)["episodes_lost"]

    sync, outcomes, lengths = (
        simulate(played(schedule))
        for schedule in (simulation.sync, schedule_oracle.known_outcomes, schedule_oracle.known_lengths)
    )
    assert sync[0][:4] == outcomes[0][:4], "the first batch, before anything is given back"
    assert outcomes[0] == lengths[0]
    assert sync[1] > outcomes[1] > lengths[1]
    assert outcomes[2] == lengths[2] == 0 < sync[2], "who knows gives nothing back"


def test_slimes_loops_lose_what_they_stop():
    assert figures(schedule_slime.slime_sync)["tokens_discarded"] > 0
    found = figures(schedule_slime.slime_fully_async, steps=12)
    assert found["tokens_discarded"] > 0
    assert found["staleness_max"] > 2


def test_episodes_without_failures_or_spread_fill_every_slot():
    """There is nothing to wait for."""
    even = Assumed(turns_spread=0.0, tokens_spread=0.0, tool_spread=0.0, broken=0.0, turns=8.0)
    cluster = Cluster(nodes=4, update=0.0)
    schedule = partial(simulation.continuous, max_staleness=2)
    assert simulate(play(schedule, even, cluster, 32, 16, 6, 2))["slot_use"] > 0.98
