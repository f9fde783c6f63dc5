"""`slime-swe watch` shows what the run's own terminal shows, says that a killed run has died, and ends with the run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pytest

from tests.e2e.conftest import command, environment, lines_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE = 300.0


def progress_of(text: str) -> list[str]:
    """The lines about rollouts and evaluations, without the time that is left, which is rounded."""
    lines = [line for line in text.splitlines() if line.startswith(("rollout", "evaluated", "3 rollouts"))]
    return [re.sub(r" · \S+( s)? left$", "", line) for line in lines]


def test_a_run_is_watched_killed_resumed_and_watched_to_its_end(here, start_cli, small, tmp_path):
    run = tmp_path / "runs/a"
    own = start_cli("train", *small, "run.num_rollouts=4", "run.name=a")
    wait_for((run / "recipe.yaml").exists, "the run begins", PATIENCE)
    watching = [start_cli("watch", "a"), start_cli("watch", str(run), "--json")]
    wait_for(lambda: (run / "metrics.jsonl").exists() and len(lines_of(run / "metrics.jsonl")) > 2, "a step", PATIENCE)
    now = here("watch", "a", "--once")
    assert now.returncode == 0 and re.search(r"^now: \w+.*, which began \d+ s ago$", now.stderr, re.M), now.stderr
    os.killpg(own.pid, signal.SIGKILL)
    said, (_, shown), (printed, failed) = own.communicate()[1], *(each.communicate(timeout=60) for each in watching)
    assert [each.returncode for each in watching] == [1, 1], shown
    assert progress_of(shown)[: len(progress_of(said))] == progress_of(said)
    assert f"the run has failed: process {own.pid} on " in shown and "died without a word, in the phase" in shown
    assert "slime-swe train run.name=a --resume" in shown
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line for line in lines if line["kind"] in ("train", "eval")] == lines_of(run / "metrics.jsonl")
    assert (lines[0]["kind"], lines[0]["pid"], lines[-1]["kind"], lines[-1]["exit_code"]) == (
        "attempt",
        own.pid,
        "end",
        1,
    )
    assert not failed and "status" in {line["kind"] for line in lines}

    again = start_cli("train", "run.name=a", "--resume")
    wait_for(lambda: len(lines_of(run / "attempts.jsonl")) == 2, "it is resumed", PATIENCE)
    watch = subprocess.run(
        command("watch", "a"), cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=PATIENCE
    )
    table, said = again.communicate(timeout=PATIENCE)
    assert (again.returncode, watch.returncode) == (0, 0), watch.stderr
    assert watch.stdout == table and "held-out tasks" in table
    assert set(progress_of(said)) <= set(progress_of(watch.stderr)) and "rollout 4/4" in watch.stderr
    assert "attempt 2 · process" in watch.stderr
    for journal in ("episodes.jsonl", "evaluations.jsonl"):  # each once, though the run was killed
        written = lines_of(run / journal)
        played = [(line.get("dataset"), line["rollout_id"], line["index"]) for line in written]
        assert len({*played}) == len(played) and {line["attempt"] for line in written} == {1, 2}
    steps = [line["rollout_id"] for line in lines_of(run / "metrics.jsonl") if line["kind"] == "train"]
    assert steps == [0, 1, 2, 3]
    after = here("watch", "a", "--json")
    assert after.returncode == 0 and json.loads(after.stdout.splitlines()[-1])["exit_code"] == 0


def test_ctrl_c_ends_the_watch_and_not_the_run(start_cli, whole_run, tmp_path):
    (tmp_path / "runs").symlink_to(whole_run.folder.parent)
    from slime_swe.attempts import ATTEMPTS, attempting

    with attempting(whole_run.folder / ATTEMPTS):
        watch = start_cli("watch", "a")
        for line in watch.stderr:
            if line.startswith("rollout 2/2"):
                break
        os.killpg(watch.pid, signal.SIGINT)
        _, said = watch.communicate(timeout=60)
        assert watch.returncode == 130 and "Traceback" not in said
