"""The figures that pages quote are those of the benchmarks' baselines, rounded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean, median

import pytest

from benchmarks.command import BASELINES
from slime_swe.launch.output import duration

ROOT = Path(__file__).parents[2]
SCHEDULES = ("continuous", "carry", "sync", "slime_sync", "slime_fully_async")


def baseline(name: str) -> dict:
    return json.loads((BASELINES / f"{name}.json").read_text(encoding="utf-8"))


def text_of(page: str) -> str:
    """Without the marks of what shows a sentence."""
    return re.sub(r" ?<!--.*?-->", "", (ROOT / page).read_text(encoding="utf-8"))


def table(page: str, head: str) -> dict[str, list[str]]:
    """The rows of the table whose head begins so: the first cell -> the others."""
    _, found, rest = text_of(page).partition(f"\n{head}")
    assert found, f"{page} has no table that begins with {head}"
    rows = rest.split("\n\n")[0].split("\n")[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {first: others for first, *others in cells}


def quotes(text: str, *values: float) -> bool:
    """Whether the numbers of a text are these, as far as its digits go."""
    numbers = [number.replace(",", "") for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]
    return len(numbers) == len(values) and all(
        abs(float(number) - value) <= 0.5 * 10 ** -len(number.partition(".")[2]) + 1e-9
        for number, value in zip(numbers, values, strict=True)
    )


@pytest.mark.parametrize(
    ("row", "figures", "unit"),
    [
        ("slot use", ["slot_use"], 1),
        ("seconds per informative group", ["seconds_per_group"], 1),
        ("seconds per step", ["step_seconds"], 1),
        ("attempts thrown away", ["episodes_lost"], 0.01),
        ("tokens thrown away", ["tokens_discarded"], 1e6),
        ("staleness, mean and most", ["staleness_mean", "staleness_max"], 1),
        ("distance", ["ks"], 1),
    ],
)
def test_the_table_of_schedules_is_the_baseline(row, figures, unit):
    known, cells = baseline("rollout_schedule"), table("docs/scheduling.md", "| | `continuous` |")[row]
    for schedule, cell in zip(SCHEDULES, cells, strict=True):
        wanted = [known[f"{figure}_{schedule}"] / unit for figure in figures]
        assert quotes(cell, *wanted), (row, schedule, cell, wanted)


def percent(run: dict, name: str, *more: str) -> list[float]:
    return [100 * run[name], *(100 * bound for interval in more for bound in run[interval])]


def test_the_table_of_learning_runs_is_the_baseline():
    runs, rows = baseline("learning"), table("README.md", "| | held out, before")
    held_out, edit, unseen = "heldout_solve_rate", "heldout_first_edit_solve_rate", "unseen_bug_class_solve_rate"
    seeds = [runs[f"seed{seed}"] for seed in range(5)]
    for seed, run in enumerate(seeds):
        before, after, first, other, time = rows[f"seed {seed}"]
        assert time == duration(run["wall_seconds"])
        assert quotes(before, *percent(run, f"{held_out}_before", "heldout_interval_before"))
        assert quotes(after, *percent(run, f"{held_out}_after", "heldout_interval_after"))
        for cell, name in (first, edit), (other, unseen):
            assert quotes(cell, 100 * run[f"{name}_before"], 100 * run[f"{name}_after"])
    means = {name: 100 * mean(run[name] for run in seeds) for name in seeds[0] if "solve_rate" in name}
    before, after, first, other, _ = rows["mean"]
    assert quotes(before, means[f"{held_out}_before"]) and quotes(after, means[f"{held_out}_after"])
    for cell, name in (first, edit), (other, unseen):
        assert quotes(cell, means[f"{name}_before"], means[f"{name}_after"])


def test_the_minutes_of_a_run_are_the_baseline_s():
    (said,) = re.findall(r"^bash launch/run_qwen_swe.sh .* no GPU, (\d+ minutes)$", text_of("README.md"), re.MULTILINE)
    runs = baseline("learning")
    assert quotes(said, median(runs[f"seed{seed}"]["wall_seconds"] for seed in range(5)) / 60)


def test_the_shuffled_control_is_the_baseline():
    run = baseline("learning")["shuffled"]
    (said,) = re.findall(r"fell from ([\d.]+ %\s+to\s+[\d.]+ %)", text_of("README.md"))
    assert quotes(said, 100 * run["heldout_solve_rate_before"], 100 * run["heldout_solve_rate_after"])


def test_the_table_of_schedules_that_learn_is_the_baseline():
    runs, rows = baseline("learning"), table("docs/scheduling.md", "| | `sync` |")
    (start,) = [row for row in rows if row.startswith("seed 0, from")]
    assert quotes(start, 0, 100 * runs["seed0"]["heldout_solve_rate_before"])
    for name, solved, time in zip(("seed0", "carry0", "continuous0"), rows[start], rows["the run's time"], strict=True):
        assert quotes(solved, *percent(runs[name], "heldout_solve_rate_after", "heldout_interval_after"))
        assert time == duration(runs[name]["wall_seconds"])
    intervals = [run["heldout_interval_after"] for name, run in runs.items() if name != "shuffled"]
    assert max(low for low, _ in intervals) < min(high for _, high in intervals), "the intervals overlap"


@pytest.mark.parametrize(
    ("row", "ours", "rival"),
    [
        ("a fresh `overlay` sandbox of 2,000 files", "overlay_open_ms", "copy_ms"),
        ("a command in Docker", "docker_command_ms", "docker_exec_ms"),
        ("a command in Docker, 16 at once", "docker_command_16_ms", "docker_exec_16_ms"),
    ],
)
def test_the_table_of_sandboxes_is_the_baseline(row, ours, rival):
    known, cells = baseline("image_sandboxes"), table("docs/sandboxes.md", "| | ours | alternative |")[row]
    assert quotes(cells[0], known[ours]) and quotes(cells[1], known[rival])
