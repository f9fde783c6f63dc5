"""What the wrapped loop takes SLiME's for, and a real run of it that is asked to stop and goes on."""

from __future__ import annotations

import inspect

import orjson
import pytest

from slime_swe.data_sources.slime_plugin import state_path
from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.launch.slime.paths import CHECKPOINTS, EXPORTS
from slime_swe.launch.slime_cpu.run import train
from slime_swe.rollout.records import METRICS
from slime_swe.rollout.retention import INDEX, last_saved
from slime_swe.saving import StoppedToResume, request_stop, withdraw_request
from tests.contract.asked import imported, is_as_the_loop_takes_it

SMALL = ["engine=slime_cpu", "data.eval={}", "algorithm.steps_per_rollout=1", "rollout.time_budget=600"]
SMALL += ["rollout.batch_size=2", "rollout.samples_per_task=2", "optimizer.schedule=constant"]


@pytest.mark.parametrize("script", ["train.py", "train_async.py"])
def test_slime_asks_whether_to_save_and_then_whether_to_evaluate(slime_home, script):
    is_as_the_loop_takes_it(slime_home / script, "slime")


def test_what_is_wrapped_is_called_by_these_names(slime_home):
    from slime.ray.actor_group import RayTrainGroup
    from slime.utils.misc import should_run_periodic_action

    assert [*inspect.signature(RayTrainGroup.save_model).parameters] == ["self", "rollout_id", "force_sync"]
    names = ["rollout_id", "interval", "num_rollout_per_epoch", "num_rollout"]
    assert [*inspect.signature(should_run_periodic_action).parameters] == names


def test_the_script_that_samples_ahead_leaves_the_evaluation_before_the_first_step_to_us(slime_home):
    """What the wrapped functions are called by, and that the evaluation is not made twice."""
    from slime.ray.actor_group import RayTrainGroup
    from slime.ray.placement_group import create_rollout_manager

    assert [*inspect.signature(create_rollout_manager).parameters] == ["args", "pg"]
    assert [*inspect.signature(RayTrainGroup.update_weights).parameters] == ["self"]
    script = slime_home / "train_async.py"
    assert imported(script)["create_rollout_manager"] == "slime.ray.placement_group"
    start, loop = script.read_text().split("for rollout_id in range(")
    assert ".eval.remote(" not in start and ".eval.remote(rollout_id)" in loop
    assert start.index("actor_model.update_weights()") < start.index(".generate.remote(")
    assert "rollout_id == 0 and not args.skip_eval_before_train" in (slime_home / "train.py").read_text()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rollouts", [1, 0])
def test_a_run_that_samples_ahead_is_evaluated_before_its_first_step(slime_home, tmp_path, rollouts):
    words = ["rollout.schedule=continuous", "rollout.max_staleness=1", f"run.num_rollouts={rollouts}", "run.name=a"]
    sets = ["data.eval={heldout: 'synthetic:heldout?limit=2'}", f"run.dir={tmp_path}"]
    recipe = resolve("tiny_cpu", [*SMALL, *sets, *words])
    folder = create_run(recipe)
    train(recipe, folder, resume=False)
    lines = [orjson.loads(line) for line in (folder / METRICS).read_bytes().splitlines()]
    trained = [("train", None, 0), ("eval", "after", 0)] if rollouts else []
    assert [(line["kind"], line.get("moment"), line["rollout_id"]) for line in lines] == [
        ("eval", "before", -1),
        *trained,
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "words", [(), ("slime.flags.async-save=true",), ("rollout.schedule=async",)], ids=["save", "async-save", "async"]
)
def test_a_run_that_is_asked_twice_loses_no_step(slime_home, tmp_path, words):
    """Without that, `run.save_interval=20` would save after the last rollout alone."""
    recipe = resolve(
        "tiny_cpu",
        [*SMALL, *words, "run.num_rollouts=4", "run.save_interval=20", f"run.dir={tmp_path}", "run.name=a"],
    )
    folder = create_run(recipe)
    for stopped_after in (0, 1):
        request_stop(folder)
        with pytest.raises(StoppedToResume):
            train(recipe, folder, resume=stopped_after > 0)
        assert last_saved(folder / CHECKPOINTS, unreadable=-1) == stopped_after
        assert state_path(folder / CHECKPOINTS, stopped_after).is_file()
        assert (folder / EXPORTS / str(stopped_after) / INDEX).is_file()
    withdraw_request(folder)
    train(recipe, folder, resume=True)
    assert last_saved(folder / CHECKPOINTS, unreadable=-1) == 3
    steps = [
        line for line in map(orjson.loads, (folder / METRICS).read_bytes().splitlines()) if line["kind"] == "train"
    ]
    assert [(line["rollout_id"]) for line in steps] == [0, 1, 2, 3]
