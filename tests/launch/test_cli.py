"""The command line: its surface is frozen here, and what a user does wrong is said without a traceback."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
from pathlib import Path

import orjson
import pytest

from slime_swe import __version__
from slime_swe.launch.cli import COMMANDS, SHORT, build_parser, parse, run
from slime_swe.launch.config import resolve
from slime_swe.launch.evaluation.target import newest_weights, recipe_for
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from slime_swe.launch.runs import create_run
from slime_swe.rollout.retention import INDEX, METADATA, TRACKER
from tests.data_sources.tasks import make_task

SURFACE = {
    "train": [
        "--dry-run", "--ends-at", "--ignore-integrity", "--ignore-plan", "--json", "--no-rehearsal", "--resume",
        "--script",
        "overrides",
    ],
    "evaluate": [
        "--budget", "--concurrency", "--json", "--key-variable", "--model", "--output", "--price", "--resume",
        "--samples", "--tasks", "overrides", "target",
    ],
    "recipes": ["--json", "overrides"],
    "tasks": [
        "--cache", "--dir", "--evaluation", "--from", "--ignore-disk", "--json", "--limit", "--min-episodes", "--out",
        "--pull", "--sandbox", "--solved", "action", "rest", "spec",
    ],
    "validate": [
        "--harness-python", "--jobs", "--json", "--limit", "--record", "--runs", "--sandbox", "--write", "spec",
    ],
    "make-tasks": [
        "--check", "--dir", "--harbor", "--jobs", "--json", "--out", "--releases", "--requests", "--sandbox",
        "--solve-rates", "--swebench", "--tasks", "--written", "packages",
    ],
    "describe": ["--json", "--key-variable", "--limit", "--model", "--out", "spec", "url"],
    "integrity": ["--grader", "--harness-python", "--json", "--only", "--plays", "--rows", "sandboxes"],
    "agent": ["--json", "action"],
    "compare": ["--at-least", "--dir", "--json", "--other-limits", "a", "b"],
    "replay": ["--dir", "--draws", "--episodes", "--json", "overrides", "run"],
    "plan": ["--assume", "--json", "overrides"],
    "doctor": ["--json", "overrides"],
    "probe": ["--json", "--limit", "--output", "--samples", "overrides"],
    "rehearse": ["--json", "overrides"],
    "episodes": [
        "--broken", "--dir", "--evaluation", "--index", "--json", "--list", "--max-reward", "--min-reward",
        "--no-broken", "--no-solved", "--rollout", "--solved", "--sort",
        "--task", "run",
    ],
    "export": [
        "--broken", "--dir", "--evaluation", "--json", "--max-reward", "--min-reward", "--no-broken", "--no-solved",
        "--out", "--rollout", "--solved", "--task", "--to", "run",
    ],
    "sft": [
        "--against", "--dir", "--error", "--evaluation", "--json", "--max-tokens", "--max-turns", "--out", "--per-task",
        "--similar", "--train-errors", "runs",
    ],
    "report": ["--dir", "--json", "--out", "--tokens", "runs"],
    "watch": ["--dir", "--json", "--once", "run"],
}  # fmt: skip


def test_the_surface_is_exactly_this():
    """A new option is a decision: most belong into the recipe."""
    subparsers = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    surface = {
        name: sorted(word for a in parser._actions for word in (a.option_strings or [a.dest]) if a.dest != "help")
        for name, parser in subparsers.choices.items()
    }
    assert surface == SURFACE | {short: SURFACE[meant] for short, meant in SHORT.items()}
    assert all("--json" in words for words in surface.values())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        parse([command, "--help"])
    assert stop.value.code == 0
    assert f"slime-swe {command}" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as stop:
        parse(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"slime-swe {__version__}\n"


def test_flags_and_overrides_may_be_mixed():
    options = parse(["train", "recipe=a", "--json", "run.seed=1", "--resume", "~data.eval.unseen"])
    assert options.overrides == ["recipe=a", "run.seed=1", "~data.eval.unseen"]
    assert options.json and options.resume


@pytest.mark.parametrize("words", (["train", "--recipe", "a"], ["episodes", "a", "b=c"], ["nothing"], []))
def test_unknown_words_are_refused(words, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(words)
    assert stop.value.code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "recipe=tiny_cp"], "did you mean tiny_cpu?"),
        (["train", "rollout.max_turn=1"], "did you mean rollout.max_turns"),
        (["train", "rollout.max_turns=x"], "a whole number"),
        (["train", "tiny_cpu"], "did you mean recipe=tiny_cpu?"),
        (["train", "recipe="], "recipe= is given without a name"),
        (["train", "model="], "model= is given without a name"),
        (["validate", "synthetic:heldout", "--limit", "-1"], "--limit must be at least 1, got -1"),
        (["train", "runs/a/recipe.yaml"], "did you mean recipe=runs/a/recipe.yaml?"),
        (["train", "reward.function=nowhere.reward"], "reward.function='nowhere.reward': there is no module 'nowhere'"),
        (["train", "recipe=nope.yaml"], "can't read recipe nope.yaml"),
        (["train", "--resume"], "no run of runs is named by run.name=NAME: there are: none"),
        (["train", "model.checkpoint=nowhere"], "holds no config.json"),
        (["tasks", "list", "nothing:train"], "synthetic"),
        (["tasks", "show"], "needs a task set"),
        (["validate", "nowhere.jsonl"], "can't read the task file"),
        (["validate", "synthetic:heldout", "--limit", "1", "--runs", "0"], "--runs must be at least 1, got 0"),
        (["validate", "synthetic:heldout", "--limit", "1", "--sandbox", "dcker"], "unknown sandbox 'dcker'"),
        (["tasks", "list", "nowhere.jsonl"], "can't read the task file"),
        (["episodes", "nothing"], "there is no run 'nothing'"),
        (["eval", "nothing"], "there is no run 'nothing'"),
        (["compare", "nothing", "other"], "there is no run 'nothing'"),
        (["compare", "nothing@-1", "other"], "there is no run 'nothing'"),
        (["compare", "a.json", "b.json"], "can't read a.json: No such file or directory"),
        (["evaluate", "nothing"], "there is no run 'nothing'"),
        (["eval", "http://h/v1"], "which model of http://h/v1? Give --model NAME"),
        (["eval", "http://h/v1?a=b", "--model", "m"], "give its base, as in https://HOST/v1"),
        (["eval", "http://u:p@h/v1", "--model", "m"], "must hold no user and no password"),
        (["eval", "http://h/v1/chat/completions", "--model", "m"], "give the base of the API, http://h/v1"),
        (["eval", "http://h/v1", "--model", "m", "--key-variable", "NO_SUCH_KEY"], "has no such variable"),
        (["eval", "http://h/v1", "--model", "m", "--key-variable", "HOME"], "a name that says what it holds"),
        (["eval", "http://h/v1", "--model", "m", "--price", "in=1"], "--price in=1: out= is missing"),
        (["eval", "http://h/v1", "--model", "m", "--budget", "dollars=1"], "needs --price"),
        (["eval", "http://h/v1", "--model", "m", "--budget", "tokens=x"], "such as 0.3, 500k or 2M"),
        (["eval", "http://h/v1", "--model", "m", "--resume"], "--resume needs --output"),
        (["eval", "nothing", "--key-variable", "K"], "--key-variable is of an endpoint, and nothing is none"),
        (
            ["eval", "path/to/model"],
            "path/to/model does not exist; there is nothing in path/to. Give a run's name or folder",
        ),
        (["eval", "/tmp"], "holds no model (config.json), no checkpoint of one (hf/config.json) and no run"),
    ],
)
def test_a_mistake_is_one_paragraph_and_code_2(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("slime-swe: ") and captured.err.count("\n") == 1
    assert said in captured.err
    assert not list(tmp_path.iterdir()), "a mistake leaves nothing behind"


GIVEN = [
    ["validate", "given.jsonl"],
    ["validate", "given.json"],
    ["validate", "given.parquet"],
    ["validate", "synthetic:heldout", "--limit", "1", "--record", "given.jsonl"],
    ["tasks", "list", "synthetic:heldout?ids=given.jsonl"],
    ["train", "recipe=given.yaml"],
    ["agent", "check", "aider", "--script", "given.json"],
]


@pytest.mark.parametrize("words", GIVEN, ids=" ".join)
def test_a_file_that_never_ends_is_refused(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = next(word for word in words if "given." in word).partition("=")[2] or words[-1]
    for target in ("/dev/zero", "/dev/full"):
        Path(name).symlink_to(target)
        assert f"{name}: it is a device, a pipe or a socket" in refused(words, capsys)
        Path(name).unlink()
    os.mkfifo(name)
    assert f"{name}: it is a device, a pipe or a socket" in refused(words, capsys)
    Path(name).unlink()
    Path(name).mkdir()
    assert f"{name}: Is a directory" in refused(words, capsys)


@pytest.mark.parametrize("content", [b"notes", b"notes\n", b'{"a": 1}\n', b"\xff\n"])
def test_a_record_that_is_another_file_is_left_alone(content, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("notes").write_bytes(content)
    words = ["validate", "synthetic:heldout", "--limit", "1", "--record", "notes"]
    assert "notes is no record of a validation" in refused(words, capsys)
    assert Path("notes").read_bytes() == content


@pytest.mark.parametrize(
    "words",
    [
        ["validate", "synthetic:heldout", "--limit", "1", "--runs", "1", "--json", "--write"],
        ["train", "recipe=qwen25_coder_7b", "--dry-run", "--script"],
    ],
)
def test_a_file_that_can_not_be_written_is_named(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run([*words, "/proc/none/file.jsonl"]) == 2
    assert "can't write /proc/none/file.jsonl: No such file" in capsys.readouterr().err


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(words: list[str], capsys) -> str:
    assert run(words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("resume", [[], ["--dry-run"]])
def test_what_stands_where_the_run_folder_should_be_is_named(resume, folder, capsys):
    (folder / "dangling").symlink_to("nowhere")
    (folder / "one").symlink_to("other")
    (folder / "other").symlink_to("one")
    (folder / "file").touch()
    words = ["train", "run.name=a", *(["recipe=qwen25_coder_7b", *resume] if resume else [])]
    said = refused([*words, "run.dir=dangling"], capsys)
    assert "dangling is a symbolic link to nowhere, which does not exist. Make that folder, remove the link" in said
    assert "one: a symbolic link that leads to itself" in refused([*words, "run.dir=one"], capsys)
    assert "file is a file; give another run.dir" in refused([*words, "run.dir=file"], capsys)
    assert "File name too long" in refused([*words, f"run.dir={'x' * 300}"], capsys)


def test_a_dangling_link_in_the_place_of_a_run_is_no_run(folder, capsys):
    (folder / "runs").mkdir()
    (folder / "runs" / "a").symlink_to("nowhere")
    assert "runs/a is a symbolic link to nowhere" in refused(["train", "run.name=a"], capsys)
    assert "there is no run 'a'" in refused(["train", "run.name=a", "--resume"], capsys)


def test_a_folder_that_holds_something_else_is_no_run(folder, capsys):
    (folder / "runs" / "a").mkdir(parents=True)
    (folder / "runs" / "a" / "thesis.txt").touch()
    assert "runs/a holds no run, and thesis.txt is in it" in refused(["train", "run.name=a"], capsys)


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "'a b'"])
def test_a_run_name_is_a_folder_name(name, folder, capsys):
    assert "it must be a folder name" in refused(["train", f"run.name={name}"], capsys)


@pytest.mark.parametrize("seed", ["-1", "1e99", "99999999999999999999999", "x", "null"])
def test_a_seed_is_a_whole_number_that_every_library_takes(seed, folder, capsys):
    assert f"run.seed={seed.replace('e9', 'e+9')} is not allowed" in refused(["train", f"run.seed={seed}"], capsys)


def test_a_dry_run_of_a_run_to_resume_changes_nothing(folder, capsys):
    run_folder = create_run(resolve("qwen25_coder_7b", ["run.name=a"]))
    before = (run_folder / "recipe.yaml").read_bytes()
    assert run(["train", "run.name=a", "--resume", "--dry-run", "run.num_rollouts=99999"]) == 0
    capsys.readouterr()
    assert (run_folder / "recipe.yaml").read_bytes() == before
    assert [path.name for path in run_folder.iterdir()] == ["recipe.yaml"]


def test_recipes_are_listed_and_shown(capsys):
    assert run(["recipes", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"name", "hardware", "description"} == set(listed[0])
    assert run(["recipes", "recipe=tiny_cpu", "run.seed=5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["seed"] == 5
    assert run(["recipes", "run.seed=5"]) == 0
    assert "seed: 5" in capsys.readouterr().out


def test_task_sources_are_listed(capsys):
    assert run(["tasks", "list", "--json"]) == 0
    assert "synthetic" in json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def two_tasks(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(make_task(name).to_dict()) for name in ("one", "two")))
    return str(path)


def test_the_tasks_of_a_set_are_listed(two_tasks, capsys):
    assert run(["tasks", "list", two_tasks, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(task["id"], task["fail_to_pass"], task["pass_to_pass"]) for task in listed] == [
        ("one", 1, 1),
        ("two", 1, 1),
    ]
    assert "calc.py" in listed[0]["files"]
    assert run(["tasks", "list", two_tasks, "--limit", "1"]) == 0
    assert capsys.readouterr().out == "one  3 files  add() gives wrong sums. Fix calc.py.\n"


def test_a_task_is_shown(two_tasks, capsys):
    assert run(["tasks", "show", two_tasks, "two", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == make_task("two").to_dict()
    assert run(["tasks", "show", two_tasks, "two"]) == 0
    shown = capsys.readouterr().out
    assert (
        shown.startswith("## two (tests, train)\nadd() gives wrong sums.") and "## gold patch\n--- a/calc.py" in shown
    )
    assert run(["tasks", "show", two_tasks, "tow"]) == 2
    assert "Did you mean 'two'" in capsys.readouterr().err


def test_the_weights_that_an_evaluation_takes(tmp_path, monkeypatch):
    """The newest whole of a run under SLiME; a checkpoint of a run, with its recipe; a model, with the default one."""
    monkeypatch.chdir(tmp_path)
    run_folder = create_run(resolve("tiny_cpu", ["run.name=a", "rollout.max_turns=3"]))
    for name in ("exports/9", "exports/10", "exports/11", "exports/half"):
        (run_folder / name).mkdir(parents=True)
        if "half" not in name:  # what SLiME writes first, and last
            shutil.copy(checkpoint_folder(EMBEDDED_SEED) / "config.json", run_folder / name)
        if "11" not in name:
            (run_folder / name / INDEX).touch()
    assert newest_weights(run_folder) == run_folder / "exports" / "10"
    (run_folder / "exports/11/model-00001.safetensors").touch()  # a shard before it gets its last name
    assert newest_weights(run_folder) == run_folder / "exports" / "10"
    (run_folder / "exports/11/model.safetensors").touch()
    assert newest_weights(run_folder) == run_folder / "exports" / "11", "a model in one file, which has no index"
    shutil.copytree(run_folder / "exports" / "10", run_folder / "checkpoints/rollout_3/hf")
    recipe = recipe_for("runs/a/checkpoints/rollout_3", ["run.seed=5"])
    assert (recipe.model.checkpoint, recipe.rollout.max_turns, recipe.run.seed) == (
        "runs/a/checkpoints/rollout_3/hf", 3, 5,
    )  # fmt: skip
    assert recipe_for("runs/a/exports/9", []).rollout.max_turns == 3
    shutil.copytree(run_folder / "exports" / "9", tmp_path / "model")
    assert recipe_for("model", []).rollout.max_turns != 3
    for_gpus = recipe_for(
        "model",
        ["recipe=qwen25_coder_7b", "rollout.max_context=2048", "rollout.max_response=512", "model.tool_format=hermes"],
    )
    assert for_gpus.serving.concurrency == 64, "what GPUs hold says nothing of the embedded server"


@pytest.mark.parametrize("target", ["runs/a", "runs/a/checkpoints", "runs/a/checkpoints/iter_0000004", "converted"])
def test_a_checkpoint_in_megatron_s_format_is_refused_with_the_command_that_converts_it(
    target, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    run_folder = create_run(resolve("tiny_cpu", ["run.name=a"]))
    newest = run_folder / "checkpoints/iter_0000004"
    for checkpoint in (newest, run_folder / "checkpoints/iter_0000003", tmp_path / "converted/release"):
        checkpoint.mkdir(parents=True)
        (checkpoint / METADATA).touch()
        (checkpoint.parent / TRACKER).write_text("release" if checkpoint.name == "release" else "4")
    said = refused(["eval", target], capsys)
    if target == "converted":
        assert "converted/release is a checkpoint in Megatron's format" in said and "--origin-hf-dir MODEL" in said
        return
    assert f"take one of {run_folder.resolve() / 'exports'}" in said
    words = ["--input-dir", str(newest.resolve()), "--output-dir", f"{newest.resolve()}_hf", "--origin-hf-dir"]
    seed = checkpoint_folder(EMBEDDED_SEED)
    assert shlex.split(said)[-8:] == [*words, str(seed), "--vocab-size", str(resolve("tiny_cpu", []).model.shape.vocab)]
