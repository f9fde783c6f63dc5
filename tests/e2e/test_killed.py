"""A run that is killed at random moments, and resumed by one or two processes at once: nothing lost, nothing twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from slime_swe.attempts import ATTEMPTS, last_attempt
from slime_swe.embedded.checkpoint import Checkpoint, latest
from tests.e2e.conftest import cli_in, command, environment, lines_of, timeless
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROLLOUTS = 3
PATIENCE = 300.0  # seconds for what takes a few on an idle machine


class Killed:
    """Starts a run, kills it at random moments, and resumes it, sometimes by two processes at once."""

    def __init__(self, folder: Path, words: list[str], seed: int) -> None:
        self.folder, self.words, self.random = folder, words, random.Random(seed)
        self.run = folder / "runs" / "a"
        self.kills = self.pairs = self.refused = 0

    def start(self) -> subprocess.Popen[str]:
        resume = ["--resume"] if (self.run / "recipe.yaml").exists() else []
        return subprocess.Popen(
            command("train", *self.words, "run.name=a", *resume), cwd=self.folder, env=environment(), text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def round(self, *, kill: bool) -> bool:
        """One start, or two at once; whether the run has come to its end."""
        before = last_attempt(self.run / ATTEMPTS)
        started = [self.start() for _ in range(self.random.choice((1, 2)))]
        self.pairs += len(started) == 2
        try:
            if kill:
                self.wait_for_attempt(before + 1, started)
                time.sleep(self.random.uniform(0, 2.5))
                for process in started:
                    process.kill()
            said = [process.communicate(timeout=PATIENCE)[1] for process in started]
        finally:
            for process in started:
                process.kill()
        codes = [process.returncode for process in started]
        self.kills += codes.count(-signal.SIGKILL)
        for code, text in zip(codes, said, strict=True):
            assert code in (0, 2, -signal.SIGKILL), text
            if code == 2:  # the other was there first
                assert "is written by process" in text or "exists already" in text, text
                self.refused += 1
        assert codes.count(0) <= 1, "two processes wrote one run to its end"
        return 0 in codes

    def wait_for_attempt(self, number: int, started: list[subprocess.Popen[str]]) -> None:
        def has_begun() -> bool:
            return last_attempt(self.run / ATTEMPTS) >= number or all(one.poll() is not None for one in started)

        wait_for(has_begun, "a process that begins to write the run", PATIENCE)


def play(folder: Path, words: list[str], kills: int, seed: int) -> Killed:
    run = Killed(folder, words, seed)
    while not run.round(kill=run.kills < kills):
        pass
    return run


def check(folder: Path, whole: Path) -> None:
    """The run holds what the one does that was never stopped: each once, and its checkpoints are whole."""
    assert timeless(folder / "metrics.jsonl") == timeless(whole / "metrics.jsonl")
    for journal in ("episodes.jsonl", "evaluations.jsonl"):
        played = [(r.get("dataset"), r["rollout_id"], r["index"]) for r in lines_of(folder / journal)]
        assert max(Counter(played).values()) == 1
        expected = [(r.get("dataset"), r["rollout_id"], r["index"]) for r in lines_of(whole / journal)]
        assert played == expected
    assert [r["tokens"] for r in lines_of(folder / "episodes.jsonl")] == [
        r["tokens"] for r in lines_of(whole / "episodes.jsonl")
    ]
    attempts = [record["attempt"] for record in lines_of(folder / ATTEMPTS)]
    assert attempts == list(range(1, len(attempts) + 1))
    for journal in ("metrics.jsonl", "episodes.jsonl", "evaluations.jsonl"):
        written = [record["attempt"] for record in lines_of(folder / journal)]
        assert written == sorted(written) and set(written) <= set(attempts)
    newest = latest(folder / "checkpoints", Checkpoint.require_loadable)
    assert newest.state.rollout_id == ROLLOUTS - 1


@pytest.fixture(scope="module")
def words(small: list[str]) -> list[str]:
    return [*small, f"run.num_rollouts={ROLLOUTS}", "data.eval_samples_per_task=1"]


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    done = cli_in(folder)("train", *words, "run.name=a")
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "a"


@pytest.mark.extended(
    "tests/e2e/test_watch.py::test_a_run_is_watched_killed_resumed_and_watched_to_its_end, "
    "tests/embedded/test_loop.py::test_resume_after_any_step_equals_the_uninterrupted_run"
)
@pytest.mark.parametrize("kills", [2, 100])
def test_kill_9_at_random_moments_loses_nothing_and_writes_nothing_twice(kills, words, whole, tmp_path, capsys):
    seed = int(os.environ.get("SLIME_SWE_KILL_SEED", "1"))
    done, runs = Counter[str](), 0
    while done["kills"] < kills:
        runs += 1
        folder = tmp_path / str(runs)
        folder.mkdir()
        played = play(folder, words, min(kills - done["kills"], 8), seed + runs)
        check(folder / "runs" / "a", whole)
        done.update(kills=played.kills, pairs=played.pairs, refused=played.refused)
    with capsys.disabled():
        print(f"\n{done['kills']} kills, {done['pairs']} of two starts at once, {done['refused']} refused, {runs} runs")
