"""Real SLiME and Megatron save, our rollout function removes, and what stays can be resumed."""

from __future__ import annotations

import pytest

from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.launch.slime.paths import CHECKPOINTS, EXPORTS
from slime_swe.launch.slime_cpu.run import train
from slime_swe.rollout.retention import INDEX, last_saved

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SMALL = ["engine=slime_cpu", "data.eval={}", "algorithm.steps_per_rollout=1", "rollout.time_budget=600"]
SMALL += ["rollout.batch_size=2", "rollout.samples_per_task=2", "optimizer.schedule=constant"]
KEPT = ["run.keep_checkpoints=1", "run.keep_exports=2"]


@pytest.mark.parametrize("words", [(), ("slime.flags.async-save=true",)], ids=["save", "async-save"])
def test_what_stays_is_whole_and_is_resumed(slime_home, tmp_path, words):
    def recipe(rollouts):
        return resolve(
            "tiny_cpu", [*SMALL, *KEPT, *words, f"run.num_rollouts={rollouts}", f"run.dir={tmp_path}", "run.name=a"]
        )

    folder = create_run(recipe(4))
    train(recipe(4), folder, resume=False)
    waits = bool(words)  # of an asynchronous save the tracker is written when the next one begins
    assert saved(folder) == ([1, 2, 3] if waits else [2, 3])
    assert exported(folder) == [1, 2, 3]
    train(recipe(5), folder, resume=True)
    assert saved(folder) == [3, 4]
    assert exported(folder) == [2, 3, 4]
    assert last_saved(folder / CHECKPOINTS, unreadable=-1) == 4


def saved(folder):
    found = sorted((folder / CHECKPOINTS).glob("iter_*"))
    assert all((path / ".metadata").is_file() for path in found)
    return [int(path.name.removeprefix("iter_")) for path in found]


def exported(folder):
    found = sorted((folder / EXPORTS).iterdir())
    assert all((path / INDEX).is_file() for path in found)
    return [int(path.name) for path in found]
