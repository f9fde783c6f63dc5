"""`slime-swe watch --once`: what is there is shown by the code that shows a run's own progress."""

from __future__ import annotations

import json
import os
import re
import time

import pytest

from slime_swe.attempts import ATTEMPTS, attempting
from slime_swe.journal import Journal
from slime_swe.launch.cli import run
from slime_swe.launch.config import resolve
from slime_swe.launch.runs import attempt_with_status, create_run, record_end
from slime_swe.rollout.records import METRICS
from slime_swe.status import StatusFile

NOTHING = {"trained_tokens": 0, "solve_rate": 0.0, "reward": -1.0, "groups": 2.0, "groups/all_unsolved": 2.0,
           "episodes": 4.0, "infrastructure_failures": 0.0}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return create_run(resolve("tiny_cpu", ["run.name=a", "run.num_rollouts=10"]))


def step(rollout: int, seconds: float, attempt: int = 1, **figures) -> dict:
    parts = {"generation": seconds / 2, "sandbox": 0.0, "total": seconds}
    return {"kind": "train", "rollout_id": rollout, "attempt": attempt, **figures, "seconds": parts}


def evaluation(**more) -> dict:
    where = {"kind": "eval", "name": "heldout", "moment": "before", "rollout_id": -1, "attempt": 1}
    return {**where, "solve_rate": 0.5, "interval": [0.15, 0.85], **more, "seconds": {"total": 100.0}}


def test_what_is_there_is_shown_and_the_pace_is_the_run_s(folder, capsys):
    journal = Journal(folder / METRICS)
    for record in (evaluation(), step(0, 7.0, reward=0.25), step(1, 20.0, sampled_tokens=50.0, episodes=4.0),
                   step(2, 40.0)):  # fmt: skip
        journal.append(record)
    with attempting(folder / ATTEMPTS) as attempt:
        StatusFile(folder, attempt.number).on_phase("training")
        assert run(["watch", "a", "--once"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "tiny_cpu · runs/a" and lines[1].startswith("attempt 1 · process ")
    assert lines[2:6] == [
        "evaluated heldout before solved 50% (15–85)",
        "rollout 1/10 · reward 0.25 · s/step 7.0",
        "rollout 2/10 · tokens/s 20 · s/step 20.0 · 2:40 left",
        "rollout 3/10 · s/step 40.0 · 3:30 left",
    ]
    assert re.fullmatch(r"now: training, which began \d+ s ago", lines[6])


def test_a_run_that_trains_nothing_is_called_out_and_a_resumed_one_is_counted_anew(folder, capsys):
    for record in [step(number, 1.0, **NOTHING) for number in range(3)]:
        Journal(folder / METRICS).append(record)
    for record in [step(number, 1.0, attempt=2, **NOTHING) for number in range(3, 5)]:
        Journal(folder / METRICS).append(record)
    with attempting(folder / ATTEMPTS):
        assert run(["watch", "a", "--once"]) == 0
    said = capsys.readouterr().err.splitlines()
    lines = [line for line in said if not line.startswith("alarm, ")]
    alarms = [line.partition(": ")[0] for line in said if "of the groups taught nothing" in line]
    assert alarms == ["alarm, rollout 1", "alarm, rollout 4"]
    assert sum("trained nothing" in line for line in lines) == 6
    assert "3 rollouts in a row trained nothing: no episode was solved" in lines[5]
    assert lines[6].endswith("trained nothing"), "no pace before the second rollout of an attempt"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_run_that_hangs_is_called_out_while_it_does(folder, capsys, options):
    """Its last line is two hours old, and a rollout takes ten minutes."""
    for number in range(3):
        Journal(folder / METRICS).append(step(number, 600.0))
    os.utime(folder / METRICS, (time.time() - 7200,) * 2)
    said = "alarm, rollout 4: nothing was recorded for 12 times as long as the median of the rollouts before"
    with attempting(folder / ATTEMPTS):
        assert run(["watch", "a", "--once", *options]) == 0
        heard = "".join(capsys.readouterr())
        assert said in heard and ('{"kind":"stall","said":"alarm' in heard) == bool(options)
        os.utime(folder / METRICS, (time.time() - 3000,) * 2)
        run(["watch", "a", "--once", *options])
        assert said[:30] not in "".join(capsys.readouterr())
    os.utime(folder / METRICS, (time.time() - 7200,) * 2)
    run(["watch", "a", "--once", *options])
    assert said not in "".join(capsys.readouterr()), "it has died, which is said instead"


def test_a_run_that_trained_nothing_ends_with_the_reason(folder, capsys):
    """Under SLiME on GPUs there is no summary, which would have it."""
    for record in [step(number, 1.0, **NOTHING) for number in range(2)]:
        Journal(folder / METRICS).append(record)
    with attempt_with_status(folder) as attempt:
        record_end(folder, attempt, 0)
    assert run(["watch", "a"]) == 0
    *_, ended, why = capsys.readouterr().err.splitlines()
    assert ended == "the run has succeeded  runs/a"
    assert why.startswith("Nothing was trained: no episode was solved") and "4 all unsolved" in why


def test_json_is_one_object_a_line(folder, capsys):
    Journal(folder / METRICS).append(evaluation())
    with attempting(folder / ATTEMPTS) as attempt:
        StatusFile(folder, attempt.number).on_phase("training")
        assert run(["watch", "a", "--once", "--json"]) == 0
    attempt_, record, status = map(json.loads, capsys.readouterr().out.splitlines())
    assert (attempt_["kind"], attempt_["lasts"]) == ("attempt", True) and record == evaluation()
    assert status["kind"] == "status" and status["phase"] == "training"


def test_an_unknown_run_is_refused_with_those_that_there_are(folder, capsys):
    assert run(["watch", "nope"]) == 2
    assert "there is no run 'nope' in runs: there are: a" in capsys.readouterr().err


def test_a_run_that_never_began_is_no_run_that_runs(folder, capsys):
    assert run(["watch", "a"]) == 1
    assert "the run has never begun" in capsys.readouterr().err
