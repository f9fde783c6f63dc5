"""Groups are played, dropped, tried again and given back as the scheduler says, through SLiME's hooks."""

from __future__ import annotations

import asyncio
import math
import random
from argparse import Namespace
from collections import Counter

import orjson
import pytest

from slime_swe.data_sources.slime_plugin import TaskDataSource, state_path, task_id_of
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.plan.simulation.machines import simulate
from slime_swe.rewards.slime_plugin import keep_group
from slime_swe.rollout.collect import MOST_OF_A_TASK, Driver, FilterError, FirstCalls, driver_of
from slime_swe.rollout.evaluation import evaluate
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.play import Player
from slime_swe.rollout.records import Score, episode_of, flatten, write_failure, write_score
from slime_swe.rollout.scheduling.outage import LONGEST, Outage, Outages
from slime_swe.rollout.scheduling.schedulers import DynamicSampling, PacedAdmission
from slime_swe.sample import Sample
from tests.data_sources.tasks import make_task

SIZE = 4
TRIES = 5


def forty(split: str):
    return [make_task(f"task-{number}") for number in range(40)]


@pytest.fixture(autouse=True)
def seeded():
    """Pauses are shortened by chance."""
    random.seed(5)


class Played:
    """A generate hook whose episodes come to what `ends` says of a task: solved shares, or `broken`."""

    def __init__(self, ends: dict[str, float | str] | None = None, seconds: float = 0.0) -> None:
        self.ends, self.seconds = ends or {}, seconds
        self.calls: Counter[str] = Counter()
        self.sessions: set[str] = set()
        self.running = self.most = 0

    async def __call__(self, args: Namespace, sample: Sample, params: dict) -> Sample:
        task = str(task_id_of(sample))
        assert [*sample.metadata] == ["task"] and not sample.tokens, "as the data source gave it"
        sample.metadata["episode"], sample.tokens = {"patch": ""}, [1]
        assert sample.session_id and sample.session_id not in self.sessions, "by which a router keeps it on one engine"
        self.sessions.add(sample.session_id)
        self.calls[task] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds * random.random())
        finally:
            self.running -= 1
        if self.ends.get(task) == "broken":
            write_failure(sample, "sandbox_error", "no such image")
            return sample
        solved = sample.index % SIZE < self.share(task) * SIZE
        sample.status = Sample.Status.COMPLETED
        write_score([sample], Score(solved, 1.0 if solved else -1.0))
        return sample

    def share(self, task: str) -> float:
        """Of a task's episodes, how many are solved; a whole number of a group's."""
        return math.ceil(float(self.ends.get(task, 0.5)) * SIZE) / SIZE


async def no_reward(args, sample):
    raise AssertionError("the generate hook has scored it")


def make(tmp_path, played: Played, batch: int = 4, slots: int = 64, group_filter=keep_group, **outage) -> tuple:
    args = Namespace(
        rollout_batch_size=batch, n_samples_per_prompt=SIZE, n_samples_per_eval_prompt=2, rollout_seed=5,
        rollout_shuffle=True, swe_tasks=f"{__name__}.forty:x", save=str(tmp_path), load=str(tmp_path),
        reward_key=None, sglang_server_concurrency=slots, sglang_enable_deterministic_inference=False,
        swe_max_attempts=TRIES,
        rollout_temperature=1.0, rollout_top_p=1.0, rollout_top_k=-1, rollout_max_response_len=8, rollout_stop=None,
        rollout_stop_token_ids=None, rollout_skip_special_tokens=False,
        dynamic_sampling_filter_path="slime_swe.rewards.slime_plugin.keep_group",
    )  # fmt: skip
    player = Player(
        args, RolloutHooks(played, no_reward, group_filter), outages=Outages(Outage(**outage), Outage(**outage))
    )
    return Driver(player, DynamicSampling(batch, 2.0)), TaskDataSource(args)


def numbers(groups) -> list[int]:
    return [flatten(group)[0].group_index for group in groups]


async def test_uniform_groups_are_never_trained_but_replaced(tmp_path):
    played = Played({f"task-{number}": number % 2 for number in range(0, 40, 2)} | {"task-1": 0.0, "task-3": 1.0})
    driver, source = make(tmp_path, played)
    for version in range(4):
        rollout = await driver.collect(source, version)
        assert len(rollout.kept) == 4
        for group in rollout.kept:
            assert {sample.reward for sample in flatten(group)} == {1.0, -1.0}
    assert sum(rollout.dropped.values()) > 0
    assert set(rollout.dropped) <= {"all_solved", "all_unsolved"}


async def test_a_batch_is_the_same_whatever_ends_first(tmp_path):
    ends = {f"task-{number}": 0.0 for number in range(0, 40, 3)}
    runs = []
    for slots in (4, 64):
        driver, source = make(tmp_path, Played(ends, seconds=0.01), slots=slots)
        rollouts = [await driver.collect(source, version) for version in range(5)]
        runs.append([(numbers(rollout.kept), numbers(rollout.played), rollout.dropped) for rollout in rollouts])
    assert runs[0] == runs[1]
    assert [number for _, played, _ in runs[0] for number in played] == list(range(sum(len(run[1]) for run in runs[0])))


@pytest.mark.parametrize("poison", [{}, {"task-3": "broken"}])
def test_a_curriculum_knows_each_episode_once_but_for_what_infrastructure_broke(tmp_path, poison):
    """Groups that the filter drops count too; and the batches are the same whatever ends first."""
    ends = poison | {f"task-{number}": number % 4 / 3 for number in range(4, 40)}
    bounds = {"swe_retire_above": 0.8, "swe_boost_below": 0.05, "swe_rate_episodes": SIZE}

    async def run(slots: int) -> list[str | None]:
        driver, source = make(tmp_path, Played(ends, seconds=10.0), slots=slots)
        source = TaskDataSource(Namespace(**vars(source.args), **bounds))
        rollouts = [await driver.collect(source, version) for version in range(12)]
        source.save(11)
        kept = orjson.loads(state_path(tmp_path, 11).read_bytes())["outcomes"]
        groups = [task_id_of(flatten(group)[0]) for rollout in rollouts for group in rollout.played]
        rates = {task: text.count("1") / SIZE for task, text in kept.items()}
        assert rates == pytest.approx({t: Played(ends).share(t) for t in groups if ends.get(t) != "broken"})
        assert all(groups.count(task) == 1 for task, rate in rates.items() if rate > 0.8), "it is retired"
        return groups

    runs = [simulate(run(slots)) for slots in (4, 64)]
    assert poison or runs[0] == runs[1]


async def test_what_is_requeued_is_played_anew_as_it_first_was(tmp_path):
    driver, source = make(tmp_path, Played({f"task-{number}": 0.0 for number in range(30)}, seconds=0.01))
    rollouts = [await driver.collect(source, version) for version in range(12)]
    assert sum(rollout.requeued for rollout in rollouts) > 0
    seen = [sample for rollout in rollouts for group in rollout.played for sample in flatten(group)]
    assert [sample.index for sample in seen] == list(range(len(seen))), "each once, although some began twice"


async def test_no_more_episodes_run_than_there_are_slots_and_none_is_left(tmp_path):
    played = Played(seconds=0.01)
    driver, source = make(tmp_path, played, slots=6)
    await driver.collect(source, 0)
    assert played.most <= 6 and played.running == 0
    playing = asyncio.ensure_future(driver.collect(source, 1))
    await asyncio.sleep(0.005)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert played.running == 0


def test_poison_tasks_are_quarantined_and_cost_little(tmp_path):
    """`TRIES` at first and a few more, while others of the group are tried; then at most one more each, as often as an
    episode that began later has been sound: where the first is broken again, the others are not tried."""
    poison = {f"task-{number}": "broken" for number in (3, 17, 31)}

    async def run() -> None:
        played = Played(poison, seconds=1800.0)
        driver, source = make(tmp_path, played)
        rollouts = [await driver.collect(source, version) for version in range(60)]
        least, most = TRIES * SIZE + MOST_OF_A_TASK - 1, 1.5 * (TRIES + MOST_OF_A_TASK - 1) * SIZE
        assert all(least <= played.calls[task] <= most for task in poison)
        assert sum(played.calls[task] for task in poison) < 0.12 * sum(played.calls.values())
        assert sum(rollout.dropped["infrastructure"] for rollout in rollouts) == 3
        lost = [sample for rollout in rollouts for group in rollout.played for sample in flatten(group)]
        earlier = {task: 0 for task in poison}
        for sample in lost:
            if (task := task_id_of(sample)) in poison:
                earlier[task] += episode_of(sample).counters.broken_attempts["sandbox_error"]
        assert earlier == {task: played.calls[task] - SIZE for task in poison}, "all but the last of each"
        assert not any(task_id_of(flatten(group)[0]) in poison for rollout in rollouts for group in rollout.kept)
        source.save(59)
        resumed = TaskDataSource(source.args)
        resumed.load(59)
        assert not {task_id_of(group[0]) for group in resumed.get_samples(80)} & set(poison)

    simulate(run())


def test_an_outage_that_lasts_is_logged_begins_little_and_ends_the_run(tmp_path, caplog):
    played = Played({f"task-{number}": "broken" for number in range(40)})

    async def run() -> float:
        driver, source = make(tmp_path, played, most_in_a_row=8, limit=1200.0)
        said = r"every try that began since .* UTC: \d+ in \d+ seconds, .* no such image.*outage_limit=1200"
        with pytest.raises(InfrastructureError, match=said):
            await driver.collect(source, 0)
        assert source.get_samples(40), "no task is quarantined for it"
        return asyncio.get_running_loop().time()

    assert 1200 <= simulate(run()) < 1300
    assert sum(played.calls.values()) <= 32 + 2 * 1200 / LONGEST + 12
    assert [record.message for record in caplog.records if "collect" not in record.name] == [
        "infrastructure breaks every episode that begins, so that few begin until one lasts: sandbox_error: "
        "no such image"
    ]


async def test_a_filter_that_keeps_nothing_is_named(tmp_path):
    driver, source = make(tmp_path, Played({f"task-{number}": 0.0 for number in range(40)}))
    with pytest.raises(FilterError, match=r"none of 200 groups was informative, by slime_swe.*keep_group: choose"):
        await driver.collect(source, 0)


class Silent(Played):
    """Episodes of one turn, which call a tool in the episodes of these indices alone; these take longer."""

    def __init__(self, calling: set[int], ends: dict[str, float | str] | None = None, turns: int = 1) -> None:
        super().__init__(ends)
        self.calling, self.turns = calling, turns

    async def __call__(self, args: Namespace, sample: Sample, params: dict) -> Sample:
        calls = sample.index in self.calling
        await asyncio.sleep(0.2 * calls)
        sample = await super().__call__(args, sample, params)
        counters = {"tool_calls": {"view": 1} if calls else {}, "malformed_calls": 2 * (not calls)}
        sample.metadata["episode"] = {"patch": "", "turns": self.turns, "counters": counters}
        return sample


def make_silent(tmp_path, played: Silent, scheduler=None, **changes) -> tuple:
    driver, source = make(tmp_path, played, slots=32)
    given = {"swe_agent": "native", "swe_tool_format": "hermes", "swe_run_dir": "/runs/first"}
    player = Player(Namespace(**vars(driver.player.args) | given), RolloutHooks(played, no_reward, keep_group))
    return Driver(player, scheduler or DynamicSampling(4, 2.0), first_calls=FirstCalls(), **changes), source


@pytest.mark.parametrize("in_background", [False, True])
async def test_a_run_whose_policy_never_calls_a_tool_ends_after_a_hundred_episodes(tmp_path, in_background):
    """Also where the filter finds batches in them, which a policy that solves nothing does not give."""
    played = Silent(set())
    driver, source = make_silent(
        tmp_path, played, PacedAdmission(4, 2) if in_background else None, in_background=in_background
    )
    with pytest.raises(UserError, match=r"^the first 100 episodes of rollout.agent=native hold not one") as caught:
        for version in range(20):
            await driver.collect(source, version)
    assert not isinstance(caught.value, FilterError)
    for said in (
        "model.tool_format=hermes",
        "slime-swe probe recipe=/runs/first/recipe.yaml",
        "warm start",
        "200 are mal",
    ):
        assert said in str(caught.value)
    assert 100 <= sum(played.calls.values()) <= 100 + 64 and played.running == 0


async def test_one_call_in_a_hundred_episodes_is_enough_though_it_ends_last(tmp_path):
    played = Silent({3})
    driver, source = make_silent(tmp_path, played)
    for version in range(12):
        await driver.collect(source, version)
    assert sum(played.calls.values()) > 150 and driver.first_calls.called


def test_episodes_that_infrastructure_broke_or_without_a_turn_say_nothing_of_calls(tmp_path):
    poison = {f"task-{number}": "broken" for number in range(0, 40, 2)}

    async def run() -> None:
        played = Silent(set(), poison)
        driver, source = make_silent(tmp_path, played)
        with pytest.raises(UserError, match=r"^the first 100 episodes"):
            for version in range(20):
                await driver.collect(source, version)
        assert sum(count for task, count in played.calls.items() if task not in poison) >= 100
        driver, source = make_silent(tmp_path, Silent(set(), turns=0))
        for version in range(10):
            await driver.collect(source, version)
        assert driver.first_calls.seen([]) == 0

    simulate(run())


@pytest.mark.parametrize(
    ("generate", "agent", "counts"),
    [
        ("slime_swe.rollout.slime_plugin.generate", "native", True),
        ("slime_swe.rollout.slime_plugin.generate", "mini_swe_agent", True),
        ("slime_swe.rollout.slime_plugin.generate", "aider", False),
        ("slime_swe.rollout.slime_plugin.generate", "blocks", False),
        ("my_module.generate", "native", False),
    ],
)
@pytest.mark.parametrize("schedule", ["sync", "continuous"])
async def test_the_calls_of_agents_whose_policy_acts_by_calls_are_counted(tmp_path, generate, agent, counts, schedule):
    """By the one driver of SLiME's path and the embedded loop. A generate function of one's own may record none."""
    made, _ = make(tmp_path, Played())
    given = {"custom_generate_function_path": generate, "swe_agent": agent, "swe_schedule": schedule}
    args = Namespace(**vars(made.player.args), **given, swe_max_over_sampling=2.0, swe_max_staleness=2)
    driver = await driver_of(args, made.player.hooks)
    assert (driver.first_calls is not None) is counts


@pytest.mark.parametrize(("verdict", "reason"), [(False, "unnamed"), (True, "")])
async def test_a_filter_may_give_a_truth_value(tmp_path, verdict, reason):
    seen = []

    def group_filter(args, group):
        seen.append(group)
        return verdict if len(seen) == 1 else True

    driver, source = make(tmp_path, Played(), group_filter=group_filter)
    assert "".join((await driver.collect(source, 0)).dropped) == reason


async def test_without_a_filter_every_group_is_kept(tmp_path):
    driver, source = make(tmp_path, Played({"task-1": 0.0}), group_filter=None)
    assert numbers((await driver.collect(source, 0)).kept) == [0, 1, 2, 3]


async def test_a_checkpoint_goes_on_from_the_end_of_its_rollout(tmp_path):
    """As with `train_async.py`, which samples the next rollout before it has saved this one."""
    driver, source = make(tmp_path, Played())
    await driver.collect(source, 0)
    following = await driver.collect(source, 1)
    source.save(0)
    resumed = TaskDataSource(source.args)
    resumed.load(0)
    again, _ = make(tmp_path, Played())
    assert numbers((await again.collect(resumed, 1)).played) == numbers(following.played)


@pytest.mark.parametrize("in_background", [False, True])
async def test_what_a_batch_leaves_unfinished_goes_on(tmp_path, in_background):
    """Each group once, and none begun more than two steps before it is trained."""
    played = Played({f"task-{number}": 0.0 for number in range(0, 40, 4)}, seconds=0.02)
    driver, source = make(tmp_path, played, slots=24)
    driver = Driver(driver.player, PacedAdmission(4, 2), in_background=in_background)
    rollouts = []
    for version in range(8):
        rollouts.append(await driver.collect(source, version))
        before = sum(played.calls.values())
        await asyncio.sleep(0.03)  # training
        assert (sum(played.calls.values()) > before) == in_background
    kept = [number for rollout in rollouts for number in numbers(rollout.kept)]
    assert len(kept) == len(set(kept)) == 32
    assert max(max(rollout.staleness) for rollout in rollouts) <= 2
    assert not any(rollout.requeued for rollout in rollouts)
    assert max(played.calls.values()) <= SIZE * 2, "no episode was begun twice in an epoch"
    source.save(7)
    resumed = TaskDataSource(source.args)
    resumed.load(7)
    ended = {number for rollout in rollouts for number in numbers(rollout.played)}
    following = [group[0].group_index for group in resumed.get_samples(12)]
    assert ended.isdisjoint(following) and {*range(max(following))} == ended | {*following} - {max(following)}
    await driver.close()
    assert played.running == 0


async def test_what_fails_between_two_steps_ends_the_next(tmp_path):
    played = Played({"task-7": 0.5}, seconds=0.01)
    driver, source = make(tmp_path, played)

    def group_filter(args, group):
        if failing:
            raise KeyError("a fault of the filter")
        return True

    failing = False

    driver = Driver(
        Player(driver.player.args, RolloutHooks(played, no_reward, group_filter)),
        PacedAdmission(4, 2),
        in_background=True,
    )
    await driver.collect(source, 0)
    failing = True
    with pytest.raises(KeyError):  # as soon as what has ended before is not enough
        for version in range(1, 5):
            await driver.collect(source, version)
    assert played.running == 0


@pytest.mark.parametrize("in_background", [False, True])
async def test_an_evaluation_is_played_beside_the_episodes_of_training(tmp_path, in_background):
    """With their slots, before groups that begin later; but with its own where those wait and keep theirs."""
    begun, paused = list[bool](), asyncio.Event()

    async def generate(args: Namespace, sample: Sample, params: dict, evaluation: bool) -> Sample:
        begun.append(evaluation)
        if not in_background and not evaluation:
            await paused.wait()
        return await played(args, sample, params)

    played, slots = Played(seconds=0.01), 8
    driver, source = make(tmp_path, played, slots=slots)
    player = Player(driver.player.args, RolloutHooks(generate, no_reward, None))
    driver = Driver(player, PacedAdmission(4, 2), in_background=in_background)
    training = asyncio.ensure_future(driver.collect(source, 0))
    while sum(not evaluation for evaluation in begun) < slots:
        await asyncio.sleep(0)
    before = len(begun)
    samples = await evaluate(driver.evaluator(), forty("x")[:6])
    assert len(samples) == 12 and all(sample.status is Sample.Status.COMPLETED for sample in samples)
    assert begun[before:].index(False) >= 12 - slots if in_background else False not in begun[before:]
    assert played.most <= slots
    paused.set()
    await training
    await driver.close()


@pytest.mark.parametrize("in_background", [False, True])
def test_slots_are_given_to_the_next_group_as_its_predecessors_episodes_end(tmp_path, in_background):
    """On a simulated clock: episodes of minutes, some much longer, and gradings."""
    slots, playing, busy = 32, 0, 0.0
    dice = random.Random(3)

    async def generate(args: Namespace, sample: Sample, params: dict) -> Sample:
        nonlocal playing, busy
        playing += 1
        assert playing <= slots
        seconds = min(dice.lognormvariate(5.0, 0.7), 500.0)
        await asyncio.sleep(seconds)
        busy += seconds
        playing -= 1
        sample.status = Sample.Status.COMPLETED
        return sample

    async def reward(args: Namespace, sample: Sample) -> float:
        await asyncio.sleep(60)
        return 1.0

    async def run() -> float:
        driver, source = make(tmp_path, Played(), batch=10, slots=slots)
        player = Player(driver.player.args, RolloutHooks(generate, reward, None))
        driver = Driver(player, PacedAdmission(10, 2), in_background=in_background)
        for version in range(12):
            await driver.collect(source, version)
            if in_background:
                await asyncio.sleep(120)  # training; without it sampling waits meanwhile
        await driver.close()
        return busy / (slots * asyncio.get_running_loop().time())

    assert simulate(run()) > 0.85
