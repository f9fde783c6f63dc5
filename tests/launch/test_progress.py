"""Progress: lines, with a bar below them on a terminal, and an honest estimate of what is left."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from slime_swe.launch.progress import Bar, RunProgress, describe, remaining
from slime_swe.recipes.registry import load_recipe

STEP = {"reward": 0.25, "solve_rate": 0.625, "turns": 5.04, "tokens_per_second": 12345.6, "seconds": 6.12, "other": 1}


@pytest.fixture
def recipe():
    return load_recipe("tiny_cpu")


def test_plain_lines_where_there_is_no_terminal(recipe):
    out = io.StringIO()
    with RunProgress(recipe, Path("runs/a"), Console(file=out, width=40)) as progress:
        progress.on_phase("generation")
        progress.on_eval("heldout", {"solve_rate": 0.5})
        progress.on_step(0, STEP)
        progress.on_step(1, STEP)
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
            progress.on_step(rollout_id, STEP | {"reward": rollout_id})
        progress.on_phase("training")
    text = out.getvalue()
    assert "starting" in text and ("training ▁▅█" in text or "training ▁▄█" in text)
    assert f"3/{recipe.run.num_rollouts}" in text and "rollout 3/" in text


def test_three_rollouts_in_a_row_that_train_nothing_are_warned_of(recipe):
    groups = {"groups": 16.0, "groups/informative": 1.0, "groups/all_unsolved": 15.0}
    counts = groups | {"episodes": 128.0, "infrastructure_failures": 2.0}
    nothing = STEP | {"solve_rate": 0.0, "trained_tokens": 0} | counts
    something = STEP | {"trained_tokens": 9} | counts
    out = io.StringIO()
    with RunProgress(recipe, Path("runs/a"), Console(file=out, width=40)) as progress:
        for rollout_id, step in enumerate([nothing, nothing, something, nothing, nothing, nothing, nothing]):
            progress.on_step(rollout_id, step)
    lines = out.getvalue().splitlines()
    said = "rollouts in a row trained nothing: no episode was solved"
    assert [number for number, line in enumerate(lines) if said in line] == [7] and lines[7].startswith("3 ")
    counted = "(groups: 3 informative, 45 all unsolved; episodes: 384, of which infrastructure broke 6)"
    assert lines[7].endswith(counted)
    marked = [number for number, line in enumerate(lines) if " · trained nothing" in line]
    assert marked == [1, 2, 4, 5, 6, 8]


def test_the_warning_of_a_rollout_is_said_after_its_line(recipe):
    out = io.StringIO()
    with RunProgress(recipe, Path("runs/a"), Console(file=out, width=200)) as progress:
        progress.on_step(0, STEP)
        progress.on_step(1, {**STEP, "warning": "rollout 1: weights are old"})
    *_, line, warning = out.getvalue().splitlines()
    assert line.startswith("rollout 2/") and warning == "rollout 1: weights are old"


def test_a_bar_leaves_the_terminal_clean(recipe):
    out = io.StringIO()
    with RunProgress(recipe, Path("runs/a"), Console(file=out, force_terminal=True, width=80)) as progress:
        progress.on_step(0, STEP)
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
