"""Where does a second of the first command go? A run of `tiny_cpu` by phase, by process and by core.

    python -m benchmarks.first_run [--rollouts 3] [--seed 0] [--json] [--check] [--save]

- `PHASE_s`: seconds of the run's clock, as its summary has them. Sampling and sandboxes overlap in a rollout; the
  summary shares its time out by what the episodes waited for.
- `cpu_PROCESS_s`: processor seconds of the training process, of the embedded server, and of all else that the run
  starts: sandboxes, and the commands in them. By the last look at each, which is about half a second before its end.
- `core_N_percent`: how much of the wall time the core was in use, by the run or by others. Where all are near 100, a
  schedule that lets phases overlap gains nothing: only less work does.
- `cpu_ms_per_episode`: `cpu_s` over the episodes of rollouts and evaluations, training and start included.

`--check` compares with a fixed computation in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
import torch

from benchmarks.command import Figures, run
from slime_swe.errors import UserError

PROCESSES = {"training": "slime_swe.launch.cli", "server": "slime_swe.embedded.server"}  # name -> its module
JOURNALS = ("episodes.jsonl", "evaluations.jsonl")
LOOK_SECONDS = 0.5
ROUNDS = 40  # of the fixed computation


async def measure(rollouts: int, seed: int) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        words = ("recipe=tiny_cpu", f"run.num_rollouts={rollouts}", f"run.seed={seed}", f"run.dir={folder}")
        command = [sys.executable, "-m", "slime_swe.launch.cli", "train", *words, "run.name=r", "--ignore-integrity"]
        idle, started = _idle(), time.perf_counter()
        process = psutil.Popen(command, stdout=sys.stderr)
        seen: Counter[str] = Counter()
        while process.poll() is None:
            seen |= _seconds(process)
            await asyncio.sleep(LOOK_SECONDS)
        wall = time.perf_counter() - started
        in_use = [1 - (late - early) / wall for early, late in zip(idle, _idle(), strict=True)]
        if process.returncode:
            raise UserError(f"the run ended with {process.returncode}")
        files = Path(folder, "r")
        phases = json.loads((files / "summary.json").read_text())["seconds_by_phase"]
        episodes = sum(len((files / journal).read_bytes().splitlines()) for journal in JOURNALS)
    return {
        "wall_s": wall,
        **{f"{phase}_s": seconds for phase, seconds in sorted(phases.items())},
        "cpu_s": seen.total(),
        **{f"cpu_{name}_s": seconds for name, seconds in seen.items()},
        **{f"core_{number}_percent": 100 * share for number, share in enumerate(in_use)},
        "episodes": episodes,
        "cpu_ms_per_episode": 1e3 * seen.total() / episodes,
        "yardstick_s": _yardstick(),
    }


def _idle() -> list[float]:
    """Return the seconds that each core has had nothing to do, or waited for a disk."""
    return [core.idle + getattr(core, "iowait", 0.0) for core in psutil.cpu_times(percpu=True)]


def _seconds(training: psutil.Process) -> Counter[str]:
    """Return what the run's processes have worked until now: those of `PROCESSES`, and all others with what they have
    waited for."""
    found: Counter[str] = Counter()
    for process in (training, *training.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended
            words, times = process.cmdline(), process.cpu_times()
            name = next((name for name, module in PROCESSES.items() if module in words), "sandboxes")
            found[name] += times.user + times.system
            if name == "sandboxes":
                found[name] += times.children_user + times.children_system
    return found


def _yardstick() -> float:
    """Return the processor seconds of a fixed computation: plain Python and small matrix products."""
    torch.set_num_threads(1)
    weights, started = torch.ones(512, 512), time.process_time()
    for _ in range(ROUNDS):
        weights = torch.nn.functional.normalize(weights @ weights)
        sum(number & 7 for number in range(100_000))
    return time.process_time() - started


if __name__ == "__main__":
    ratios = {"cpu_s": "yardstick_s", "wall_s": "yardstick_s"}
    sys.exit(run(__doc__, "first_run", measure, ratios=ratios, rollouts=3, seed=0))
