"""SLiME's own loop, as a script that asks in its order and keeps what it was answered, by a clock that steps move."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from slime_swe.launch.slime.paths import SETTINGS
from slime_swe.saving import TRY_AGAIN, request_stop
from tests.launch.slime.scripted_loop import HEARD, SCRIPTS, make_async_checkout, make_checkout


@pytest.fixture(params=["slime", "miles"])
def upstream(request, tmp_path) -> Path:
    """The entry script of a train loop."""
    name = request.param
    return make_checkout(tmp_path / "checkout", name, HEARD + SCRIPTS[name])


@pytest.fixture
def run(tmp_path, upstream):
    """`run(first, last, minutes)`: the exit code of a loop of steps of that length, and what it did."""
    folder = tmp_path / "run"
    (folder / SETTINGS).parent.mkdir(parents=True)
    (folder / SETTINGS).write_text("swe_save_every_minutes: 45.0\n")

    def of(first: int, last: int, minutes: int) -> tuple[int, list[list]]:
        (folder / "heard").unlink(missing_ok=True)
        words = [sys.executable, "-c", DRIVER, str(upstream), str(first), str(last), str(minutes)]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        lines = (folder / "heard").read_text().splitlines() if (folder / "heard").exists() else []
        return done.returncode, [orjson.loads(line) for line in lines]

    of.folder = folder
    return of


DRIVER = """
import sys, time
from slime_swe.launch.slime.loop import run
run(sys.argv[1], sys.argv[2:], lambda: time.time())  # which the script moves
"""


def test_checkpoints_by_time_stand_beside_those_by_steps(run):
    code, done = run(0, 10, 20)
    assert code == 0 and done.pop() == ["end"]
    saves = [of[0] for what, *of in done if what == "save"]
    assert saves == [1, 3, 5, 7, 9], "each second step of 20 minutes, and the last"
    assert [of[0] for what, *of in done if what == "evaluate"] in ([3, 7], [3, 7, 9])
    code, done = run(0, 50, 1)
    assert [of[0] for what, *of in done if what == "save"] == [19, 39, 49], "by steps, which come first"


def test_a_run_that_is_asked_saves_at_once_and_its_next_attempt_goes_on(run):
    request_stop(run.folder)
    assert run(0, 10, 1) == (TRY_AGAIN, [["save", 0, True]]), "the save is waited for, and no evaluation begins"
    assert run(1, 10, 1) == (TRY_AGAIN, [["save", 1, True]])


def test_a_loop_that_saves_without_a_question_evaluates_when_it_would(run, upstream):
    upstream.write_text(
        upstream.read_text().replace("if should_run_periodic_action(rollout_id, 20,", "if True or print(")
    )
    code, done = run(0, 5, 100)
    assert code == 0 and done.pop() == ["end"]
    assert [of[0] for what, *of in done if what == "save"] == [0, 1, 2, 3, 4]
    assert [of[0] for what, *of in done if what == "evaluate"] in ([3], [3, 4])


def test_the_last_step_ends_the_run_as_ever(run):
    request_stop(run.folder)
    code, done = run(9, 10, 1)
    assert (code, done[0], done[-1]) == (0, ["save", 9, True], ["end"])


def test_miles_of_other_trainers_stops_where_it_asks_again(run, upstream):
    """Whatever saves, nothing is begun after it."""
    text = upstream.read_text().replace("RayTrainGroup()", "Other()")
    upstream.write_text(
        text.replace("if __name__", "class Other(RayTrainGroup):\n    def save_model(self, *given, **named):\n"
                     "        return RayTrainGroup.save_model.__wrapped__(self, *given, **named)\nif __name__")
    )  # fmt: skip
    request_stop(run.folder)
    assert run(0, 10, 1) == (TRY_AGAIN, [["save", 0, False]])


@pytest.mark.parametrize(
    ("changes", "evaluated"),
    [
        ({}, True),
        ({"found": 2}, False),  # a checkpoint that it goes on from
        ({"eval_interval": None}, False),  # no evaluation set
        ({"skip_eval_before_train": True}, False),
        ({"num_rollout": 0}, False),
    ],
)
def test_a_loop_that_samples_ahead_evaluates_before_its_first_rollout(tmp_path, changes, evaluated):
    """Once, with the weights that the engines have got from the trainer, and before anything is sampled."""
    script = make_async_checkout(tmp_path / "checkout")
    (tmp_path / SETTINGS).parent.mkdir(parents=True)
    (tmp_path / SETTINGS).write_text("{}\n")
    args = {"found": 0, "num_rollout": 3, "eval_interval": 3, "skip_eval_before_train": False} | changes
    words = [sys.executable, "-c", DRIVER, str(script), orjson.dumps(args).decode()]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    done = [orjson.loads(line) for line in (tmp_path / "heard").read_text().splitlines()]
    steps = [["update"]] * (args["num_rollout"] - args["found"])
    before = [["evaluate", 0]] if evaluated else []
    assert done == [["update"], *before, ["generate", args["found"]], *steps]
