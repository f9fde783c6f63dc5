"""SLiME's own loop, as a script that asks in its order and keeps what it was answered, by a clock that steps move."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from slime_swe.launch.slime.paths import SETTINGS
from slime_swe.saving import TRY_AGAIN, request_stop

MISC = """
def should_run_periodic_action(rollout_id, interval, num_rollout_per_epoch=None, num_rollout=None):
    return rollout_id + 1 == num_rollout or (rollout_id + 1) % interval == 0
"""
GROUP = {
    "slime": """
class RayTrainGroup:
    def save_model(self, rollout_id, force_sync=False):
        done("save", rollout_id, force_sync)
""",
    "miles": """
class RayTrainGroup:
    async def save_model(self, rollout_id, force_sync=False):
        done("save", rollout_id, force_sync)
""",
}
HEARD = """
import json
def done(what, *of):
    with open("heard", "a") as file:
        file.write(json.dumps([what, *of]) + "\\n")
"""
SCRIPTS = {
    "slime": """
import sys, time
from slime.ray.actor_group import RayTrainGroup
from slime.utils.misc import should_run_periodic_action
if __name__ == "__main__":
    first, last, minutes = map(int, sys.argv[1:])
    for rollout_id in range(first, last):
        time.time = lambda now=time.time() + 60 * minutes: now
        if should_run_periodic_action(rollout_id, 20, None, last):
            RayTrainGroup().save_model(rollout_id, force_sync=rollout_id == last - 1)
        if should_run_periodic_action(rollout_id, 4, None):
            done("evaluate", rollout_id)
    done("end")
""",
    "miles": """
import asyncio, sys, time
from miles.ray.actor_group import RayTrainGroup
from miles.utils.misc import should_run_periodic_action
async def train(first, last, minutes):
    for rollout_id in range(first, last):
        time.time = lambda now=time.time() + 60 * minutes: now
        if should_run_periodic_action(rollout_id, 20, None, last):
            await RayTrainGroup().save_model(rollout_id, rollout_id == last - 1)
        if should_run_periodic_action(rollout_id, 4, None, last):
            done("evaluate", rollout_id)
    done("end")
if __name__ == "__main__":
    asyncio.run(train(*map(int, sys.argv[1:])))
""",
}


@pytest.fixture(params=["slime", "miles"])
def upstream(request, tmp_path) -> Path:
    """The entry script of a train loop."""
    name = request.param
    home = tmp_path / "checkout"
    files = {
        f"{name}/utils/misc.py": MISC,
        f"{name}/ray/actor_group.py": HEARD + GROUP[name],
        "train.py": HEARD + SCRIPTS[name],
    }
    for path, text in files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    return home / "train.py"


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
