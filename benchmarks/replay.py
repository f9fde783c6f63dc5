"""What `slime-swe replay` takes of a long record: the processor's seconds,
so that a busy machine measures the same, and memory at its peak.

The record is of random episodes, written as the logging hook writes them. `memory_ratio` is the peak with all rollouts
over that with a tenth of them: 1 where one rollout is in memory at a time. `changed_seconds` is with other settings, of
which both sides are computed.

    python -m benchmarks.replay [--rollouts N] [--groups N] [--tokens N] [--json] [--check] [--save]
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.command import Figures, run
from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.rollout.journals import append_records
from slime_swe.rollout.records import EPISODES, Score, write_score
from slime_swe.sample import Sample

GROUP = 8  # episodes
CHANGES = "algorithm.std_normalization=true", "algorithm.reduction=token"


async def measure(rollouts: int, groups: int, tokens: int) -> Figures:
    """groups: of a rollout. tokens: of an episode, at most."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        short, whole = (_record(folder / str(n), n, groups, tokens) for n in (max(1, rollouts // 10), rollouts))
        _, least = _replayed(short)
        seconds, most = _replayed(whole)
        changed, _ = _replayed(whole, *CHANGES)
        return {
            "episodes": rollouts * groups * GROUP,
            "megabytes": (whole / EPISODES).stat().st_size / 1e6,
            "seconds": seconds,
            "changed_seconds": changed,
            "peak_mb": most,
            "memory_ratio": most / least,
        }


def _record(folder: Path, rollouts: int, groups: int, tokens: int) -> Path:
    settings = f"run.dir={folder}", "run.name=made", f"rollout.batch_size={groups}", f"rollout.samples_per_task={GROUP}"
    made = create_run(resolve("tiny_cpu", settings))
    drawn = random.Random(0)
    for rollout in range(rollouts):
        first = rollout * groups * GROUP
        samples = [_sample(drawn, first + place, tokens) for place in range(groups * GROUP)]
        append_records(made / EPISODES, samples, rollout_id=rollout, attempt=1)
    return made


def _sample(drawn: random.Random, index: int, most: int) -> Sample:
    count = drawn.randrange(most // 2, most + 1)
    sample = Sample(index=index, group_index=index // GROUP, rollout_id=index, status=Sample.Status.COMPLETED)
    sample.tokens, sample.response_length = [drawn.randrange(1000) for _ in range(count + 1)], count
    sample.loss_mask = [int(place % 4 > 0) for place in range(count)]
    sample.rollout_log_probs = [-drawn.random() for _ in range(count)]
    timings = {"total": 10 * drawn.random(), "engine": 5.0}
    sample.metadata = {"episode": {"patch": "", "stop_reason": "submitted", "turns": 4, "timings": timings}}
    solved = drawn.random() < 0.5
    write_score([sample], Score(solved, 1.0 if solved else -1.0))
    return sample


def _replayed(folder: Path, *words: str) -> tuple[float, float]:
    """Seconds of the processor, and megabytes of memory at the peak."""
    command = [sys.executable, "-m", "slime_swe.launch.cli", "replay", str(folder), *words, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(run(__doc__, "replay", measure, limits={"memory_ratio": 1.25}, rollouts=100, groups=125, tokens=200))
