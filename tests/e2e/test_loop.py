"""`slime-swe train` from the command line to a summary, with the seed policy, real sandboxes and a real server."""

from __future__ import annotations

import json
import os
import shlex
import signal

import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.launch.config import resolve
from slime_swe.recipes.tiny_cpu import recipe
from tests.e2e.conftest import lines_of, timeless

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILES = ("recipe.yaml", "metrics.jsonl", "episodes.jsonl", "evaluations.jsonl", "summary.json", "learning_curve.png")


def test_a_run_trains_and_reports(whole_run):
    assert "rollout 2/2" in whole_run.result.stderr
    assert all((whole_run.folder / name).stat().st_size for name in FILES)
    summary = json.loads(whole_run.result.stdout)
    assert summary == json.loads((whole_run.folder / "summary.json").read_text())
    check_summary(summary)
    check_episodes(lines_of(whole_run.folder / "episodes.jsonl"))
    evaluated = [record for record in lines_of(whole_run.folder / "metrics.jsonl") if record["kind"] == "eval"]
    assert [len(record["weight_versions"]) for record in evaluated] == [1] * 4, "no weights change meanwhile"


def check_summary(summary):
    for name in ("heldout", "unseen_bug_class"):
        for moment in ("before", "after"):
            low, high = summary[f"{name}_interval_{moment}"]
            assert 0 <= low <= summary[f"{name}_solve_rate_{moment}"] <= high <= 1
            assert summary[f"{name}_episodes_{moment}"] + summary[f"{name}_infrastructure_failures_{moment}"] == 2
    assert summary["num_rollouts"] == 2 and summary["seed"] == 0
    assert summary["wall_seconds"] > 0
    assert len(summary["reward_per_step"]) == 2
    assert (summary["logprob_diff_max"] or 0.0) <= 1e-9  # None where every group is all solved, or all not


def check_episodes(episodes):
    assert {record["rollout_id"] for record in episodes} == {0, 1}
    assert len({record["index"] for record in episodes}) == len(episodes)
    for record in episodes:
        assert len(record["loss_mask"]) == len(record["log_probs"]) == record["response_length"]
        assert record["score"] is not None or record["infrastructure"] is not None


def test_its_episodes_can_be_read(whole_run):
    here = whole_run.here
    listed = here("episodes", "a", "--list", "--json")
    assert len(json.loads(listed.stdout)) == 8
    shown = here("episodes", "a")
    assert shown.returncode == 0, shown.stderr
    assert "──── policy" in shown.stdout and "──── patch" in shown.stdout


def test_its_checkpoint_is_evaluated(whole_run):
    result = whole_run.here("eval", "a", "--samples", "2", "--json")
    assert result.returncode == 0, result.stderr
    sets = json.loads(result.stdout)["sets"]
    assert sorted(sets) == ["heldout", "unseen"]
    assert sets["heldout"]["episodes"] + sets["heldout"]["infrastructure_failures"] == 4


def test_it_is_never_overwritten_and_resumes_to_the_same(whole_run, small):
    here, folder = whole_run.here, whole_run.folder
    again = here("train", *small, "run.name=a")
    assert again.returncode == 2
    assert "exists already: add --resume" in again.stderr
    before = timeless(folder / "metrics.jsonl")
    resumed = here("train", *small, "run.name=a", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "held-out tasks" in resumed.stdout and "run  runs/a" in resumed.stdout
    assert timeless(folder / "metrics.jsonl") == before
    changed = here("train", "run.name=a", "--resume", "optimizer.lr=1")
    assert changed.returncode == 2
    assert f"optimizer.lr was {recipe().optimizer.lr} and is 1.0" in changed.stderr


def test_ctrl_c_says_how_to_go_on_and_going_on_gives_the_run_that_was_never_stopped(
    start_cli, small, tmp_path, whole_run
):
    """Also where the reader of the progress goes away, which leaves the run alone."""
    process = start_cli("train", *small, "run.name=stopped")
    for line in process.stderr:
        if line.startswith("rollout 1/2"):
            break
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "slime-swe train run.name=stopped --resume" in said
    assert "Traceback" not in said
    resumed = start_cli("train", "run.name=stopped", "--resume", "--json")
    first = resumed.stderr.readline()
    resumed.stderr.close()
    summary = json.loads(resumed.stdout.read())
    assert resumed.wait(300) == 0, first
    assert summary["num_rollouts"] == 2 and (tmp_path / "runs/stopped/summary.json").exists()
    assert timeless(tmp_path / "runs/stopped/metrics.jsonl") == timeless(whole_run.folder / "metrics.jsonl")


def test_the_tasks_of_a_run_s_pass_rates_are_a_set_to_train_on(whole_run):
    """Each task of its training has some share of solved episodes, and the line that is printed takes them all."""
    played = {line["task"] for line in lines_of(whole_run.folder / "episodes.jsonl")}
    found = whole_run.here("tasks", "filter", "a", "--solved", "0%-100%", "--min-episodes", "1")
    assert found.returncode == 0, found.stderr
    (override,) = shlex.split(found.stdout.splitlines()[-1])
    (spec,) = resolve("tiny_cpu", [override]).data.train
    assert {task.id for task in load_tasks(spec)} == played
