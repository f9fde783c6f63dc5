"""`trained.jsonl` gives each record its own line and costs little where it has no log-probabilities."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.rollout.journals import TRAINED, TrainedSample, TrainedSamples, append_trained
from slime_swe.rollout.records import Record

LONG = 16_384  # tokens


def record(index: int, rollout_id: int | None = 0, sampled: int = 2, **changes) -> Record:
    mask = [1] * sampled + [0]
    return Record(index, 0, index, "t", "completed", 1.0, tokens=[1] * (sampled + 2), response_length=sampled + 1,
                  loss_mask=mask, rollout_id=rollout_id, **changes)  # fmt: skip


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / TRAINED


def test_a_record_finds_the_line_of_its_rollout_index_and_attempt(path):
    lines = [TrainedSample(rollout, index, rollout + index / 8, [-0.1, -1 / 3], step=1, attempt=attempt)
             for rollout, attempt in ((0, 1), (1, 1), (1, 2)) for index in (0, -5)]  # fmt: skip
    append_trained(path, lines[:2])
    append_trained(path, lines[2:])
    samples = TrainedSamples(path)
    assert samples.of(record(-5, 1, attempt=2)) == lines[5]
    assert [samples.of(record(line.index, line.rollout_id, attempt=line.attempt)) for line in lines] == lines
    for other in (record(1, 0, attempt=1), record(0, 2, attempt=1), record(0, 0), record(0, None, attempt=1)):
        assert samples.of(other) is None
    assert samples.of(record(0, 0, attempt=1, dataset="heldout")) is None, "evaluations train nothing"
    assert TrainedSamples(path.with_name("other.jsonl")).of(record(0)) is None, "runs of earlier versions"


def test_a_line_that_does_not_fit_its_record_is_refused(path):
    append_trained(path, [TrainedSample(0, 0, 0.5, [-1.0]), TrainedSample(0, 1, [0.5, 0.25, 1.0])])
    samples = TrainedSamples(path)
    with pytest.raises(UserError, match=r"trained.jsonl, byte 0: .* 1 values of log_probs and 2 sampled tokens"):
        samples.of(record(0))
    with pytest.raises(UserError, match=r"3 values of advantage and 2 sampled tokens"):
        samples.of(record(1))
    assert samples.of(record(1, sampled=3)) == TrainedSample(0, 1, [0.5, 0.25, 1.0])


def test_a_damaged_line_is_named(path):
    append_trained(path, [TrainedSample(0, 0, 0.5)])
    path.write_bytes(path.read_bytes() + b'{"rollout_id": "x"}\n')
    with pytest.raises(UserError, match=r"trained.jsonl, line 2 is no TrainedSample .*: restore the file, or remove"):
        TrainedSamples(path)


def test_one_advantage_stands_for_all_tokens_of_a_long_sample(path):
    """What docs/plugins.md says of the size."""
    append_trained(path, [TrainedSample(199, 12_345, -1 / 3, step=0, attempt=1)])
    assert path.stat().st_size < 100
    append_trained(path, [TrainedSample(199, 12_346, -1 / 3, [-(1 + at % 89) / 97 for at in range(LONG)], 0, 1)])
    assert 19 * LONG < path.stat().st_size < 21.5 * LONG
    assert TrainedSamples(path).of(record(12_346, 199, LONG, attempt=1)).log_probs[5] == -6 / 97, "to the last bit"


FULL = """
import resource, sys
from pathlib import Path
from slime_swe.files import FileError
from slime_swe.rollout.journals import TrainedSample, append_trained
path = Path(sys.argv[1])
append_trained(path, [TrainedSample(0, 0, 0.5)])
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    append_trained(path, [TrainedSample(1, index, 0.5) for index in range(100)])
except FileError as error:
    print(error)
"""


def test_a_full_disk_is_said_and_leaves_no_half_line(path):
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    assert f"can't write {path}: File too large" in done.stdout and "make room there and resume" in done.stdout
    assert path.read_bytes().count(b"\n") == 1
    assert TrainedSamples(path).of(record(0)) == TrainedSample(0, 0, 0.5)
