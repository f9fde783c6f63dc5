"""Episodes are admitted by what an engine says that it kept in its cache: a real agent, a scripted engine. What
infrastructure breaks is tried again, by the player alone: on a simulated clock."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from slime_swe.launch.plan.simulation.machines import simulate
from slime_swe.rollout import slime_plugin
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.play import Play, Player
from slime_swe.rollout.records import episode_of, write_failure
from slime_swe.rollout.scripted import by_turn, scripted_engine
from slime_swe.sample import Sample
from tests.rollout.support import PARAMS, SUBMIT, VIEW, make_args, make_sample, no_reward

TURNS = (VIEW, VIEW, SUBMIT)


@pytest.fixture
def playing(tokenizer, checkpoint, tmp_path):
    """Plays so many episodes one after the other with an engine that keeps a share of each prompt; the player."""

    async def play(episodes: int, kept: float, *, versions: bool = False, **changes) -> Player:
        async with scripted_engine(tokenizer, by_turn(*TURNS), cached=lambda prompt: int(kept * len(prompt))) as engine:
            given = {"swe_cached_episodes": 8.0, "sglang_server_concurrency": 32} | changes
            args = make_args(checkpoint, engine.url, tmp_path, **given)
            player = Player(args, RolloutHooks(slime_plugin.generate, no_reward, None))
            usual, calls = engine.answer, 0

            def answer(asked):
                nonlocal calls
                calls += versions
                engine.weight_version = str(calls)
                return usual(asked)

            engine.answer = answer  # type: ignore[method-assign]
            for index in range(episodes):
                sample = await player.play(Play(make_sample(index)), dict(PARAMS), evaluation=False)
                assert isinstance(sample, Sample) and sample.metadata["episode"]["stop_reason"] == "submitted"
        return player

    return play


async def test_an_engine_that_loses_prefixes_gets_fewer_episodes_and_says_so(playing, caplog):
    """One after the other, so that one is in use at once: the limit falls to the least at the first look."""
    with caplog.at_level(logging.WARNING):
        player = await playing(2, kept=0.3)
    assert player.admission.bounds.start == 8 and player.slots == player.admission.bounds.least == 4
    (said,) = [record.getMessage() for record in caplog.records if "at once" in record.getMessage()]
    assert said.startswith("the engines' caches hold fewer episodes: 4 at once from now on, 8 before; ")


async def test_an_engine_that_keeps_them_gets_more(playing):
    player = await playing(2, kept=1.0, swe_cached_episodes=1.0, sglang_server_concurrency=3)
    assert player.admission.bounds.start == 1 and player.slots == 2, "one is in use, so that no more are asked for"


async def test_what_new_weights_empty_the_cache_of_is_not_lost(playing):
    assert (await playing(2, kept=0.0, versions=True)).slots == 8


async def test_without_a_known_cache_nothing_changes(playing):
    assert (await playing(2, kept=0.0, swe_cached_episodes=0.0)).slots == 32


async def test_those_that_wait_are_let_in_in_order_as_the_limit_grows_and_held_as_it_shrinks(tmp_path):
    running: list[int] = []
    ended: dict[int, asyncio.Event] = {}
    lost = 0

    async def generate(args, sample, params):
        running.append(sample.index)
        await ended.setdefault(sample.index, asyncio.Event()).wait()
        sample.metadata = {"episode": {"patch": "", "counters": {"known_tokens": 100, "lost_tokens": lost}}}
        running.remove(sample.index)
        return sample

    args = make_args("none", "http://127.0.0.1:1", tmp_path, swe_cached_episodes=4.0, sglang_server_concurrency=6)
    player = Player(args, RolloutHooks(generate, no_reward, None))
    tasks = [asyncio.create_task(player.play(Play(Sample(index=i)), {}, evaluation=False)) for i in range(16)]

    async def end(index: int) -> list[int]:
        ended[index].set()
        await tasks[index]
        return [*running]

    await asyncio.sleep(0)
    assert running == [0, 1, 2, 3]
    assert await end(1) == [0, 2, 3, 4, 5], "one more"
    tasks[6].cancel()
    assert await end(0) == [2, 3, 4, 5, 7, 8], "the most, without one that is wanted no more"
    lost = 90
    assert await end(2) == [3, 4, 5, 7, 8] and player.slots == 4
    assert await end(3) == [4, 5, 7, 8] and player.slots == 4, "it was played beside six"
    for index in (4, 5, 7, 8):
        await end(index)
    assert running == [9, 10, 11, 12] and player.slots == 4, "the last of those"
    assert await end(9) == [10, 11, 12] and player.slots == 3
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not running or len(running) == 3


class Breaking:
    """Hooks that infrastructure breaks so often for each episode, and so often for each grading of one.

    plays: attempts at each. gradings: the same.
    """

    def __init__(self, plays: dict[int, int], gradings: dict[int, int]) -> None:
        self.to_play, self.to_grade = plays, gradings
        self.plays, self.gradings = Counter[int](), Counter[int]()

    async def generate(self, args, sample, params):
        sample.metadata["episode"] = {"patch": "", "counters": {"edits": 1}}
        sample.status = Sample.Status.COMPLETED
        self.plays[sample.index] += 1
        await asyncio.sleep(1 + sample.index)
        if self.plays[sample.index] <= self.to_play.get(sample.index, 0):
            write_failure(sample, "sandbox_error", "gone")
        return sample

    async def reward(self, args, sample):
        self.gradings[sample.index] += 1
        if self.gradings[sample.index] <= self.to_grade.get(sample.index, 0):
            write_failure(sample, "grader_error", "gone")
        return sample.reward if sample.status is Sample.Status.ABORTED else 1.0

    def player(self, tmp_path, attempts: int) -> Player:
        args = make_args(
            "none", "http://127.0.0.1:1", tmp_path, swe_max_attempts=attempts, sglang_server_concurrency=9,
            rollout_temperature=1.0, rollout_top_p=1.0, rollout_top_k=-1, rollout_max_response_len=8,
            rollout_stop=None, rollout_stop_token_ids=None, rollout_skip_special_tokens=False,
        )  # fmt: skip
        return Player(args, RolloutHooks(self.generate, self.reward, None))


def earlier(sample: Sample) -> dict[str, int]:
    counters = episode_of(sample).counters
    assert counters.edits == 1, "as the hook left it"
    return counters.broken_attempts


@pytest.mark.parametrize(
    ("plays", "gradings", "attempts", "tried", "broken"),
    [
        (0, 0, 3, (1, 1), {}),
        (2, 2, 3, (3, 3), {"sandbox_error": 2, "grader_error": 2}),
        (3, 0, 3, (3, 0), {"sandbox_error": 2}),
        (1, 3, 3, (2, 3), {"sandbox_error": 1, "grader_error": 2}),
        (1, 0, 1, (1, 0), {}),
        (0, 1, 1, (1, 1), {}),
    ],
)
def test_an_episode_and_then_its_grading_are_each_tried_so_often(tmp_path, plays, gradings, attempts, tried, broken):
    hooks = Breaking({0: plays}, {0: gradings})
    player = hooks.player(tmp_path, attempts)
    sample = simulate(player.play(Play(Sample(index=0)), {}, evaluation=True))
    assert (hooks.plays[0], hooks.gradings[0]) == tried
    assert earlier(sample) == broken
    assert (sample.status is Sample.Status.ABORTED) == (max(plays, gradings) >= attempts)


def test_a_single_attempt_is_one_in_a_group_too(tmp_path):
    """Others of it are still played, and then graded."""
    hooks = Breaking({0: 1}, {1: 1})
    plays = [Play(Sample(index=index)) for index in range(5)]
    group = simulate(hooks.player(tmp_path, 1).play_group(plays))
    assert (hooks.plays, hooks.gradings) == (Counter(range(5)), Counter(range(1, 5)))
    assert [sample.status.value for sample in group] == ["aborted"] * 2 + ["completed"] * 3


def test_attempts_are_counted_on_where_a_group_is_put_off(tmp_path):
    """The first can't be played, the second not graded: so the first two rounds leave one sound episode, or none."""
    hooks = Breaking({0: 1}, {1: 2})
    player, plays = hooks.player(tmp_path, 1), [Play(Sample(index=index)) for index in range(3)]
    first, second, third = (simulate(player.play_group(plays)) for _ in range(3))
    assert [[sample.status.value for sample in group] for group in (first, second, third)] == [
        ["aborted", "aborted", "completed"],
        ["completed", "aborted", "completed"],
        ["completed"] * 3,
    ]
    assert [earlier(sample) for sample in third] == [{"sandbox_error": 1}, {"grader_error": 2}, {}]
    assert (hooks.plays, hooks.gradings) == (Counter([0, 0, 1, 2]), Counter([0, 1, 1, 1, 2])), "what is sound is kept"
