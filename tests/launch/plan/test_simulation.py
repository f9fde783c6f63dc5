"""The simulated clock, machines and episodes: the planner and the benchmark of schedules take their times from them."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import replace

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.plan import simulation
from slime_swe.launch.plan.simulation import Ledger, kolmogorov_smirnov
from slime_swe.launch.plan.simulation.machines import Aborted, Cluster, Engine, Processors, simulate
from slime_swe.launch.plan.simulation.workload import Assumed, Recorded, Script
from slime_swe.rollout.episode import Episode, StopReason, Timings
from slime_swe.rollout.journals import append_records
from slime_swe.rollout.records import Score, write_episode, write_score
from slime_swe.sample import Sample

CLUSTER = Cluster(nodes=1, speed=10.0, knee=2, cpus=2, train=50.0, update=5.0)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_an_hour_passes_at_once():
    async def main() -> float:
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(1800))
        return now()

    assert simulate(main()) == pytest.approx(3600)


def test_a_simulation_that_can_t_go_on_says_so():
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="waits for another"):
        simulate(main())


def test_calls_beyond_the_knee_share_its_speed():
    async def main() -> list[float]:
        engine = Engine(CLUSTER)
        return await asyncio.gather(*(engine.sample(100) for _ in range(4)))

    assert simulate(main()) == pytest.approx([20.0] * 4)


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


def test_a_call_that_is_aborted_ends_at_once_and_says_what_is_left():
    async def main() -> tuple[float, float, float]:
        engine = Engine(CLUSTER)
        call = asyncio.create_task(engine.sample(100))
        await asyncio.sleep(4)
        engine.abort()
        with pytest.raises(Aborted) as dropped:
            await call
        return dropped.value.tokens, dropped.value.seconds, now()

    assert simulate(main()) == (pytest.approx(60.0), pytest.approx(4.0), pytest.approx(4.0))


def test_a_call_gets_faster_when_others_leave():
    """Four calls on an engine that takes two: two of them end after 4 s, at 5 tokens a second each until then."""

    async def main() -> list[float]:
        engine = Engine(CLUSTER)
        calls = [asyncio.create_task(engine.sample(100)) for _ in range(4)]
        await asyncio.sleep(4)
        for call in calls[:2]:
            call.cancel()
        return await asyncio.gather(*calls[2:])

    assert simulate(main()) == pytest.approx([12.0, 12.0])


class OneCall:
    def script(self, group: int, member: int, attempt: int) -> Script:
        return Script(opening=0.0, turns=((100, 0.0),), grading=0.0, solved=True)


def test_an_episode_waits_at_the_gate_and_goes_on_where_its_call_was():
    """A call of 100 tokens at 10 a second, dropped after 4 s of it; the gate is closed for 90 s then."""

    async def main() -> tuple[float, float]:
        ledger = Ledger(OneCall(), CLUSTER, slots=1, size=1)
        episode = asyncio.create_task(ledger.play_whole(0, 0))
        await asyncio.sleep(4)
        await ledger.gate.drain(ledger.engine.drop)
        await asyncio.sleep(90)
        ledger.gate.open()
        await episode
        (attempt,) = ledger.attempts[0, 0]
        return attempt.calls, now()

    assert simulate(main()) == (pytest.approx(10.0), pytest.approx(100.0))


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


def test_turns_that_are_simulated_as_one_have_their_tokens_and_seconds():
    one, three = Assumed().script(5, 0, 0), Assumed(together=3).script(5, 0, 0)
    assert len(three.turns) == -(-len(one.turns) // 3) > 1
    assert three.tokens == one.tokens
    assert sum(seconds for _, seconds in three.turns) == pytest.approx(sum(seconds for _, seconds in one.turns))


def test_an_episode_ends_when_its_time_budget_does():
    whole = Assumed(turns=80.0).script(5, 0, 0)
    spent = sum(seconds for _, seconds in whole.turns)
    cut = Assumed(turns=80.0, time_budget=spent / 2).script(5, 0, 0)
    assert sum(seconds for _, seconds in cut.turns) == pytest.approx(spent / 2)
    assert len(cut.turns) < len(whole.turns)


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


def ledger_of(schedule, cluster, steps=4, **options):
    ledger = Ledger(Assumed(turns=6.0, most_turns=20), cluster, slots=16, size=4, **options)

    async def main():
        await schedule(ledger, 4, steps)

    simulate(main())
    return ledger


@pytest.mark.parametrize("train", (0.0, 5000.0))
def test_sampling_ahead_takes_the_longer_of_a_rollout_and_training(train):
    """And a weight update after both; `train_async.py` samples the first batch before it trains any."""
    cluster = Cluster(nodes=1, train=train, update=7.0)
    alone = ledger_of(simulation.sync, replace(cluster, train=0.0))
    ahead = ledger_of(simulation.ahead, cluster)
    rollouts = [end - begin - 7.0 for begin, end in zip([0.0, *alone.ends], alone.ends, strict=False)]
    assert [trained.group for trained in ahead.trained] == [trained.group for trained in alone.trained]
    steps = [end - begin for begin, end in zip(ahead.ends, ahead.ends[1:], strict=False)]
    assert steps[0] == pytest.approx(max(rollouts[2], train) + 7.0, rel=0.02)
    assert ahead.ends[0] == pytest.approx(rollouts[0] + max(rollouts[1], train) + 7.0, rel=0.02)


def test_grading_in_slots_leaves_fewer_of_them_to_episodes():
    cluster = Cluster(nodes=1)
    outside, inside = (ledger_of(simulation.sync, cluster, grades_in_slots=inside) for inside in (False, True))
    assert inside.ends[-1] > 1.1 * outside.ends[-1]
    assert [trained.group for trained in inside.trained] == [trained.group for trained in outside.trained]


def test_without_a_filter_every_group_is_trained():
    ledger = ledger_of(simulation.sync, Cluster(nodes=1), filtered=False)
    assert [trained.group for trained in ledger.trained] == list(range(16))
