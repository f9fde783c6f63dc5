"""Run folders: never overwritten, found by name, resumed only with the same recipe."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.config import read_recipe, resolve
from slime_swe.launch.runs import create_run, find_run, require_same, require_usable, with_name


@pytest.fixture
def recipe(tmp_path):
    return resolve("tiny_cpu", [f"run.dir={tmp_path}/runs", "run.name=first"])


def test_a_new_run_holds_its_recipe_and_is_found_by_name_and_by_path(recipe, tmp_path):
    folder = create_run(recipe)
    assert read_recipe(folder / "recipe.yaml") == recipe
    assert find_run("first", str(tmp_path / "runs")) == folder
    assert find_run(str(folder)) == folder


def test_an_existing_run_is_never_overwritten(recipe):
    create_run(recipe)
    with pytest.raises(UserError, match="exists already: add --resume"):
        create_run(recipe)


def test_an_unknown_run_names_the_nearest(recipe, tmp_path):
    create_run(recipe)
    with pytest.raises(UserError, match="did you mean first"):
        find_run("frist", str(tmp_path / "runs"))
    with pytest.raises(UserError, match="there are: none"):
        find_run("first", str(tmp_path / "empty"))
    with pytest.raises(UserError, match=r"is named by run\.name=NAME: there are: first"):
        find_run("", str(tmp_path / "runs"))


def test_a_folder_that_may_not_be_written_is_refused_before_anything_is_made():
    child = os.fork()  # that is nobody, who may not write in /
    if child == 0:
        said = ""
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            require_usable(Path("/slime-swe-runs/first"))
        except UserError as error:
            said = str(error)
        finally:
            os._exit(
                said != "can't make the run folder /slime-swe-runs/first: / may not be written; give another run.dir"
            )
    assert os.waitpid(child, 0)[1] == 0


def test_a_changed_recipe_is_refused_with_its_keys(recipe):
    folder = create_run(recipe)
    require_same(recipe, folder)
    changed = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, lr=1.0))
    with pytest.raises(UserError, match=f"optimizer.lr was {recipe.optimizer.lr} and is 1.0"):
        require_same(changed, folder)


def test_a_run_can_be_made_longer_where_its_learning_rate_does_not_depend_on_it(recipe):
    def long(count: int, schedule: str = "constant"):
        optimizer = dataclasses.replace(recipe.optimizer, schedule=schedule)
        return dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, num_rollouts=count), optimizer=optimizer)

    folder = create_run(long(5))
    for _ in range(2):
        require_same(long(9), folder)
    assert read_recipe(folder / "recipe.yaml") == long(9)
    for shorter_or_linear in (long(8), long(12, "linear")):
        with pytest.raises(UserError, match=r"longer where optimizer\.schedule=constant"):
            require_same(shorter_or_linear, folder)


def test_a_resumed_run_may_keep_more_checkpoints(recipe):
    def kept(recipe, count: int):
        return dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, keep_checkpoints=count))

    folder = create_run(recipe)
    require_same(kept(recipe, 0), folder)
    assert read_recipe(folder / "recipe.yaml").run.keep_checkpoints == 0
    changed = dataclasses.replace(recipe, optimizer=dataclasses.replace(recipe.optimizer, lr=1.0))
    with pytest.raises(UserError, match=r"optimizer\.lr"):
        require_same(kept(changed, 1), folder)
    exports = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, keep_exports=7))
    require_same(exports, folder)


def test_a_moved_run_can_be_resumed(recipe, tmp_path):
    folder = create_run(recipe)
    folder.rename(tmp_path / "moved")
    elsewhere = dataclasses.replace(recipe.run, dir=str(tmp_path), name="moved")
    require_same(dataclasses.replace(recipe, run=elsewhere), find_run("moved", str(tmp_path)))


def test_a_run_without_a_name_is_named_after_recipe_and_seed():
    assert with_name(resolve("tiny_cpu", ["run.seed=7"])).run.name.startswith("tiny_cpu-seed7-")


def test_a_folder_that_can_not_be_made_is_named(recipe):
    nowhere = dataclasses.replace(recipe, run=dataclasses.replace(recipe.run, dir="/proc/nowhere"))
    with pytest.raises(UserError, match=r"can't make the run folder /proc/nowhere/first: .*give another run.dir"):
        create_run(nowhere)


def test_a_file_in_the_place_of_the_folder_is_named(recipe, tmp_path):
    (tmp_path / "runs").write_text("not a folder")
    with pytest.raises(UserError, match=r"can't make the run folder .*give another run.dir"):
        create_run(recipe)
