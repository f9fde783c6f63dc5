"""`slime-swe tasks` on tasks that live in images, and the commits that they start from."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from slime_swe.data_sources.corpora import CORPORA
from slime_swe.data_sources.repositories import remove
from slime_swe.launch.cli import run
from tests.data_sources.tasks import make_task

FIXTURES = Path(__file__).parents[1] / "data_sources" / "fixtures"
VERIFIED = f"swebench:verified?folder={FIXTURES / 'swebench'}"


def test_the_sources(capsys):
    assert run(["tasks", "list"]) == 0
    said = capsys.readouterr().out
    assert "swebench:verified  SWE-bench, 500 tasks, Python\n" in said and "synthetic:SPLIT" in said
    assert all(f"\n{name}:" in f"\n{said}" for name in CORPORA)


def test_a_list_names_the_image(capsys):
    assert run(["tasks", "list", f"{VERIFIED}&repo=sympy/sympy"]) == 0
    said = capsys.readouterr()
    assert said.out == "sympy__sympy-3  example/sweb.eval.sympy__sympy-3  sympy is slow\n"
    assert said.err == "1 of 3 tasks; the others are left out by what follows the ?\n"
    assert run(["tasks", "list", VERIFIED, "--limit", "1", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    (brief,) = json.loads(said.out)
    assert brief["image"] == "example/sweb.eval.django__django-1" and brief["files"] == []


def test_a_task_is_shown_with_its_image_and_script(capsys):
    assert run(["tasks", "show", VERIFIED, "django__django-1"]) == 0
    said = capsys.readouterr().out
    image, _, _ = said.partition("## image\nexample/sweb.eval.django__django-1\n/testbed\n")[2].partition("\n## ")
    assert "\nconda activate testbed\n" in image and "repo: django/django" in said
    assert "## eval script, read by parse_log_pytest\n#!/bin/bash" in said and "## test command" not in said
    assert run(["tasks", "show", f"bugsinpy:all?folder={FIXTURES}/bugsinpy", "bugsinpy-shapes-1"]) == 0
    assert "image: https://github.com/example/shapes at 1111" in capsys.readouterr().out


def test_what_a_corpus_needs_is_said_without_a_traceback(capsys, tmp_path):
    assert run(["tasks", "list", f"defects4j:all?folder={tmp_path}"]) == 2
    assert capsys.readouterr().err.startswith("slime-swe: Defects4J 2.0 is not in")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def tasks_file(tmp_path) -> Path:
    """One task whose commit can be had, one with a short hash, one that names none."""
    upstream = tmp_path / "upstream"
    upstream.mkdir()
    git(upstream, "init", "-q")
    (upstream / "code.py").write_text("1\n")
    git(upstream, "add", "-A")
    git(upstream, "commit", "-qm", "x")
    git(upstream, "config", "uploadpack.allowAnySHA1InWant", "true")
    commit = git(upstream, "rev-parse", "HEAD")
    other = ("1" if commit[0] == "0" else "0") * 7
    about = [{"repo": upstream.as_uri(), "base_commit": commit}, {"repo": upstream.as_uri(), "base_commit": other}, {}]
    tasks = [dataclasses.replace(make_task(f"t{i}"), metadata=metadata) for i, metadata in enumerate(about)]
    path = tmp_path / "tasks.jsonl"
    path.write_text("\n".join(json.dumps(task.to_dict()) for task in tasks))
    return path


def test_commits_are_fetched_and_what_can_not_be_is_said(tasks_file, tmp_path, capsys):
    cache = tmp_path / "cache"
    assert run(["tasks", "checkout", str(tasks_file), "--limit", "1", "--cache", str(cache)]) == 0
    folder = Path(capsys.readouterr().out.split("  ")[1].strip())
    assert (folder / "code.py").read_text() == "1\n"
    assert run(["tasks", "checkout", str(tasks_file), "--cache", str(cache), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["fetched"] == {"t0": str(folder)}
    assert "begins the hash of no commit" in said["refused"]["t1"] and "does not say of which" in said["refused"]["t2"]
    remove(folder)


def test_git_that_fails_is_said_without_a_traceback(tmp_path, capsys):
    task = dataclasses.replace(make_task(), metadata={"repo": f"file://{tmp_path}/none", "base_commit": "0" * 40})
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task.to_dict()))
    assert run(["tasks", "checkout", f"{tmp_path}/tasks.jsonl", "--cache", f"{tmp_path}/cache"]) == 1
    assert capsys.readouterr().err.startswith("slime-swe: git fetch")
