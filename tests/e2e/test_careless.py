"""What a user may do wrong: each ends in one clear message, no traceback, and nothing half-made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from slime_swe.attempts import require_ended
from slime_swe.launch.cli import run
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from tests.data_sources.tasks import make_task
from tests.e2e.conftest import command, environment, lines_of, timeless


def refused(result, code: int, *said: str) -> None:
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    for text in said:
        assert text in result.stderr


def test_an_unknown_recipe_key_or_value(cli, here, tmp_path):
    refused(cli("train", "recipe=tiny_gpu"), 2, "did you mean tiny_cpu", "Available: tiny_cpu")
    refused(here("train", "rollout.max_tuns=3"), 2, "did you mean rollout.max_turns")
    refused(here("train", "optimizer.lr=fast"), 2, "optimizer.lr=fast", "a number")
    refused(here("train", "algorithm.steps_per_rollout=3"), 2, "does not divide")
    assert not list(tmp_path.iterdir())


def test_an_unreadable_recipe_file(here, tmp_path):
    (tmp_path / "recipe.yaml").write_text("rollout: [")
    refused(here("train", "recipe=recipe.yaml"), 2, "recipe recipe.yaml is not YAML")
    refused(here("train", "recipe=./"), 2, "can't read recipe")


def test_a_run_folder_that_can_not_be_made(here, small):
    refused(here("train", *small, "run.dir=/proc/nowhere", "run.name=a"), 2, "/proc/nowhere/a", "give another run.dir")


def test_a_checkpoint_that_is_none(here, small, tmp_path):
    refused(here("train", *small, "model.checkpoint=."), 2, "holds no config.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rollout.sandbox=lokal", "did you mean 'local'"),
        ("rollout.agent=nativ", "Did you mean 'native'"),
        ("agent=aider", "which local sandboxes can't hold: set rollout.sandbox to one of overlay, docker"),
        ("rollout.agent=no.such.agent", "there is no module 'no'"),
        ("data.train=[syntetic:train]", "Did you mean 'synthetic'"),
        ("data.eval.heldout=nowhere.jsonl", "nowhere.jsonl: No such file"),
        ("algorithm.clip_low=2", "at most 1"),
        ("reward.function=slime_swe.rewards.slime_plugin.rewrd", "has no 'rewrd'"),
    ],
)
def test_what_no_run_can_use_leaves_nothing_behind(override, said, task_files, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sets = [
        f"data.train=[{task_files}/train.jsonl]",
        "~data.eval.unseen",
        f"data.eval.heldout={task_files}/heldout.jsonl",
    ]
    assert run(["train", "run.name=a", *sets, override]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert said in printed.err
    assert not list(tmp_path.iterdir())


def test_a_malformed_task_file_is_named_with_its_line(here, task_files, tmp_path):
    good = (task_files / "train.jsonl").read_text().splitlines()[0]
    (tmp_path / "tasks.jsonl").write_text(f'{good}\n{{"id": "broken"}}\n')
    refused(here("validate", "tasks.jsonl"), 2, "tasks.jsonl, line 2", "'broken'")


def test_a_closed_pipe_is_no_error(start_cli):
    process = start_cli("recipes", "recipe=tiny_cpu")
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("recipes >&-", 0, ""), ("recipes 2>&-", 0, ""), ("recipes <&-", 0, ""),
        ("recipes >/dev/full", 1, "slime-swe: can't write the output: No space"),
        ("plan recipe=no_such 2>/dev/full", 2, ""), ("no_such_command 2>/dev/full", 2, ""),
    ],
)  # fmt: skip
def test_a_closed_or_full_standard_stream(words, code, said, tmp_path):
    shell = f"{sys.executable} -m slime_swe.launch.cli {words}"
    done = subprocess.run(shell, shell=True, env=environment(), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr[: len(said)]) == (code, said)
    assert "Traceback" not in done.stderr


INTERRUPTED = """\
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *where):
        if name == "slime_swe.launch.commands.recipes":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""


def test_ctrl_c_within_the_imports_is_no_traceback(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED)
    known = environment()
    path = os.pathsep.join((str(tmp_path), known["PYTHONPATH"]))
    done = subprocess.run(
        command("recipes"),
        env=known | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr


def test_a_machine_without_bubblewrap_is_said_what_is_unprotected(cli, tmp_path, monkeypatch):
    (tmp_path / "tasks.jsonl").write_bytes(orjson.dumps(make_task().to_dict()))
    monkeypatch.setenv("PATH", str(tmp_path))
    result = cli("validate", "tasks.jsonl")
    assert result.stderr.count("no bubblewrap sandbox here, so") == 1
    assert "Traceback" not in result.stderr


@contextmanager
def mounted(disk: Path, size: str) -> Iterator[None]:
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"can't mount a small file system here: {mount.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", disk], check=True)


@pytest.mark.extended(
    "tests/embedded/test_loop.py::test_a_journal_that_can_not_be_written_ends_the_run_and_loses_nothing"
)
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_full_disk_is_named_with_what_to_do_and_no_training_is_lost(cli, small, whole_run, tmp_path):
    """The run fails at a checkpoint, goes on when there is room, and is then as if the disk had never been full."""
    disk = tmp_path / "disk"
    with mounted(disk, "12m"):
        refused(
            cli("train", *small, f"run.dir={disk}", "run.name=a"), 2, f"can't write {disk}", "No space left", "resume"
        )
        assert not (disk / "a" / "summary.json").exists()
        remount(disk, "size=100m")
        resumed = cli("train", f"run.dir={disk}", "run.name=a", "--resume", "--ignore-integrity", "--json")
        assert resumed.returncode == 0, resumed.stderr
        assert timeless(disk / "a/metrics.jsonl") == timeless(whole_run.folder / "metrics.jsonl")
        remount(disk, "ro")
        read_only = f"run.dir={disk}"
        refused(cli("train", *small, read_only, "run.name=b"), 2, f"{disk}/b: Read-only file system", "another run.dir")
        refused(cli("train", read_only, "run.name=a", "--resume", "--ignore-integrity"), 2, "Read-only file system")


def begun(start_cli, small: list[str], folder: Path) -> subprocess.Popen[str]:
    """A long run that has evaluated once, named a, in a folder that a shell must quote."""
    process = start_cli("train", *small, "run.name=a", f"run.dir={folder}", "run.num_rollouts=1000")
    for line in process.stderr:
        if line.startswith("evaluated"):
            break
    return process


def stops_as_by_ctrl_c(process: subprocess.Popen[str], number: signal.Signals, folder: Path) -> None:
    process.send_signal(number)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 128 + number, said
    assert f"To go on: slime-swe train run.name=a 'run.dir={folder}' --resume\n" in said
    assert f"interrupted by {number.name}" in said and "Traceback" not in said
    require_ended(folder / "a/attempts.jsonl")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_is_written_by_one_process_until_sigterm_stops_it(here, start_cli, small, tmp_path):
    folder = tmp_path / "my runs"
    process = begun(start_cli, small, folder)
    held = f"{folder}/a is written by process {process.pid}"
    refused(here("train", *small, "run.name=a", f"run.dir={folder}"), 2, held, "wait until it ends")
    refused(here("train", "run.name=a", f"run.dir={folder}", "--resume"), 2, held)
    refused(here("eval", str(checkpoint_folder(EMBEDDED_SEED)), "--output", str(folder / "a")), 2, held)
    stops_as_by_ctrl_c(process, signal.SIGTERM, folder)
    assert [line["attempt"] for line in lines_of(folder / "a/attempts.jsonl")] == [1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_saves_and_stops_on_sigusr1_and_before_its_time_is_up(here, start_cli, small, tmp_path):
    """Asked twice: by a signal within a step, and by a time that has come. No step that ended is made again."""
    process = begun(start_cli, small, tmp_path)
    process.send_signal(signal.SIGUSR1)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 75, said
    assert "To go on: slime-swe train run.name=a " in said and "slime-swe: stopped after rollout " in said
    assert "Traceback" not in said and "interrupted" not in said
    done = steps(tmp_path / "a")
    assert done == [*range(len(done))] != []
    words = "train", "run.name=a", f"run.dir={tmp_path}", "--ignore-integrity", "--resume"
    refused(here(*words, "--ends-at=1"), 75, f"stopped after rollout {len(done) + 1}")
    assert steps(tmp_path / "a") == [*done, len(done)]
    attempts = [line["attempt"] for line in lines_of(tmp_path / "a/metrics.jsonl") if line["kind"] == "train"]
    assert attempts == [1] * len(done) + [2]
    watched = here("watch", str(tmp_path / "a"))
    refused(watched, 75, "the run has stopped: stopped after rollout")


def test_a_run_whose_time_is_up_already_makes_one_step(here, small, tmp_path):
    words = "train", *small, "run.name=a", f"run.dir={tmp_path}", "~data.eval.unseen"
    refused(here(*words, "--ends-at=1"), 75, "stopped after rollout 1", "To go on: slime-swe train run.name=a")
    assert steps(tmp_path / "a") == [0]


def steps(run: Path) -> list[int]:
    return [line["rollout_id"] for line in lines_of(run / "metrics.jsonl") if line["kind"] == "train"]


@pytest.mark.extended("tests/e2e/test_careless.py::test_a_run_is_written_by_one_process_until_sigterm_stops_it")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("hung_up")
def test_sighup_stops_a_run(start_cli, small, tmp_path):
    stops_as_by_ctrl_c(begun(start_cli, small, tmp_path / "my runs"), signal.SIGHUP, tmp_path / "my runs")
