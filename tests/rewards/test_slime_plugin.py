from __future__ import annotations

import inspect
from argparse import Namespace

import numpy as np
import pytest

from slime_swe.errors import UserError
from slime_swe.rewards import slime_plugin
from slime_swe.rewards.slime_plugin import DynamicFilterOutput
from slime_swe.rollout.hooks import RolloutHooks, checked_reward
from slime_swe.rollout.play import Play, Player
from slime_swe.sample import Sample
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.local import LocalBackend
from tests.data_sources.tasks import GOLD, make_task

WRONG = GOLD.replace("+    return a + b", "+    return a * b")


def make_args(**changes) -> Namespace:
    values = {
        "hf_checkpoint": "unused",
        "rollout_max_context_len": 100,
        "rollout_seed": 3,
        "sglang_router_ip": "127.0.0.1",
        "sglang_router_port": 1,
        "reward_key": None,
        "rewards_normalization": True,
        "grpo_std_normalization": False,
        "swe_agent": "native",
        "swe_tool_format": "hermes",
        "swe_system_prompt": "",
        "swe_max_turns": 6,
        "swe_time_budget": 20,
        "swe_sandbox": "local",
        "swe_sandbox_concurrency": 4,
        "swe_reward_mode": "plus_minus",
        "swe_max_attempts": 2,
        "swe_run_dir": "unused",
    }
    return Namespace(**{**values, **changes})


def episode(index: int, patch: str = GOLD, *, group: int = 0, first_edit=None, evaluation=False, **changes) -> Sample:
    record = {"patch": patch, "counters": {"first_edit_patch": first_edit}, "evaluation": evaluation}
    metadata = {"task": make_task().to_dict(), "episode": record}
    status = changes.pop("status", Sample.Status.COMPLETED)
    return Sample(index=index, rollout_id=index, group_index=group, metadata=metadata, status=status, **changes)


def graded(index: int, solved: bool, value: float | None = None, **changes) -> Sample:
    sample = episode(index, **changes)
    sample.reward = float(solved) if value is None else value
    sample.metadata["score"] = {"value": sample.reward, "solved": solved}
    return sample


def by_degree(index: int, value: float) -> Sample:
    """What an oracle gives that grades by a degree, of which a right answer has 1."""
    sample = graded(index, value == 1.0, value)
    sample.metadata["score"]["spread"] = 0.05
    return sample


def broken(index: int, **changes) -> Sample:
    return episode(index, status=Sample.Status.ABORTED, reward=0.0, remove_sample=True, **changes)


def masked(index: int, solved: bool, **changes) -> Sample:
    """Truncated, and left out of the loss for it."""
    sample = graded(index, solved, status=Sample.Status.TRUNCATED, remove_sample=True, **changes)
    sample.metadata["episode"]["masked"] = True
    return sample


def test_the_signatures_are_slime_s():
    assert inspect.iscoroutinefunction(slime_plugin.reward)
    for function in (slime_plugin.reward, slime_plugin.post_process, slime_plugin.keep_group):
        assert next(iter(inspect.signature(function).parameters)) == "args"
    assert list(inspect.signature(slime_plugin.keep_group).parameters)[1] == "samples"


async def test_a_patch_is_graded_and_the_evidence_kept():
    good, bad, none = episode(0), episode(1, WRONG), episode(2, "")
    assert await slime_plugin.reward(make_args(), good) == 1.0
    assert await slime_plugin.reward(make_args(), [bad, none]) == [-1.0, -1.0]
    assert good.metadata["score"]["solved"] and not bad.metadata["score"]["solved"]
    assert bad.metadata["score"]["value"] == -1.0
    assert good.metadata["score"]["evidence"]
    assert "first_edit_solved" not in good.metadata["score"]


async def test_other_modes():
    assert await slime_plugin.reward(make_args(swe_reward_mode="binary"), episode(0, WRONG)) == 0.0
    assert await slime_plugin.reward(make_args(swe_reward_mode="binary"), episode(0)) == 1.0


async def test_siblings_share_one_grading():
    one, two = episode(4), episode(-5, "nonsense that is never looked at")
    two.rollout_id = 4
    assert await slime_plugin.reward(make_args(), [one, two]) == [1.0, 1.0]
    assert one.metadata["score"] == two.metadata["score"]


async def test_the_first_edit_is_graded_in_evaluations():
    cases = [(GOLD, GOLD, True), ("", GOLD, True), (GOLD, WRONG, False), (GOLD, None, False)]
    for final, first, solved in cases:
        sample = episode(0, final, first_edit=first, evaluation=True)
        await slime_plugin.reward(make_args(), sample)
        assert sample.metadata["score"]["first_edit_solved"] is solved


async def test_what_infrastructure_broke_is_not_graded():
    sample = broken(0, patch=GOLD)
    assert await slime_plugin.reward(make_args(), sample) == 0.0
    assert "score" not in sample.metadata and sample.remove_sample


@pytest.mark.parametrize("status", [Sample.Status.PENDING, Sample.Status.FAILED])
async def test_a_rollout_that_came_to_no_episode_is_infrastructure(status):
    sample = Sample(index=0, status=status, metadata={"task": make_task().to_dict()})
    assert await slime_plugin.reward(make_args(), sample) == 0.0
    assert sample.status is Sample.Status.ABORTED and sample.remove_sample
    assert sample.metadata["infrastructure"]["where"] == "no_episode"


async def test_a_finished_sample_without_an_episode_says_what_to_do():
    sample = Sample(index=7, status=Sample.Status.COMPLETED, metadata={"task": make_task().to_dict()})
    with pytest.raises(UserError, match=r"sample 7 is completed .*generate function of your own must"):
        await slime_plugin.reward(make_args(), sample)


class DyingBackend(LocalBackend):
    """Dies `left` times, then works as the local sandbox does."""

    left = 0
    opened = 0

    def open(self, spec):
        DyingBackend.opened += 1
        if DyingBackend.opened <= DyingBackend.left:
            raise SandboxError("the sandbox died")
        return super().open(spec)


@pytest.mark.parametrize(
    ("deaths", "opened", "reward"),
    # Each of two tries opens two sandboxes, for the tests and their control, unless the first that dies ends it before
    # the other; what is believed, two more for the task's own controls.
    [(1, 6, 1.0), (99, 4, 0.0)],
)
async def test_the_player_tries_a_grader_that_fails_again_and_then_it_is_infrastructure(deaths, opened, reward):
    DyingBackend.opened, DyingBackend.left = 0, deaths
    args = make_args(swe_sandbox="tests.rewards.test_slime_plugin.DyingBackend", sglang_server_concurrency=1)
    generated = []

    async def generate(args, sample, params):
        generated.append(sample.index)
        siblings = [episode(0), episode(-1)]
        siblings[1].rollout_id = 0
        return siblings

    play = Play(Sample(index=0))
    one, two = await Player(args, RolloutHooks(generate, slime_plugin.reward, None)).play(play, {}, evaluation=False)
    assert (one.reward, two.reward, generated) == (reward, reward, [0])
    assert opened - 2 <= DyingBackend.opened <= opened
    for sample in (one, two):
        assert sample.metadata["episode"]["counters"]["broken_attempts"] == {"grader_error": 1}
        assert (sample.status is Sample.Status.ABORTED) == sample.remove_sample == (reward == 0.0)
    if reward == 0.0:
        assert one.metadata["infrastructure"]["where"] == "grader_error"
        assert "the sandbox died" in one.metadata["infrastructure"]["detail"]
        assert slime_plugin.post_process(args, [one, two, graded(2, True), graded(3, False)])[1] == [0, 0, 0.5, -0.5]


async def test_the_hook_asks_a_grader_once():
    DyingBackend.opened, DyingBackend.left = 0, 2
    args, sample = make_args(swe_sandbox="tests.rewards.test_slime_plugin.DyingBackend"), episode(0)
    assert await slime_plugin.reward(args, sample) == 0.0
    assert DyingBackend.opened <= 2
    assert sample.status is Sample.Status.ABORTED and sample.remove_sample and "score" not in sample.metadata


def test_advantages_are_per_group_and_per_trajectory():
    fan_out = [graded(0, True), graded(-1, True)]
    fan_out[1].rollout_id = 0
    samples = [*fan_out, graded(1, False), broken(2), graded(8, True, group=1), graded(9, True, group=1)]
    raw, advantages = slime_plugin.post_process(make_args(), samples)
    assert raw == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    assert advantages == [0.5, 0.5, -0.5, 0.0, 0.0, 0.0]
    nested = [[fan_out, samples[2], samples[3]], samples[4:]]
    assert slime_plugin.post_process(make_args(), nested) == (raw, advantages)


def test_an_episode_that_is_left_out_of_the_loss_counts_in_the_baseline():
    samples = [graded(0, True), masked(1, False), masked(2, False), graded(3, False), broken(4)]
    assert slime_plugin.post_process(make_args(), samples)[1] == [0.75, -0.25, -0.25, -0.25, 0.0]


def test_advantages_of_an_odd_number_of_samples_do_not_become_one_group():
    samples = [graded(i, True, group=0) for i in range(3)] + [graded(i, False, group=1) for i in range(3, 5)]
    assert slime_plugin.post_process(make_args(grpo_std_normalization=True), samples)[1] == [0.0] * 5


def test_a_sample_that_slime_aborted_before_us_has_no_reward_and_no_say():
    samples = [graded(0, True), graded(1, False), Sample(index=2, group_index=0, status=Sample.Status.ABORTED)]
    assert slime_plugin.post_process(make_args(), samples) == ([1.0, 0.0, 0.0], [0.5, -0.5, 0.0])


def test_without_normalisation_the_rewards_are_the_advantages():
    removed = graded(2, True)
    removed.remove_sample = True
    raw, advantages = slime_plugin.post_process(
        make_args(rewards_normalization=False), [graded(0, True), broken(1), removed]
    )
    assert (raw, advantages) == ([1.0, 0.0, 1.0], [1.0, 0.0, 0.0])


def test_a_reward_of_several_is_read_by_its_key():
    samples = [Sample(index=i, group_index=0, reward={"a": float(i)}) for i in range(2)]
    assert slime_plugin.post_process(make_args(reward_key="a"), samples)[1] == [-0.5, 0.5]


@pytest.mark.parametrize(
    ("samples", "keep", "reason"),
    [
        ([graded(0, True), graded(1, False)], True, None),
        ([graded(0, True), graded(1, True)], False, "all_solved"),
        ([graded(0, False), graded(1, False)], False, "all_unsolved"),
        ([graded(0, False, 0.25), graded(1, False, 0.75)], False, "all_unsolved"),
        ([graded(0, True), broken(1)], False, "all_solved"),
        ([broken(0), broken(1)], False, "all_infrastructure_failures"),
        ([graded(0, True), masked(1, False)], True, None),
        ([graded(0, False), masked(1, False)], False, "all_unsolved"),
        ([masked(0, True), masked(1, False), broken(2)], False, "all_truncated"),
        ([[graded(0, True), graded(0, True)], [graded(1, False)]], True, None),
        ([[graded(0, True), graded(0, True)], graded(1, True)], False, "all_solved"),
        ([Sample(index=0, reward=1.0), Sample(index=1, reward=0.0)], True, None),
        ([Sample(index=0, reward=0.3), Sample(index=1, reward=0.2)], True, None),
        ([Sample(index=0, reward=0.3), Sample(index=1, reward=0.3)], False, "all_solved"),
        ([Sample(index=0, reward=-0.3), Sample(index=1, reward=-0.3)], False, "all_unsolved"),
        ([by_degree(0, 0.3), by_degree(1, 0.36)], True, None),
        ([by_degree(0, 0.3), by_degree(1, 0.35)], False, "all_unsolved"),
        ([by_degree(0, 1.0), by_degree(1, 0.98)], False, "all_unsolved"),
        ([by_degree(0, 1.0), by_degree(1, 1.0)], False, "all_solved"),
        ([by_degree(0, 0.3), broken(1)], False, "all_unsolved"),
        ([[by_degree(0, 0.3), by_degree(0, 0.3)], by_degree(1, 0.3)], False, "all_unsolved"),
    ],
)
def test_groups_are_filtered_on_whether_their_episodes_differ(samples, keep, reason):
    output = slime_plugin.keep_group(make_args(), samples, anything=1)
    assert isinstance(output, DynamicFilterOutput)
    assert (output.keep, output.reason) == (keep, reason)
    assert not output.keep_when_insufficient, "SLiME's own rollout function would train it"


def test_the_filter_s_answer_is_slime_s_own_type():
    theirs = pytest.importorskip("slime.rollout.filter_hub.base_types", reason="SLiME is not installed")
    assert DynamicFilterOutput is theirs.DynamicFilterOutput


@pytest.mark.parametrize("given", ["1", [1.0], {"total": 1.0}, float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_named(given):
    sample = episode(0)
    sample.reward = given
    with pytest.raises(UserError, match=r"reward.function gave .* for sample 0: a reward is a finite number"):
        slime_plugin.post_process(make_args(), [sample])


async def raising(args, sample):
    return 1 / 0


async def as_text(args, sample):
    return "solved"


async def too_few(args, sample):
    return [1.0]


async def no_sandbox(args, sample):
    raise SandboxError("no room")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raising, r"reward.function=mine.score failed: ZeroDivisionError: .*test_slime_plugin.py, line \d+\)"),
        (as_text, r"reward.function=mine.score gave 'solved' \(str\): a reward is a finite number"),
        (too_few, r"reward.function=mine.score gave \[1.0\] \(list\) for 2 samples: give a list of as many"),
    ],
)
async def test_a_reward_function_of_the_user_s_own_that_fails_is_named(function, message):
    checked = checked_reward(function, "mine.score")
    given = [episode(0), episode(0)] if function is too_few else episode(0)
    with pytest.raises(UserError, match=message):
        await checked(make_args(), given)


async def test_a_reward_function_of_the_user_s_own_may_be_plain_and_may_have_parts():
    checked = checked_reward(lambda args, sample: {"total": 1.0}, "mine.score")
    assert await checked(make_args(reward_key="total"), episode(0)) == {"total": 1.0}
    with pytest.raises(UserError, match="a reward is a finite number"):
        await checked(make_args(), episode(0))
    with pytest.raises(SandboxError):
        await checked_reward(no_sandbox, "mine.score")(make_args(), episode(0))


@pytest.mark.parametrize(
    ("tokens", "turns", "long", "many"),
    [(60, 3, 0, 0), (80, 4, 0, 0), (90, 5, -0.25, -0.25), (100, 6, -0.5, -0.5), (120, 9, -0.5, -0.5)],
)
async def test_a_long_episode_loses_reward_and_not_its_outcome(tokens, turns, long, many):
    args = make_args(swe_overlong_tokens=20, swe_overlong_turns=2, swe_overlong_penalty=0.5)
    one, two = episode(0, tokens=[1] * tokens), episode(-1, tokens=[1])
    two.rollout_id = 0
    for sample in (one, two):
        sample.metadata["episode"]["turns"] = turns
    assert await slime_plugin.reward(args, [one, two]) == [1.0 + long + many] * 2
    score = one.metadata["score"]
    assert score["solved"] and score["components"]["overlong_tokens"] == long
    assert score["components"]["overlong_turns"] == many
    assert slime_plugin.keep_group(args, [one, graded(2, True)]).reason == "all_solved"


@pytest.mark.parametrize("given", [np.array([1.0, 2.0]), {"other": 1.0}, {"total": None}, None])
async def test_a_reward_of_another_type_or_without_its_key_is_named(given):
    args, sample = make_args(reward_key="total"), episode(0)
    sample.reward = given if given is not None else {}
    with pytest.raises(UserError, match="a reward is a finite number"):
        slime_plugin.post_process(args, [sample])
    if not isinstance(given, dict):
        with pytest.raises(UserError, match=r"reward.function=mine.score gave .*: a reward is a finite number"):
            await checked_reward(lambda args, sample: given, "mine.score")(args, sample)


async def test_a_number_of_numpy_s_is_a_reward():
    assert await checked_reward(lambda args, sample: np.float32(0.5), "mine.score")(make_args(), episode(0)) == 0.5
