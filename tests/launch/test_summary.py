"""The final table: every set before and after, and nothing made up where a figure is missing."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from slime_swe.launch.summary import evaluation_sets, print_summary, show_summary

SUMMARY = {
    "heldout_solve_rate_before": 0.35,
    "heldout_interval_before": [0.28, 0.43],
    "heldout_episodes_before": 160,
    "heldout_first_edit_solve_rate_before": 0.25,
    "heldout_edits_per_episode_before": 1.5,
    "heldout_turns_per_episode_before": 5.25,
    "heldout_solve_rate_after": 0.85,
    "heldout_interval_after": [0.79, 0.9],
    "heldout_episodes_after": 159,
    "heldout_first_edit_solve_rate_after": 0.75,
    "unseen_bug_class_solve_rate_before": 0.1,
    "unseen_bug_class_solve_rate_after": None,
    "reward_per_step": [-0.5, None, 0.5],
    "infrastructure_failures": 3,
    "wall_seconds": 305.2,
    "seconds_by_phase": {"generation": 200.0, "training": 95.25, "checkpoint": 0.01, "total": 305.2},
}


def text_of(summary) -> str:
    out = io.StringIO()
    print_summary(summary, Path("runs/a"), Console(file=out, width=120))
    return out.getvalue()


def test_the_table_holds_before_and_after_with_intervals():
    text = text_of(SUMMARY)
    assert "held-out tasks" in text and "bug classes never trained on" in text
    assert "35.0 % (28.0–43.0)" in text and "85.0 % (79.0–90.0)" in text
    assert "160" in text and "159" in text
    assert "25.0 %" in text and "75.0 %" in text
    row = next(line for line in text.splitlines() if "turns per episode" in line)
    assert "5.25" in row and "–" in row


def test_a_run_that_only_evaluated_says_so_and_with_which_limits():
    text = text_of(SUMMARY | {"num_rollouts": 0, "max_turns": 50, "max_context": 32768})
    assert "run.num_rollouts=0: the model was evaluated, and nothing was to be trained" in text
    assert "episodes of at most 50 turns, 32,768 tokens of context" in text
    assert "num_rollouts" not in text_of(SUMMARY)


def test_below_it_stand_reward_time_failures_and_the_folder():
    lines = text_of(SUMMARY).splitlines()
    assert "reward per rollout  ▁█  -0.50 → 0.50" in lines
    assert "time  5:05: generation 200.0 s, training 95.2 s" in lines
    assert "episodes that infrastructure broke, not trained on  3" in lines
    assert lines[-1] == "run  runs/a"


@pytest.mark.parametrize("as_json", [True, False])
def test_a_run_that_trained_nothing_says_so_once_on_standard_error(capsys, as_json):
    show_summary(SUMMARY | {"nothing_trained_because": "every episode was solved"}, Path("runs/a"), as_json=as_json)
    output, errors = capsys.readouterr()
    assert errors == "Nothing was trained: every episode was solved.\n"
    if as_json:
        assert json.loads(output)["nothing_trained_because"] == "every episode was solved"
    else:
        assert "Nothing was trained" not in output
    show_summary(SUMMARY | {"nothing_trained_because": None}, Path("runs/a"), as_json=as_json)
    output, errors = capsys.readouterr()
    assert errors == "" and "Nothing was trained" not in output


def test_sets_are_those_of_the_summary():
    assert evaluation_sets(SUMMARY) == ["heldout", "unseen_bug_class"]
    assert evaluation_sets({"mine_solve_rate_after": 1.0}) == ["mine"]
    assert evaluation_sets({"my-set_solve_rate_after": 1.0, "a.b_solve_rate_before": 1.0}) == ["my-set", "a.b"]
    assert evaluation_sets({}) == []


def test_a_run_without_evaluations_still_ends_in_a_summary():
    assert text_of({"wall_seconds": 1.0, "seconds_by_phase": {}}).splitlines() == ["time  1 s: ", "run  runs/a"]


def test_a_narrow_terminal_cuts_no_figure(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    print_summary(SUMMARY, Path("runs/a"))
    printed = capsys.readouterr().out
    assert "…" not in printed and "85.0 % (79.0–90.0)" in printed


def test_a_tracker_that_was_lost_is_named_with_the_reason():
    out = io.StringIO()
    print_summary(SUMMARY | {"trackers_lost": {"wandb": "CommError: no route"}}, Path("runs/a"), Console(file=out))
    assert "wandb was lost and lacks figures, which metrics.jsonl has  CommError: no route" in out.getvalue()
    out = io.StringIO()
    print_summary(SUMMARY | {"trackers_lost": {}}, Path("runs/a"), Console(file=out))
    assert "lost" not in out.getvalue()
