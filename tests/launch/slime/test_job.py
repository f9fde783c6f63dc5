"""A job as text; the shell script is run, with an interpreter that says what it was given."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.job import document, readable, script
from slime_swe.launch.slime.render import render
from tests.recipes.changes import variant

AWKWARD = """it's "quoted" $HOME `id` \\ *
-- a second line, ünïcode: {x}"""

TELL = """#!{python}
import json, os, runpy, sys
if sys.argv[1] == "-m":
    sys.argv, module = sys.argv[2:], sys.argv[2]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
else:
    reported = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
    open({out!r}, "w").write(json.dumps(reported))
"""


@pytest.fixture
def job(tmp_path):
    recipe = variant(
        "qwen25_coder_7b",
        rollout__system_prompt=AWKWARD,
        rollout__agent="my.agent",
        data__eval={"heldout": "synthetic:heldout"},
        run__trackers=["wandb"],
        run__project="it's a 'project' $X",
    )
    job = render(recipe, tmp_path / "a run's folder", checkouts=Checkouts(Path("/slime"), Path("/megatron")))
    return dataclasses.replace(job, program=("python3", job.program[-1]))


@pytest.mark.slow
def test_the_script_gives_every_word_as_it_is(job, tmp_path):
    out, tools = tmp_path / "reported.json", tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").write_text(TELL.format(python=sys.executable, out=str(out)))
    (tools / "python3").chmod(0o755)
    path = tmp_path / "run.sh"
    path.write_text(script(job))
    subprocess.run(["bash", str(path)], check=True, env={"PATH": f"{tools}:{os.environ['PATH']}"})
    reported = json.loads(out.read_text())
    assert reported["argv"] == job.argv[1:]
    assert reported["cwd"] == str(job.directory)
    assert dict(job.environment).items() <= reported["env"].items()
    assert all(path.read_text() == content for path, content in job.files.items())


def test_written_files_are_those_of_the_script(job):
    job.write_files()
    job.write_files()
    found = {path for path in job.directory.rglob("*") if path.is_file()}
    assert {path: path.read_text() for path in found} == dict(job.files)


def test_people_see_groups(job):
    shown = readable(job)
    assert shown.startswith("python3 /slime/train.py")
    for part in ("\nmodel\n  --num-layers 28\n", "\nenvironment\n", "\nfiles\n"):
        assert part in shown
    assert f"in {job.directory}" in shown


def test_the_document_is_plain_and_whole(job):
    reported = json.loads(json.dumps(document(job)))
    assert reported["argv"] == job.argv
    assert [word for words in reported["flags"].values() for word in words] == job.words
    assert reported["made_from"]["slime"]
