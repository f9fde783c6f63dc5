"""The simulated clock, machines and episodes of the benchmark of schedules, and what it says of each schedule."""

from __future__ import annotations

import asyncio
import statistics
import time
from functools import partial

import pytest
from benchmarks import schedule_ours, schedule_slime
from benchmarks.rollout_schedule import play
from benchmarks.schedule_clock import Aborted, Cluster, Engine, Processors, simulate
from benchmarks.schedule_ledger import kolmogorov_smirnov
from benchmarks.schedule_workload import Assumed, Recorded

from slime_swe.errors import UserError
from slime_swe.rollout.episode import Episode, StopReason, Timings
from slime_swe.rollout.records import Score, append_records, write_episode, write_score
from slime_swe.sample import Sample

CLUSTER = Cluster(nodes=1, speed=10.0, knee=2, cpus=2, train=50.0, update=5.0)
SMALL = Assumed(turns=6.0, most_turns=20)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_an_hour_passes_at_once():
    async def main() -> float:
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(1800))
        return now()

    started = time.perf_counter()
    assert simulate(main()) == pytest.approx(3600)
    assert time.perf_counter() - started < 5


def test_a_simulation_that_can_t_go_on_says_so():
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="waits for another"):
        simulate(main())


def test_calls_beyond_the_knee_share_its_speed():
    async def main() -> list[float]:
        engine = Engine(CLUSTER)
        return await asyncio.gather(*(engine.sample(100) for _ in range(4)))

    assert simulate(main()) == pytest.approx([10.0, 10.0, 15.0, 20.0])


def test_commands_beyond_the_cpus_take_longer():
    async def main() -> float:
        processors = Processors(2)
        await asyncio.gather(*(processors.run(10.0) for _ in range(3)))
        return now()

    assert simulate(main()) == pytest.approx(15.0)


def test_a_call_goes_on_after_a_weight_update_where_it_was():
    async def main() -> tuple[float, float]:
        engine = Engine(CLUSTER)
        call = asyncio.create_task(engine.sample(100))
        await asyncio.sleep(4)
        await engine.update_weights()
        return await call, now()

    assert simulate(main()) == (pytest.approx(10.0), pytest.approx(15.0))


def test_a_call_that_is_aborted_ends_at_once():
    async def main() -> float:
        engine = Engine(CLUSTER)
        call = asyncio.create_task(engine.sample(100))
        await asyncio.sleep(4)
        engine.abort()
        with pytest.raises(Aborted):
            await call
        return now()

    assert simulate(main()) == pytest.approx(4.0)


def test_assumed_episodes_have_the_published_figures():
    workload = Assumed(most_turns=10**6, most_tokens=10**9, most_tool=1e9)
    scripts = [workload.script(group, 0, 0) for group in range(3000)]
    turns = [len(script.turns) for script in scripts]
    tools = sorted(seconds for script in scripts for _, seconds in script.turns)
    assert statistics.mean(turns) == pytest.approx(26.4, rel=0.03)
    assert statistics.mean(tokens for script in scripts for tokens, _ in script.turns) == pytest.approx(523, rel=0.03)
    assert tools[len(tools) // 2] == pytest.approx(0.3, rel=0.03)
    assert tools[len(tools) * 9 // 10] == pytest.approx(13.6, rel=0.03)
    assert statistics.mean(script.solved for script in scripts) == pytest.approx(0.48, abs=0.03)
    assert statistics.mean(script.breaks is not None for script in scripts) == pytest.approx(0.01, abs=0.005)


def test_no_episode_is_longer_than_its_limits():
    scripts = [Assumed().script(group, 0, 0) for group in range(2000)]
    assert max(len(script.turns) for script in scripts) == 100
    assert max(seconds for script in scripts for _, seconds in script.turns) == 300.0


def test_a_runs_own_episodes_are_drawn_from_its_journal(tmp_path):
    samples = []
    for index, (turns, tokens, broken) in enumerate([(2, 40, False), (4, 120, False), (3, 30, True)]):
        sample = Sample(index=index, group_index=index, status=Sample.Status.COMPLETED)
        sample.loss_mask = [1] * tokens + [0] * 10
        sample.tokens, sample.response_length = [1] * len(sample.loss_mask), len(sample.loss_mask)
        reason = StopReason.SANDBOX_ERROR if broken else StopReason.SUBMITTED
        episode = Episode("t", (), "", reason, turns=turns, timings=Timings(sandbox=turns * 1.5))
        write_episode(sample, episode, evaluation=False)
        write_score([sample], Score(solved=index == 0))
        sample.status = Sample.Status.ABORTED if broken else sample.status
        samples.append(sample)
    append_records(tmp_path / "episodes.jsonl", samples)
    workload = Recorded(tmp_path / "episodes.jsonl", seed=0)
    scripts = [workload.script(group, 0, 0) for group in range(200)]
    drawn = {(script.turns, script.solved) for script in scripts}
    assert drawn == {(((20, 1.5),) * 2, True), (((30, 1.5),) * 4, False)}
    assert statistics.mean(script.breaks is not None for script in scripts) == pytest.approx(1 / 3, abs=0.1)


def test_a_journal_without_episodes_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no episode"):
        Recorded(tmp_path / "episodes.jsonl", seed=0)


def test_the_distance_of_two_samples():
    assert kolmogorov_smirnov([1, 2, 3, 4], [1, 2, 3, 4]) == 0
    assert kolmogorov_smirnov([1, 2], [3, 4]) == 1
    assert kolmogorov_smirnov([1, 2, 3, 4], [1, 2]) == 0.5


def figures(schedule, bound=0, steps=8):
    return simulate(play(schedule, SMALL, Cluster(nodes=1), slots=16, batch=4, steps=steps, bound=bound))


@pytest.mark.parametrize("schedule", (schedule_ours.carry, schedule_ours.continuous))
@pytest.mark.parametrize("bound", (0, 1, 2))
def test_carried_episodes_are_neither_lost_nor_stale(schedule, bound):
    found = figures(partial(schedule, max_staleness=bound), bound)
    assert found["tokens_discarded"] == found["episodes_lost"] == 0
    assert found["staleness_max"] <= bound
    assert found["slot_use"] <= 1


def test_a_larger_bound_uses_more_of_the_slots():
    use = [figures(partial(schedule_ours.continuous, max_staleness=bound), bound)["slot_use"] for bound in (0, 1, 2)]
    assert use == sorted(use)
    assert use[2] > 1.3 * use[0]


def test_a_synchronous_batch_is_never_stale():
    assert figures(schedule_ours.sync)["staleness_max"] == 0


def test_slimes_loops_lose_what_they_stop():
    assert figures(schedule_slime.slime_sync)["tokens_discarded"] > 0
    found = figures(schedule_slime.slime_fully_async, steps=12)
    assert found["tokens_discarded"] > 0
    assert found["staleness_max"] > 2


def test_episodes_without_failures_or_spread_fill_every_slot():
    """There is nothing to wait for."""
    even = Assumed(turns_spread=0.0, tokens_spread=0.0, tool_spread=0.0, broken=0.0, turns=8.0)
    cluster = Cluster(nodes=4, update=0.0)
    schedule = partial(schedule_ours.continuous, max_staleness=2)
    assert simulate(play(schedule, even, cluster, 32, 16, 6, 2))["slot_use"] > 0.98
