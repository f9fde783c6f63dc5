"""What other settings make of a record, computed by hand beside it."""

from __future__ import annotations

import json
import math

import pytest

from slime_swe.launch.cli import run
from tests.launch.replay.made import FILTER, Played, make_run, refused, replayed

YES, NO = Played(True), Played(False)
MIXED, SOLVED, UNSOLVED = [YES, NO, NO, NO], [YES] * 4, [NO] * 4


def test_without_changes_there_is_the_run_alone(tmp_path, capsys):
    document = replayed(capsys, make_run(tmp_path, [[MIXED, SOLVED]], "rollout.batch_size=2"))
    assert document["changed"] == {} and "after" not in document and document["check"]["holds"]
    before = document["before"]
    assert before["groups"] == {"recorded": 2, "trained": 2, "missing": 0, "dropped": {}}
    assert (before["episodes"]["trained"], before["episodes"]["no_advantage"]) == (4, 4)
    assert before["tokens"] == {"sampled": 32, "in_loss": 32, "trained": 16, "masked_share": 0}


def test_a_filter_drops_and_without_it_the_oldest_groups_fill_the_batch(tmp_path, capsys):
    dropped = "all_unsolved", "all_solved"
    folder = make_run(tmp_path, [[UNSOLVED, MIXED, SOLVED, MIXED]], "rollout.batch_size=2", FILTER, dropped=dropped)
    document = replayed(capsys, folder, "algorithm.group_filter=")
    before, after = document["before"]["groups"], document["after"]["groups"]
    assert before == {"recorded": 4, "trained": 2, "missing": 0, "dropped": {"all_solved": 1, "all_unsolved": 1}}
    assert after == {"recorded": 4, "trained": 2, "missing": 0, "dropped": {"not_needed": 2}}
    assert document["changes"]["lost"] == 4, "the second mixed group's"


def test_a_stricter_filter_leaves_a_batch_short(tmp_path, capsys):
    document = replayed(capsys, make_run(tmp_path, [[MIXED, SOLVED]], "rollout.batch_size=2"), FILTER)
    assert document["after"]["groups"] == {"recorded": 2, "trained": 1, "missing": 1, "dropped": {"all_solved": 1}}
    spent = {"episodes": 8, "unused": 4, "unused_engine": 2, "dropped": 4, "unused_share": 0.5}
    assert document["after"]["seconds"] == spent


def test_the_deviation_scales_advantages_and_no_token_weighs_otherwise_in_one_group(tmp_path, capsys):
    folder = make_run(tmp_path, [[MIXED]], "rollout.batch_size=1")
    document = replayed(capsys, folder, "algorithm.std_normalization=true")
    before, after = document["before"]["advantage"], document["after"]["advantage"]
    assert (before["largest"], before["solved"]["mean"], before["unsolved"]["mean"]) == (1.5, 1.5, -0.5)
    assert after["largest"] == pytest.approx(1.5, rel=1e-5), "rewards 1, -1, -1, -1: their deviation is 1"
    folder = make_run(tmp_path / "b", [[[YES, NO]]], "rollout.batch_size=1")
    document = replayed(capsys, folder, "algorithm.std_normalization=true")
    assert document["before"]["advantage"]["largest"] == 1
    assert document["after"]["advantage"]["largest"] == pytest.approx(1 / math.sqrt(2), rel=1e-5)
    assert document["changes"]["correlation"] == pytest.approx(1)
    assert document["changes"]["gradient"] == pytest.approx(1 / math.sqrt(2), rel=1e-5)
    assert document["after"]["advantage"]["solved"]["bins"]["0.5 to 1"] == 1


@pytest.mark.parametrize(("reduction", "share"), [("trajectory", 1 / 2), ("token", 3 / 4), ("constant", 3 / 4)])
def test_a_long_episode_weighs_as_the_page_on_algorithms_says(tmp_path, capsys, reduction, share):
    long = Played(False, tokens=(2, 4))
    folder = make_run(tmp_path, [[[Played(True, tokens=(2,)), long]]], "rollout.batch_size=1")
    weight = replayed(capsys, folder, f"algorithm.reduction={reduction}")
    side = "before" if reduction == "trajectory" else "after"
    assert weight[side]["weight"]["loss_of_longest"] == pytest.approx(share)
    assert weight[side]["weight"]["gradient_of_unsolved"] == pytest.approx(share)
    assert weight[side]["episodes"]["recorded"] == 2, "an episode of two samples counts once"


def test_masking_by_stop_reason_takes_tokens_out_of_the_loss_and_not_out_of_the_baseline(tmp_path, capsys):
    cut = Played(False, tokens=(10,), stop="max_turns")
    folder = make_run(tmp_path, [[[YES, cut]]], "rollout.batch_size=1")
    document = replayed(capsys, folder, "rollout.mask_truncated=[max_turns]")
    after = document["after"]
    assert (after["episodes"]["masked"], after["tokens"]["in_loss"]) == (1, 4)
    assert after["tokens"]["masked_share"] == pytest.approx(10 / 14)
    assert after["advantage"]["solved"]["mean"] == 1, "the mean of both rewards is still 0"
    assert document["changes"]["lost"] == 1


def test_a_record_of_masked_episodes_can_be_asked_without_masks(tmp_path, capsys):
    cut = Played(False, tokens=(10,), stop="max_turns", masked=True)
    folder = make_run(tmp_path, [[[YES, cut]]], "rollout.batch_size=1", "rollout.mask_truncated=[max_turns]")
    document = replayed(capsys, folder, "rollout.mask_truncated=[]")
    assert (document["before"]["episodes"]["masked"], document["after"]["episodes"]["masked"]) == (1, 0)
    assert document["after"]["tokens"]["trained"] == 14 and document["changes"]["gained"] == 1


def test_rewards_under_another_mode_and_penalty(tmp_path, capsys):
    slow = Played(True, turns=8, reward=0.5, components={"overlong_turns": -0.5})
    settings = "rollout.batch_size=1", "reward.overlong_turns=4", "reward.overlong_penalty=0.5"
    folder = make_run(tmp_path, [[[slow, YES, NO, NO]]], *settings)
    document = replayed(capsys, folder, "reward.mode=binary", "reward.overlong_turns=0")
    assert document["before"]["advantage"]["solved"]["mean"] == pytest.approx(0.75 + 0.125)
    assert document["after"]["advantage"]["solved"]["mean"] == 0.5
    doubled = replayed(capsys, folder, "reward.overlong_penalty=1.0")
    assert doubled["after"]["advantage"]["solved"]["mean"] == pytest.approx((0 + 1) / 2 + 0.25)


def test_rewards_under_other_weights(tmp_path, capsys):
    """The made episodes have no malformed call, so that each turn is well-formed: a bonus for all of a group."""
    slow = Played(True, turns=8, reward=0.6, components={"overlong_turns": -0.5, "format": 0.1})
    own = "rollout.batch_size=1", "reward.overlong_turns=4", "reward.overlong_penalty=0.5"
    folder = make_run(tmp_path, [[[slow, YES, NO, NO]]], *own, "reward.weights={format: 0.1}")
    without = replayed(capsys, folder, "reward.overlong_turns=0", "reward.weights.format=0.0")
    assert without["after"]["advantage"]["solved"]["mean"] == 1.0
    more = replayed(capsys, folder, "reward.weights={format: 0.5, tests: 0.5}")
    assert more["after"]["advantage"]["solved"]["mean"] == pytest.approx((1.5 + 2) / 2 - 0.625)
    assert "needs the likeness to the gold patch" in refused(capsys, folder, "reward.weights={diff: 0.1}")


def test_infrastructure_failures_are_in_no_baseline_and_too_many_of_them_lose_the_group(tmp_path, capsys):
    broken = Played(False, broken=True)
    groups = [YES, NO, broken, broken], [YES, broken, broken, broken]
    folder = make_run(tmp_path, [groups], "rollout.batch_size=1", dropped=["infrastructure"])
    before = replayed(capsys, folder)["before"]
    assert before["groups"]["dropped"] == {"infrastructure": 1}
    assert (before["episodes"]["broken"], before["episodes"]["trained"], before["episodes"]["dropped"]) == (5, 2, 1)
    assert before["advantage"]["solved"]["mean"] == 1


def test_a_hook_of_ones_own_turns_every_sign(tmp_path, capsys):
    folder = make_run(tmp_path, [[MIXED], [[YES, NO]]], "rollout.batch_size=1")
    changes = replayed(capsys, folder, "algorithm.post_process=tests.launch.replay.made.backwards")["changes"]
    assert (changes["flipped"], changes["gained"], changes["lost"]) == (6, 0, 0)
    assert changes["correlation"] == pytest.approx(-1) and changes["gradient"] == 1


def test_a_bound_on_staleness_counts_what_older_weights_have_sampled(tmp_path, capsys):
    old, new = ([Played(bool(n), versions=names) for n in (0, 1)] for names in (["default", "0"], ["0"]))
    folder = make_run(tmp_path, [[[YES, NO], [YES, NO]], [old, new]], "rollout.batch_size=2", "rollout.schedule=carry")
    document = replayed(capsys, folder, "rollout.max_staleness=0")
    assert document["before"]["groups"]["dropped"] == {}
    assert document["after"]["groups"]["dropped"] == {"too_stale": 1}
    assert [each["after"]["groups"]["trained"] for each in document["rollouts"]] == [2, 1]


def test_smaller_groups_are_drawn_anew_and_averaged(tmp_path, capsys):
    settings = "rollout.samples_per_task=4", "rollout.batch_size=3", FILTER
    folder = make_run(tmp_path, [[MIXED] * 3] * 4, *settings)
    words = "rollout.samples_per_task=2", "--draws", "200"
    document = replayed(capsys, folder, *words)
    after, ends = document["after"]["groups"]["trained"], document["intervals"]["after"]["groups"]["trained"]
    assert after == pytest.approx(6, abs=0.5), "of 2 of 4 episodes, one is the solved one half of the time: 12 groups"
    assert ends[0] < after < ends[1] and document["draws"] == 200
    assert document["after"]["seconds"]["episodes"] == 24, "what is not drawn is not played"
    assert replayed(capsys, folder, *words) == document, "the same draws again"
    whole = replayed(capsys, folder)
    assert whole["before"] == document["before"]


def test_all_of_a_group_gives_what_the_run_had(tmp_path, capsys):
    """A draw of as many episodes as the groups have is no draw at all."""
    folder = make_run(tmp_path, [[MIXED, [YES, YES, NO, NO]]], "rollout.samples_per_task=8", "rollout.batch_size=2")
    document = replayed(capsys, folder, "rollout.samples_per_task=4", "--draws", "3")
    for section in ("groups", "episodes", "tokens", "weight", "seconds"):
        assert document["after"][section] == document["before"][section]
    assert document["changes"]["correlation"] == pytest.approx(1) and document["changes"]["flipped"] == 0


def test_two_optimizer_steps_have_denominators_of_their_own(tmp_path, capsys):
    folder = make_run(tmp_path, [[MIXED]], "rollout.batch_size=1")
    document = replayed(capsys, folder, "algorithm.steps_per_rollout=2")
    assert document["changes"]["gradient"] == pytest.approx(2), "half as many episodes share each step"
    assert document["after"]["tokens"] == document["before"]["tokens"]


def test_each_episode_can_be_written(tmp_path, capsys):
    folder = make_run(tmp_path, [[MIXED], [MIXED]], "rollout.batch_size=1")
    path = tmp_path / "episodes.jsonl"
    replayed(capsys, folder, "algorithm.std_normalization=true", "--episodes", str(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["rollout"], line["index"], line["solved"]) for line in lines[3:5]] == [(0, 3, False), (1, 4, True)]
    assert lines[0]["before"] == {"state": "trained", "advantage": 1.5, "tokens": 4, "loss": 0.25, "gradient": 0.375}
    assert sum(line["before"]["loss"] for line in lines[:4]) == 1
    assert "is there already" in refused(capsys, folder, "--episodes", str(path))
    assert "averaged over many" in refused(capsys, folder, "rollout.samples_per_task=2", "--episodes", "other.jsonl")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algorithm.clip_low=0.1"], "algorithm.clip_low acts on the ratio"),
        (["algorithm.kl_coef=0.1"], "algorithm.kl_coef needs the distributions of the policy"),
        (["rollout.temperature=0.5"], "rollout.temperature changes what is sampled"),
        (["run.dir=elsewhere"], "run.dir is given by --dir here"),
        (["recipe=tiny_cpu"], "a record can't be asked about recipe"),
        (["algorithm.reduction=none"], "algorithm.reduction='none' is not allowed"),
        (["algorithm.nothing=1"], "there is no key"),
        (["rollout.batch_size=99"], "rollout.batch_size can only be less than 1"),
        (["rollout.samples_per_task=99"], "rollout.samples_per_task can only be less than 8"),
        (["rollout.max_staleness=0"], "has no part in rollout.schedule=sync"),
        (["reward.mode=fraction"], "between plus_minus and binary"),
        (["--draws", "0"], "--draws is 0"),
    ],
)
def test_what_a_record_can_not_answer_is_refused(tmp_path, capsys, words, said):
    message = refused(capsys, make_run(tmp_path, [[MIXED]], "rollout.batch_size=1"), *words)
    assert said in message
    if "can't be asked about" in message:
        assert "It can be asked about algorithm.estimator, algorithm.reduction" in message


def test_a_run_without_episodes_is_named(tmp_path, capsys):
    assert "has no episode yet" in refused(capsys, make_run(tmp_path, []))


def test_a_person_reads_the_check_the_figures_and_what_is_not_said(tmp_path, capsys):
    folder = make_run(tmp_path, [[MIXED, SOLVED]], "rollout.batch_size=2")
    assert run(["replay", str(folder), "algorithm.estimator=gspo", FILTER]) == 0
    said = capsys.readouterr().out
    assert said.startswith("check: the run's own settings give what it recorded")
    assert "dropped: all solved" in said and "It does not say what the policy would have learned" in said
    assert "grpo, gspo and cispo differ by what the ratio does" in said
    lines = [line.split() for line in said.splitlines() if line.startswith("0 ")]
    assert lines == ["0 2 → 1 16 → 16 1.50 → 1.50 66.7 % → 50.0 % 50.0 % → 50.0 % 1".split()], "of rollout 0"
