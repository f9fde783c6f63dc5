"""`kill -9` within the supervised stage, between it and the rollouts, and between two of these: the resumed run is the
one that was never stopped, to the last bit of its weights.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from slime_swe.embedded.checkpoint import Checkpoint, latest
from slime_swe.launch.warm_start import FOLDER
from tests.e2e.conftest import command, environment, lines_of, timeless
from tests.launch.warm_start.recorded import line, write

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EPISODES, BATCH, EPOCHS = 16, 2, 2
STEPS = EPISODES * EPOCHS // BATCH
PATIENCE = 600.0  # seconds for what takes a few on an idle machine


def trained(folder: Path) -> int:
    """Steps or rollouts that the folder's metrics have."""
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b'"kind":"train"') if path.exists() else 0


def stage_has_ended(run: Path) -> bool:
    path = run / FOLDER / "status.json"
    return path.exists() and orjson.loads(path.read_bytes()).get("exit_code") == 0


PLACES: dict[str, tuple[Callable[[Path], bool], Callable[[Path], bool]]] = {  # when to kill, and what then holds
    "within the stage": (lambda run: trained(run / FOLDER) >= 2, lambda run: trained(run / FOLDER) < STEPS),
    "between it and the rollouts": (stage_has_ended, lambda run: not latest(run / "checkpoints")),
    "between two rollouts": (lambda run: trained(run) == 1, lambda run: trained(run) == 1),
}


@pytest.fixture(scope="module")
def words(small: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Of a run that begins with recorded episodes of tokens that mean nothing, at a rate that moves the weights."""
    drawn = random.Random(0)
    lines = (
        line(str(name), tokens=[drawn.randrange(1000) for _ in range(40)], loss_mask=[1] * 30)
        for name in range(EPISODES)
    )
    data = write(tmp_path_factory.mktemp("recorded") / "solved.jsonl", *lines)
    values = {"data": data, "batch_size": BATCH, "epochs": EPOCHS, "lr": 1e-3}
    return [*small, *(f"warm_start.{key}={value}" for key, value in values.items())]


def start(folder: Path, words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("train", *words, "run.name=a"), cwd=folder, env=environment(), text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> int:
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, -signal.SIGKILL), said
    return process.returncode


@pytest.fixture(scope="module")
def whole(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    assert end(start(folder, words)) == 0
    run = folder / "runs" / "a"
    assert trained(run / FOLDER) == STEPS
    return run


def weights(run: Path) -> bytes:
    found = latest(run / "checkpoints", Checkpoint.require_loadable)
    assert found is not None
    return (found.model_dir / "model.safetensors").read_bytes()


@pytest.mark.extended("tests/e2e/test_watch.py::test_a_run_is_watched_killed_resumed_and_watched_to_its_end")
@pytest.mark.parametrize("place", PLACES)
def test_a_resumed_run_equals_the_one_that_was_never_stopped(place, words, whole, tmp_path):
    run, (reached, holds) = tmp_path / "runs" / "a", PLACES[place]
    process = start(tmp_path, words)
    try:
        while not reached(run):  # a place may be a short one
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.005)
    finally:
        process.kill()
    assert end(process) == -signal.SIGKILL
    assert holds(run)
    assert end(start(tmp_path, ["--resume", "--ignore-integrity"])) == 0
    for each, other in ((run / FOLDER, whole / FOLDER), (run, whole)):
        assert timeless(each / "metrics.jsonl") == timeless(other / "metrics.jsonl")
        assert weights(each) == weights(other)
    assert weights(run / FOLDER) != weights(run)
    tokens = [[one["tokens"] for one in lines_of(folder / "episodes.jsonl")] for folder in (run, whole)]
    assert tokens[0] == tokens[1] != []
