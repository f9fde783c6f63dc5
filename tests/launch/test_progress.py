"""Progress: a panel on a terminal, plain lines elsewhere, and an honest estimate of what is left."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from slime_swe.launch.progress import History, Panel, describe, make_progress
from slime_swe.recipes.registry import load_recipe

STEP = {"reward": 0.25, "solve_rate": 0.625, "turns": 5.04, "tokens_per_second": 12345.6, "seconds": 6.12, "other": 1}


@pytest.fixture
def recipe():
    return load_recipe("tiny_cpu")


def test_plain_lines_where_there_is_no_terminal(recipe):
    out = io.StringIO()
    with make_progress(recipe, Path("runs/a"), Console(file=out, width=40)) as progress:
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


def test_the_panel_shows_phase_step_and_reward(recipe):
    history = History(total=4, started=0.0)
    panel = Panel(history, "tiny_cpu · runs/a")
    out = io.StringIO()
    console = Console(file=out, width=100)
    console.print(panel)
    history.phase = "training"
    for rollout_id in range(3):
        history.step(rollout_id, STEP | {"reward": rollout_id})
    history.evaluations.append("heldout solved 50%")
    console.print(panel)
    text = out.getvalue()
    assert "starting" in text and "training" in text
    assert "rollout 0/4" in text and "rollout 3/4" in text
    assert "▁▅█" in text or "▁▄█" in text
    assert "heldout solved 50%" in text


def test_three_rollouts_in_a_row_that_train_nothing_are_warned_of(recipe):
    nothing, something = STEP | {"solve_rate": 0.0, "trained_tokens": 0}, STEP | {"trained_tokens": 9}
    out = io.StringIO()
    with make_progress(recipe, Path("runs/a"), Console(file=out, width=40)) as progress:
        for rollout_id, step in enumerate([nothing, nothing, something, nothing, nothing, nothing, nothing]):
            progress.on_step(rollout_id, step)
    lines = out.getvalue().splitlines()
    said = "rollouts in a row trained nothing: no episode was solved"
    assert [number for number, line in enumerate(lines) if said in line] == [7] and lines[7].startswith("3 ")
    panel = io.StringIO()
    Console(file=panel, width=100).print(Panel(progress.history, ""))
    assert f"4 {said}" in panel.getvalue()
    progress.on_step(7, something)
    assert progress.history.warning() == ""


def test_a_live_panel_leaves_the_terminal_clean(recipe):
    out = io.StringIO()
    with make_progress(recipe, Path("runs/a"), Console(file=out, force_terminal=True, width=80)) as progress:
        progress.on_step(0, STEP)
    assert out.getvalue().rstrip().endswith("\x1b[2K")  # the last thing is an erased line


def test_what_is_left_is_estimated_from_this_process_alone():
    history = History(total=40, started=0.0)
    assert history.remaining(5.0) is None
    history.step(29, {})  # the first after a resume: rollouts 0 to 28 were not timed here
    history.stepping_since = 10.0
    assert history.remaining(12.0) is None
    history.step(31, {})
    assert history.remaining(30.0) == pytest.approx((30 - 10) / 2 * 8)


def test_metrics_that_are_absent_are_left_out():
    assert describe({}) == ""
    assert describe({"turns": 2}) == "turns 2.0"
