"""What a run under SLiME leaves for those who watch it: a line for each rollout and evaluation, and a warning where
rollouts train nothing."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections import Counter

import orjson
import pytest

from slime_swe.rollout.collect import Rollout
from slime_swe.rollout.logprob_gap import Gap
from slime_swe.rollout.records import EPISODES, METRICS, write_failure
from slime_swe.rollout.run_record import RunRecord, trained_tokens
from slime_swe.sample import Sample

OURS = "slime_swe.rewards.slime_plugin.post_process"


def sample(index: int, reward: float, group: int = 0) -> Sample:
    made = Sample(index=index, rollout_id=index, group_index=group, status=Sample.Status.COMPLETED, reward=reward)
    made.tokens, made.response_length, made.loss_mask = [1, 2, 3, 4], 3, [1, 0, 1]
    score = {"value": reward, "solved": reward > 0, "components": {"tests": reward}}
    made.metadata = {"episode": {"patch": "", "stop_reason": "submitted", "turns": 2}, "score": score}
    return made


def rollout(*rewards: float, **more) -> Rollout:
    group = [sample(index, reward) for index, reward in enumerate(rewards)]
    return Rollout(kept=[group], played=[group, [sample(9, 1.0, group=1)]], staleness=[0], **more)


@pytest.fixture
def args(tmp_path) -> Namespace:
    return Namespace(swe_run_dir=str(tmp_path), swe_attempt=2, swe_record_metrics=True, reward_key=None, num_rollout=3,
                     custom_reward_post_process_path=OURS, swe_max_turns=50, rollout_max_context_len=32768)  # fmt: skip


def test_a_rollout_has_the_figures_that_the_embedded_engine_records(args, tmp_path):
    record = RunRecord(args)
    figures = record.on_rollout(0, rollout(1.0, -1.0, dropped=Counter(all_solved=1)), 2.0)
    assert figures["rollout/trained_tokens"] == 4 and figures["rollout/requeued"] == 0
    assert figures["rollout/dynamic_filter/drop_all_solved"] == 1
    (line,) = [orjson.loads(line) for line in (tmp_path / METRICS).read_bytes().splitlines()]
    expected = {"kind": "train", "rollout_id": 0, "attempt": 2, "episodes": 3, "reward": pytest.approx(1 / 3),
                "reward/tests": pytest.approx(1 / 3), "groups": 2, "groups/informative": 1, "trained_tokens": 4,
                "stop/submitted": 1.0, "rollout/dynamic_filter/drop_all_solved": 1}  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert line["seconds"]["generation"] == 2.0 and line["seconds"]["total"] > 0


def test_a_launcher_that_writes_the_file_itself_is_left_to_it(args, tmp_path):
    args.swe_record_metrics = False
    assert RunRecord(args).on_rollout(0, rollout(1.0, -1.0), 2.0)["rollout/trained_tokens"] == 4
    assert not (tmp_path / METRICS).exists()


def test_rollouts_that_train_nothing_are_warned_of_and_the_third_says_why(args, tmp_path, caplog):
    record = RunRecord(args)
    with caplog.at_level(logging.WARNING):
        for number, rewards in enumerate([(1.0, 1.0), (-1.0, 1.0), (-1.0, -1.0), (1.0, 1.0), (-1.0, -1.0)]):
            record.on_rollout(number, rollout(*rewards), 1.0)
    said = [entry.getMessage() for entry in caplog.records]
    assert said[:4] == [f"rollout {number} trains nothing" for number in (1, 3, 4, 5)]
    assert said[4].startswith("3 rollouts in a row trained nothing: every advantage was zero")
    assert "(groups: 4 all solved, 2 all unsolved; episodes: 9, of which infrastructure broke 0)" in said[4]


def test_the_gap_of_the_rollout_before_is_recorded_and_warned_of_once(args, tmp_path, caplog):
    args.swe_alarms = {"drift": 3.0}
    record = RunRecord(args)
    figures = record.on_rollout(0, rollout(1.0, -1.0), 1.0)
    assert "rollout/logprob_diff_mean" not in figures
    for number, mean in enumerate((0.01, 0.5, 0.6), 1):
        figures = record.on_rollout(number, rollout(1.0, -1.0), 1.0, Gap(number - 1, mean, 300))
        assert figures["rollout/logprob_diff_mean"] == mean
    lines = [orjson.loads(line) for line in (tmp_path / METRICS).read_bytes().splitlines()]
    assert [line.get("rollout/logprob_diff_mean") for line in lines] == [None, 0.01, 0.5, 0.6]
    (warning,) = [entry.getMessage() for entry in caplog.records]
    assert warning.startswith("alarm, rollout 3: with the same weights") and "the first was 0.01" in warning


def test_an_alarm_is_logged(args, caplog, tmp_path):
    args.swe_alarms = {"lost_prefixes": 0.5}
    record = RunRecord(args)
    with caplog.at_level(logging.WARNING):
        for number, lost in enumerate((40, 60, 65)):
            played = rollout(1.0, -1.0, admitted=141)
            for group in played.played:
                for one in group:
                    one.metadata["episode"]["counters"] = {
                        "prompt_tokens": 100,
                        "cached_tokens": 20,
                        "lost_tokens": lost,
                    }
            record.on_rollout(number, played, 1.0)
    (said,) = [entry.getMessage() for entry in caplog.records]
    assert said.startswith("alarm, rollout 3: 55% of the prompt tokens were computed again")
    assert (
        "141 episodes at once are admitted: set a lower serving.concurrency, or" in said
        and "serving.mem_fraction" in said
    )
    lines = [orjson.loads(line)["serving"] for line in (tmp_path / METRICS).read_bytes().splitlines()]
    assert [line["prefix_lost_rate"] for line in lines] == [0.4, 0.6, 0.65]
    assert {line["admitted_episodes"] for line in lines} == {141}


def test_tokens_are_counted_where_their_advantage_is_known_and_is_not_zero(args):
    samples = [sample(0, 1.0), sample(1, -1.0), sample(2, 1.0, group=1), sample(3, 1.0, group=1), sample(4, 1.0)]
    write_failure(samples[4], "sandbox_error", "gone")
    assert trained_tokens(args, samples) == 4
    samples[0].remove_sample = True
    samples[0].metadata["episode"]["masked"] = True
    assert trained_tokens(args, samples) == 2, "what is masked is in the baseline alone"
    for other in (None, "my_rewards.running_mean"):
        args.custom_reward_post_process_path = other
        assert trained_tokens(args, samples) is None, "it may count its calls"


def test_evaluations_have_their_moment(args, tmp_path):
    record = RunRecord(args)
    sets = {"heldout": [sample(0, 1.0), sample(1, -1.0, group=1)]}
    record.on_evaluation(0, sets)
    (tmp_path / EPISODES).write_bytes(b"{}\n")
    for number in (0, 1, 2):
        record.on_evaluation(number, sets)
    found = [orjson.loads(line) for line in (tmp_path / METRICS).read_bytes().splitlines()]
    assert [(line["rollout_id"], line["moment"]) for line in found] == [
        (-1, "before"), (0, "during"), (1, "during"), (2, "after"),
    ]  # fmt: skip
    assert {line["solve_rate"] for line in found} == {0.5} and found[0]["interval"][1] < 1
