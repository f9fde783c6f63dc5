"""The images that a run leaves on a machine's disk, against counts by hand."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from slime_swe.data_sources.task import Image, Workspace
from slime_swe.launch.config import resolve
from slime_swe.launch.plan import assume
from slime_swe.launch.plan.images import task_images
from slime_swe.launch.plan.plan import fit, make_plan
from slime_swe.recipes.registry import RECIPES, load_recipe
from slime_swe.sandbox.overlay.backend import OverlayBackend
from tests.data_sources.tasks import make_task

ON_GPUS = [name for name in RECIPES if load_recipe(name).engine == "slime"]
TB = 1e12 / 2**30
# A run of 200 rollouts of 32 groups, of which four in ten are kept, begins 16,000: more than any of these sets has.
BY_HAND = {
    ("swegym:train", "swebench:verified"): 6 * TB + 240,  # of all its 2,438 images, and of 500
    ("r2egym:subset", "swebench:verified"): 4 * TB + 240,  # of all its 4,578
    ("swesmith:train", "swebench:verified"): 0.295 * TB + 240,  # of all its 128 repositories
    ("swerebench:filtered", "swebench:verified"): 6542 * 0.5 + 240,  # nobody has published a size
}


def found(*overrides: str, assumed: tuple[str, ...] = ()):
    recipe = resolve("qwen25_coder_7b", ["data.eval={}", *overrides])
    return [
        (each.count, round(each.gib, 2), each.how)
        for each in task_images(recipe, assume(("informative=0.4", *assumed)))
    ]


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_recipe_s_images_are_within_a_tenth_of_a_count_by_hand(name):
    recipe = load_recipe(name)
    by_hand = BY_HAND[*recipe.data.train, *recipe.data.eval.values()]
    found = fit(recipe)
    assert sum(each.total for each in found.images) == pytest.approx(by_hand, rel=0.1)
    (part,) = (part for part in found.budget("disk").components if part.name == "task images")
    assert part.bytes / 2**30 == pytest.approx(by_hand, rel=0.1)


@pytest.mark.parametrize(
    ("overrides", "count"),
    [
        ([], 100),  # 10 rollouts of 4 groups are 40 that are kept, and 60 that are dropped
        (["algorithm.group_filter="], 40),
        (["run.num_rollouts=100"], 1000),
        (["run.num_rollouts=1000"], 2438),  # each a few times
        (["data.train=['swegym:train?limit=30']"], 30),
        (["data.train=['swegym:train?part=0.5-0.51']"], 25),
        (["data.train=['swegym:train?id=a,b']"], 2),
        (["data.train=['swegym:train?before=2022-01-01&expect=7']"], 7),
    ],
)
def test_as_many_tasks_are_met_as_groups_begin(overrides, count):
    short = ["run.num_rollouts=10", "rollout.batch_size=4"]
    assert found(*short, *overrides) == [(count, 2.29, "published")]


def test_sets_share_the_groups_by_weight_or_by_size():
    short = ["run.num_rollouts=10", "rollout.batch_size=40", "data.train=['swegym:train','r2egym:subset']"]
    assert [count for count, *_ in found(*short, "data.weights=[3,1]")] == [750, 250]
    assert [count for count, *_ in found(*short)] == [348, 653]  # of 2,438 and 4,578 tasks
    unknown = [*short[:2], "data.train=['swegym:train','r2egym:v1']"]
    assert [count for count, *_ in found(*unknown)] == [1000, 1000], "nobody knows how large the second one is"


def test_an_evaluation_meets_all_of_its_tasks():
    short = ["run.num_rollouts=1", "rollout.batch_size=2", "data.eval.verified=swebench:verified"]
    assert found(*short) == [(5, 2.29, "published"), (500, 0.48, "published")]
    assert found(*short, "data.train=['swebench:verified']") == [(500, 0.48, "published")], "one image a task, once"


def test_tasks_of_one_repository_share_their_image(tmp_path):
    assert found("data.train=['swesmith:train']") == [(128, 2.15, "published")]
    workspaces = [Workspace(image=Image(name)) for name in ("a", "b", "a", "a")]
    tasks = [replace(make_task(f"t{n}"), workspace=workspace) for n, workspace in enumerate(workspaces)]
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(task.to_dict()) for task in tasks))
    assert found(f"data.train=['{path}']") == [(2, 0.5, "assumed")]
    path.write_bytes(orjson.dumps(tasks[0].to_dict()))
    os.utime(path, (1, 1))
    assert found(f"data.train=['{path}']") == [(1, 0.5, "assumed")], "not what the file held before"


@pytest.mark.parametrize(
    "spec",
    [
        *("synthetic:train", "quixbugs:python", "no_such.jsonl", "swegym:other", "x"),
        *("swegym:train?limit=x", "swegym:train?expect=-1", "swegym:train?part=a-b", "swegym:train?part=1"),
    ],
)
def test_what_runs_in_no_image_or_can_not_be_read_has_none(spec):
    assert found(f"data.train=['{spec}']") == []


def test_where_no_sandbox_has_images_there_are_none():
    assert found("rollout.sandbox=local") == found("rollout.sandbox=remote:modal") == []


def test_a_sandbox_that_unpacks_images_shares_none_of_their_layers():
    assert found("rollout.sandbox=overlay", "data.train=['swebench:verified']") == [(500, 3.0, "assumed")]
    assert found("rollout.sandbox=ray:overlay", "data.train=['swebench:verified']") == [(500, 3.0, "assumed")]


def test_a_size_that_is_measured_is_put_in():
    assert found(assumed=("image_gib=1.5",)) == [(2438, 1.5, "assumed")]


def test_a_disk_that_holds_no_images_is_refused_with_what_to_do():
    (problem,) = fit(resolve("qwen25_coder_7b", ["cluster.disk_per_node=2048"])).problems
    assert problem.field == "cluster.disk_per_node"
    assert "2,438 of swegym:train at 2.29 GiB (published)" in problem.message and "?part=" in problem.fix
    assert fit(
        resolve("qwen25_coder_7b", ["cluster.disk_per_node=2048", "data.train=['swegym:train?part=0-0.25']"])
    ).fits


def test_a_run_that_removes_images_needs_room_for_those_of_one_rollout():
    """30 groups of 2.29 GiB are begun for the 12 that are trained, and 200 GiB stay free."""
    recipe = resolve("qwen25_coder_7b", ["cluster.disk_per_node=2048", "rollout.keep_disk_free=200"])
    found = make_plan(recipe, assume(["informative=0.4"]))
    (disk,) = (budget for budget in found.budgets if budget.name == "disk")
    parts = {part.name: part.bytes / 2**30 for part in disk.components}
    assert found.fits and parts["task images"] == pytest.approx(30 * 2.29, rel=0.01) and parts["kept free"] == 200
    assert any("which removes some to make room" in note for note in found.notes)


def test_unpacked_images_are_measured_by_their_files(tmp_path):
    for name, size in (("one", 3 << 20), ("two", 5 << 20)):
        (tmp_path / name / "testbed").mkdir(parents=True)
        (tmp_path / name / "testbed" / "data").write_bytes(os.urandom(size))
        os.link(tmp_path / name / "testbed" / "data", tmp_path / name / "the same")
    backend = OverlayBackend(cache=tmp_path)
    names = [f"dir:{tmp_path}/{name}" for name in ("one", "two")]
    assert backend.images_gib(names) * 1024 == pytest.approx(8, rel=0.02)
    assert backend.images_gib([names[0]] * 40) * 1024 == pytest.approx(120, rel=0.02), "of many, some are looked at"
    assert isinstance(backend.image_folder(), Path)
