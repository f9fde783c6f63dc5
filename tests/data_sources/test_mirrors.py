"""Images from another registry than their names say, by a task set's option and by `data.registry`."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from slime_swe.data_sources.registry import absolute, is_registry, load_tasks, name_in
from slime_swe.data_sources.task import Image, Workspace
from slime_swe.errors import UserError
from slime_swe.launch.config import resolve
from slime_swe.launch.slime.render import to_args
from tests.data_sources.tasks import make_task
from tests.data_sources.test_corpora import FIXTURES

MIRROR = "mirror.example:5000/swe/"


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("xingyaoww/sweb.eval.x86_64.a_s_b:latest", "xingyaoww/sweb.eval.x86_64.a_s_b:latest"),
        ("docker.io/a/b@sha256:0", "a/b@sha256:0"),
        ("localhost:5000/a/b:1", "a/b:1"),
        ("localhost/a", "a"),
        ("python:3.12", "library/python:3.12"),
    ],
)
def test_a_name_is_kept_below_the_registry_s(name, there):
    assert name_in(MIRROR, name, "t1") == f"mirror.example:5000/swe/{there}"
    assert name_in(MIRROR, f"docker://{name}", "t1") == f"docker://mirror.example:5000/swe/{there}"
    assert name_in("cache/{name}", name, "t1") == f"cache/{there}"
    assert name_in(MIRROR, name_in(MIRROR, name, "t1"), "t1") == name_in(MIRROR, name, "t1")


@pytest.mark.parametrize("name", ["dir:/data/a", "/data/a", "/data/a.sif", "a.sif", "oras://registry.example/a"])
def test_what_no_registry_has_stays(name):
    assert name_in(MIRROR, name, "t1") == name


def test_epoch_s_images_are_named_after_the_task():
    registry = "ghcr.io/epoch-research/swe-bench.eval.x86_64.{id}"
    (first, *_) = load_tasks(f"swebench:verified?folder={FIXTURES}/swebench&registry={registry}")
    assert first.workspace.image.name == f"ghcr.io/epoch-research/swe-bench.eval.x86_64.{first.id}"
    assert first.workspace.image.folder == "/testbed"


@pytest.mark.parametrize("given", ["{task}", "a b", "https://mirror.example", "{", "x{name", "{0}", "{}"])
def test_what_is_no_registry_is_refused(given):
    assert not is_registry(given)
    with pytest.raises(UserError, match=r"data.registry=.* is no registry: give a registry's address"):
        resolve("tiny_cpu", [f"data.registry='{given}'"])
    if given.strip("{}"):
        with pytest.raises(UserError, match="is no registry: give a registry's address"):
            load_tasks(f"synthetic:heldout?registry={given}")


def test_the_recipe_s_registry_holds_for_every_set_that_names_none(tmp_path):
    task = replace(make_task("t1"), workspace=Workspace(image=Image("example/a")))
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(orjson.dumps(task.to_dict()))
    other = f"{path}?registry=other.example"
    recipe = resolve(
        "tiny_cpu",
        [f"data.train=['{path}','{other}']", f"data.eval={{a: '{path}', b: '{other}'}}", f"data.registry={MIRROR}"],
    )
    args = to_args(recipe, tmp_path / "run")
    sets = [*args.swe_tasks, *args.swe_eval_tasks.values()]
    names = [load_tasks(spec)[0].workspace.image.name for spec in sets]
    assert names == 2 * ["mirror.example:5000/swe/example/a", "other.example/example/a"]
    assert load_tasks(absolute(str(path)))[0] == task, "and without one nothing is changed"
