"""The gap between trainer and engines in every rollout of an asynchronous run, and the alarm where the engines keep
old weights: SLiME's `train_async.py`, Megatron, our rollout function."""

from __future__ import annotations

import orjson
import pytest

from slime_swe.launch.slime.paths import LOG
from tests.contract.test_training import Run, train
from tests.contract.wire import Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROLLOUTS = 3
WORDS = ["rollout.batch_size=2", "rollout.samples_per_task=4", f"run.num_rollouts={ROLLOUTS}", "optimizer.lr=0.001"]
WARNED = "log-probabilities of trainer and engines differ"


class OldWeights(Wire):
    """Has the server load the first weights again, under the name of the new ones, at each update."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ""

    def passed_on(self, path: str, body: bytes) -> bytes:
        if path != "/update_weights_from_disk":
            return body
        asked = orjson.loads(body)
        self.first = self.first or asked["model_path"]
        return orjson.dumps({**asked, "model_path": self.first})


def gaps(run: Run) -> list[float | None]:
    return [record.get("logprob_diff_mean") for record in run.metrics]


def log(run: Run) -> str:
    return (run.folder / LOG).read_text()


def test_each_rollout_but_the_last_has_its_gap(slime_home, tmp_path):
    """That of the first is SLiME's own, as in a synchronous run; older weights sampled the others."""
    run = train(tmp_path, *WORDS, "rollout.schedule=continuous")
    assert [record["rollout/staleness_max"] for record in run.metrics][:2] == [0, 1]
    *known, last = gaps(run)
    assert last is None and max(known) < 1e-5
    assert WARNED not in log(run)


def test_engines_that_keep_old_weights_are_warned_of_once(slime_home, tmp_path):
    run = train(tmp_path, *WORDS, "rollout.schedule=continuous", wire=OldWeights())
    first, second, _ = gaps(run)
    assert first < 1e-5 and second > 1e-3
    assert log(run).count(WARNED) == 1
