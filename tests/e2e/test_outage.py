"""Sandboxes that refuse for seconds, with the real command, server and engine: a pause, of which nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.e2e.conftest import lines_of

pytestmark = [
    pytest.mark.extended("tests/rollout/test_outages.py::test_an_outage_loses_nothing_and_is_no_task_s_fault"),
    *(pytest.mark.slow, pytest.mark.timeout(900)),
]

REFUSING = """
import time

from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.local import LocalBackend

opened, since = 0, 0.0


class Backend(LocalBackend):
    def open(self, spec):
        global opened, since
        opened += 1
        since = time.monotonic() if opened == {after} else since
        if opened >= {after} and time.monotonic() - since < {seconds}:
            raise SandboxError("refused")
        return super().open(spec)
"""
EPISODES = 128


@pytest.mark.parametrize(("after", "seconds"), [(40, 5.0), (EPISODES, 1.5)])
def test_a_run_goes_on_and_blames_nobody(cli, tmp_path, after, seconds):
    (tmp_path / "refusing.py").write_text(REFUSING.format(after=after, seconds=seconds))
    result = cli(
        "train", "--ignore-integrity", "recipe=tiny_cpu", "run.name=a", "run.num_rollouts=1", "data.eval={}",
        "rollout.sandbox=refusing.Backend", f"serving.concurrency={EPISODES}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    episodes = lines_of(tmp_path / "runs/a/episodes.jsonl")
    assert len({episode["index"] for episode in episodes}) == len(episodes) == EPISODES
    assert [episode["infrastructure"] for episode in episodes] == [None] * EPISODES
    causes = sum((Counter(episode["episode"]["counters"]["broken_attempts"]) for episode in episodes), Counter())
    assert causes.keys() <= {"sandbox_error", "grader_error"} and causes.total() >= 8, causes
    said = result.stderr
    assert (
        said.count("that begins, so that few begin until one lasts") == said.count("infrastructure is there again") > 0
    )
