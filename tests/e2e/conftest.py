"""The real command line in an empty folder, as a process of its own or in this one, and task files small enough for a
test."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.launch.cli import run as run_command

ROOT = Path(__file__).parents[2]
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def task_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `train.jsonl`, `heldout.jsonl` and `unseen.jsonl`: the first tasks of each embedded set."""
    folder = tmp_path_factory.mktemp("tasks")
    for split, count in (("train", 4), ("heldout", 2), ("unseen", 2)):
        lines = [orjson.dumps(task.to_dict()) for task in load_tasks(f"synthetic:{split}")[:count]]
        (folder / f"{split}.jsonl").write_bytes(b"\n".join(lines))
    return folder


@pytest.fixture(scope="session")
def small(task_files: Path) -> list[str]:
    """Words that make `tiny_cpu` a run of two steps of four episodes, without the gate before it."""
    return [
        "--ignore-integrity", "recipe=tiny_cpu",
        "run.num_rollouts=2", "rollout.batch_size=2", "rollout.samples_per_task=2",
        f"data.train=[{task_files}/train.jsonl]", f"data.eval.heldout={task_files}/heldout.jsonl",
        f"data.eval.unseen={task_files}/unseen.jsonl",
    ]  # fmt: skip


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "slime_swe.launch.cli", *words]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "120"}


def lines_of(path: Path) -> list[dict]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def timeless(path: Path) -> list[dict]:
    """The records without what differs between a run that was never stopped and one that was resumed."""
    return [
        {key: value for key, value in line.items() if key not in ("seconds", "serving", "attempt")}
        for line in lines_of(path)
    ]


def cli_in(folder: Path) -> Cli:
    """Runs `slime-swe` with these words in the folder."""

    def run(*words: str, **options) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*words), cwd=folder, env=environment(), capture_output=True, text=True, timeout=600, **options
        )

    return run


def here_in(folder: Path) -> Cli:
    """`cli_in` without a process: for what is not about one, since each takes seconds to import what it needs."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(folder)
            patch.setenv("COLUMNS", "120")
            code = run_command(words)
        said, complained = (stream.buffer.getvalue().decode() for stream in (out, err))
        return subprocess.CompletedProcess(words, code, said, complained)

    return run


@pytest.fixture
def here(tmp_path: Path) -> Cli:
    """Run `slime-swe` with these words in `tmp_path`, in this process."""
    return here_in(tmp_path)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run `slime-swe` with these words in `tmp_path`."""
    return cli_in(tmp_path)


@dataclass(frozen=True)
class Run:
    folder: Path
    result: subprocess.CompletedProcess[str]
    cli: Cli  # in the folder that holds the run's `runs`
    here: Cli


@pytest.fixture(scope="session")
def whole_run(small: list[str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The small run, from its start to its summary."""
    folder = tmp_path_factory.mktemp("whole")
    cli = cli_in(folder)
    result = cli("train", *small, "run.name=a", "--json")
    assert result.returncode == 0, result.stderr
    return Run(folder / "runs" / "a", result, cli, here_in(folder))


@pytest.fixture
def start_cli(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `slime-swe` in a process group of its own, as a terminal does; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command(*words), cwd=tmp_path, env=environment(), text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
