"""Progress: lines, with a bar below them on a terminal, and an honest estimate of what is left.

The final table: every set before and after, and nothing made up where a figure is missing.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from slime_swe.launch.progress import (
    Bar,
    RunProgress,
    describe,
    evaluation_sets,
    print_summary,
    remaining,
    show_summary,
)
from slime_swe.recipes.base import Alarms
from slime_swe.recipes.registry import load_recipe

STEP = {
    "reward": 0.25, "solve_rate": 0.625, "turns": 5.04, "episodes": 2.0, "sampled_tokens": 12345.6,
    "seconds": {"generation": 2.0, "total": 6.12}, "other": 1,
}  # fmt: skip


def step(rollout_id: int, **changes) -> dict:
    return {"rollout_id": rollout_id, **STEP, **changes}


@pytest.fixture
def recipe():
    return load_recipe("tiny_cpu")


def test_plain_lines_where_there_is_no_terminal(recipe):
    out = io.StringIO()
    with RunProgress(recipe, Path("runs/a"), Console(file=out, width=40)) as progress:
        progress.on_phase("generation")
        progress.on_eval("heldout", {"solve_rate": 0.5})
        progress.on_step(step(0))
        progress.on_step(step(1))
    lines = out.getvalue().splitlines()
    total = recipe.run.num_rollouts
    assert lines[0] == "tiny_cpu · runs/a"
    assert lines[1] == "evaluated heldout solved 50%"
    assert lines[2] == f"rollout 1/{total} · reward 0.25 · solved 62% · turns 5.0 · tokens/s 12,346 · s/step 6.1"
    assert lines[3].startswith(f"rollout 2/{total} · ") and lines[3].endswith(" left")
    assert len(lines) == 4


def test_a_terminal_has_a_bar_below_the_lines_with_phase_count_and_reward(recipe):
    out = io.StringIO()
    with RunProgress(recipe, Path("runs/a"), Console(file=out, force_terminal=True, width=100)) as progress:
        for rollout_id in range(3):
            progress.on_step(step(rollout_id, reward=rollout_id))
        progress.on_phase("training")
    text = out.getvalue()
    assert "starting" in text and ("training ▁▅█" in text or "training ▁▄█" in text)
    assert f"3/{recipe.run.num_rollouts}" in text and "rollout 3/" in text


def test_three_rollouts_in_a_row_that_train_nothing_are_warned_of(recipe):
    groups = {"groups": 16.0, "groups/informative": 1.0, "groups/all_unsolved": 15.0}
    counts = groups | {"episodes": 128.0, "infrastructure_failures": 2.0}
    nothing = {"solve_rate": 0.0, "trained_tokens": 0} | counts
    something = {"trained_tokens": 9} | counts
    recipe = replace(recipe, alarms=Alarms(uninformative=1.0))
    out = io.StringIO()
    with RunProgress(recipe, Path("runs/a"), Console(file=out, width=40)) as progress:
        for rollout_id, found in enumerate([nothing, nothing, something, nothing, nothing, nothing, nothing]):
            progress.on_step(step(rollout_id, **found))
    lines = out.getvalue().splitlines()
    said = "rollouts in a row trained nothing: no episode was solved"
    assert [number for number, line in enumerate(lines) if said in line] == [7] and lines[7].startswith("3 ")
    counted = "(groups: 3 informative, 45 all unsolved; episodes: 384, of which infrastructure broke 6)"
    assert lines[7].endswith(counted)
    marked = [number for number, line in enumerate(lines) if " · trained nothing" in line]
    assert marked == [1, 2, 4, 5, 6, 8]


def test_an_alarm_is_said_after_the_line_of_the_rollout_that_raises_it(recipe):
    out = io.StringIO()
    with RunProgress(recipe, Path("runs/a"), Console(file=out, width=400)) as progress:
        progress.on_step(step(0))
        progress.on_step(step(1, **{"infrastructure_failures/sandbox_error": 1.0}))
        progress.on_step(step(2, **{"infrastructure_failures/sandbox_error": 1.0}))
    *_, line, alarm, third = out.getvalue().splitlines()
    assert line.startswith("rollout 2/") and third.startswith("rollout 3/")
    assert alarm.startswith("alarm, rollout 2: infrastructure broke 25% (sandbox_error 25%) of the episodes")


def test_the_summary_says_from_when_to_when_an_alarm_held():
    alarm = {"name": "truncated", "first": 3, "last": 9, "worst": 0.41, "limit": 0.25, "said": "…"}
    stall = {"name": "stall", "first": 4, "last": 4, "worst": 9.2, "limit": 6.0, "said": "…"}
    lines = text_of(SUMMARY | {"alarms": [alarm, stall]}).splitlines()
    assert "alarm  truncated: rollouts 3 to 9, up to 41%, limit 25%" in lines
    assert "alarm  stall: rollout 4, 9 times, limit 6" in lines


def test_a_bar_leaves_the_terminal_clean(recipe):
    out = io.StringIO()
    with RunProgress(recipe, Path("runs/a"), Console(file=out, force_terminal=True, width=80)) as progress:
        progress.on_step(step(0))
    assert out.getvalue().rstrip().endswith("\x1b[2K")  # the last thing is an erased line


def test_what_is_left_is_estimated_from_this_process_alone():
    """The first after a resume is rollout 29: those before it were not timed here."""
    assert remaining(None, (30, 10.0), 40) is None
    assert remaining((30, 10.0), (30, 12.0), 40) is None
    assert remaining((30, 10.0), (32, 30.0), 40) == pytest.approx((30 - 10) / 2 * 8)


def test_metrics_that_are_absent_are_left_out():
    assert describe({}) == ""
    assert describe({"turns": 2}) == "turns 2.0"


def test_a_terminal_that_was_closed_ends_the_output_and_not_the_run():
    master, slave = os.openpty()
    with io.TextIOWrapper(open(slave, "wb", buffering=0), write_through=True) as terminal:
        bar = Bar("evaluating", 4, Console(file=terminal, force_terminal=True))
        os.close(master)
        for number in range(3):
            bar.say(f"line {number}")


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
