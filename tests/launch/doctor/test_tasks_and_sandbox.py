"""Task sets, plug-ins and one real sandbox."""

from __future__ import annotations

import dataclasses
import shutil

import orjson
import pytest

from slime_swe.data_sources.task import Image, Workspace
from slime_swe.launch.doctor import Machine, guarded
from slime_swe.launch.doctor.recipe import check_plug_ins, check_sandbox, check_tasks
from tests.data_sources.tasks import make_task
from tests.launch.doctor.machines import before_others, script
from tests.recipes.changes import variant


def statuses(findings) -> dict[str, str]:
    return {finding.check: finding.status.value for finding in findings}


def test_every_task_set_is_read(tmp_path):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_bytes(b"\n".join(orjson.dumps(make_task(name).to_dict()) for name in ("one", "two")))
    bad.write_text('{"id": 1}\n')
    sets = {"a": str(bad), "b": str(tmp_path / "none.jsonl"), "c": "nothing:train"}
    found = list(check_tasks(variant("tiny_cpu", data__train=[str(good)], data__eval=sets), Machine()))
    assert [finding.status for finding in found] == ["ok", "failure", "failure", "failure"]
    assert f"data.train: 2 tasks of {good}" in found[0].message
    assert "bad.jsonl, line 1" in found[1].message and "change data.eval.a" in found[1].fix
    assert "can't read" in found[2].message


@pytest.mark.parametrize(("sandbox", "status"), [("local", "failure"), ("docker", "ok")])
def test_tasks_with_images_want_a_sandbox_that_takes_them(tmp_path, sandbox, status):
    task = dataclasses.replace(make_task("one"), workspace=Workspace(image=Image("made/up:1")))
    (tmp_path / "tasks.jsonl").write_bytes(orjson.dumps(task.to_dict()))
    recipe = variant("tiny_cpu", data__train=[str(tmp_path / "tasks.jsonl")], data__eval={}, rollout__sandbox=sandbox)
    found = {finding.check: finding for finding in check_tasks(recipe, Machine())}
    assert found["tasks"].status == status
    if status == "failure":
        assert "bring a container image, and rollout.sandbox=local takes none" in found["tasks"].message
        assert "set rollout.sandbox to one that does" in found["tasks"].fix


def test_of_sandboxes_on_other_nodes_one_here_is_opened():
    recipe = variant("tiny_cpu", rollout__sandbox="ray:subprocess")
    found = {finding.check: finding for finding in check_sandbox(recipe, Machine())}
    assert statuses(found.values()) == {"Ray": "ok", "isolation": "warning", "sandbox": "ok", "nodes": "skipped"}
    assert "a subprocess sandbox opened" in found["sandbox"].message


def test_plug_ins_are_imported(tmp_path, monkeypatch):
    (tmp_path / "broken_plug_in.py").write_text("def reward(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert statuses(check_plug_ins(variant("tiny_cpu"), Machine())) == {"plug-ins": "ok"}
    recipe = variant(
        "tiny_cpu",
        reward__function="broken_plug_in.reward",
        rollout__generate="slime_swe.rollout.slime_plugin.no_such",
        rollout__log="no_such_module.log",
        rollout__agent="nobody",
        algorithm__group_filter="",
    )
    said = " ".join(finding.message for finding in check_plug_ins(recipe, Machine()))
    for part in ("broken_plug_in.py, line 1", "'no_such'", "'no_such_module'", "'nobody'"):
        assert part in said


def test_a_sandbox_is_opened():
    found = statuses(check_sandbox(variant("tiny_cpu", rollout__sandbox="subprocess"), Machine()))
    assert found == {"isolation": "warning", "sandbox": "ok"}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_an_isolated_sandbox_is_opened():
    found = list(check_sandbox(variant("tiny_cpu"), Machine()))
    assert {finding.check for finding in found} == {"bubblewrap", "user namespaces", "seccomp", "sandbox"}
    assert found[-1].status in ("ok", "warning"), found  # a container may forbid user namespaces


def test_without_bubblewrap_what_is_unprotected_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {finding.check: finding for finding in check_sandbox(variant("tiny_cpu"), Machine())}
    assert found["bubblewrap"].status == "warning"
    assert found["sandbox"].status == "warning" and "commands can reach the network" in found["sandbox"].message
    wanted = statuses(check_sandbox(variant("tiny_cpu", rollout__sandbox="bubblewrap"), Machine()))
    assert wanted["sandbox"] == "failure"


def test_an_unknown_sandbox_is_a_failure():
    found = statuses(guarded("sandbox", variant("tiny_cpu", rollout__sandbox="dokcer"), Machine()))
    assert found == {"sandbox": "failure"}


SAID = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
DEAF = f'echo "{SAID}" >&2; exit 1'


@pytest.mark.parametrize(("body", "status", "said"), [(DEAF, "failure", "start it"), ("echo 28.3.2", "ok", "28.3.2")])
def test_the_docker_daemon_must_answer(tmp_path, monkeypatch, body, status, said):
    script(tmp_path, "docker", body)
    monkeypatch.setenv("PATH", before_others(tmp_path))
    recipe = variant("tiny_cpu", rollout__sandbox="docker")
    found = {finding.check: finding for finding in check_sandbox(recipe, Machine())}
    assert found["docker"].status == status
    assert said in found["docker"].message + found["docker"].fix
