"""What does a warm start give? Held-out tasks solved by the seed policy, after one, and after rollouts that follow it.

    python -m benchmarks.warm_start [--rollouts 8] [--after 6] [--seed 0] [--json | --check | --save]

Four policies of `tiny_cpu`, on the same held-out tasks: the *seed*; *alone*, after so many rollouts; *warm*, the seed
after a supervised stage on the solved episodes of *alone*, as `slime-swe sft` chooses them; *warm_then*, after the
rollouts that follow. By default these are two fewer than of *alone*, for the time of the stage; `seconds_warm` beside
`seconds_alone` says how far that is equal. What it took to sample the stage's episodes is not counted: another run did.

`gain` of two is the difference of their solve rates on the same tasks, with the 95 % interval that `slime-swe compare`
gives for other tasks of the kind. `--check` fails where that of *warm* over *seed* holds 0.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.command import Figures, run

PATIENT = "rollout.time_budget=3600"  # so that no episode runs out of time on a busy machine
STAGE = "warm_start.batch_size=32", "warm_start.lr=5e-4"
NOT_TRAINING = ("evaluation", "startup")
PAIRS = {"warm": ("alone@-1", "warm@-1"), "warm_then": ("alone", "warm")}  # gain -> its A and B, as `compare` has them
INTERVAL = "other tasks of these repositories"


async def measure(rollouts: int, after: int, seed: int, groups: int, limit: int) -> Figures:
    """after: rollouts behind the stage. groups: of a rollout. limit: tasks of an evaluation; 0 for all."""
    with tempfile.TemporaryDirectory() as folder:
        heldout = "synthetic:heldout" + (f"?limit={limit}" if limit else "")
        common = [f"run.seed={seed}", f"rollout.batch_size={groups}", f"data.eval={{heldout: '{heldout}'}}", PATIENT]
        alone = _trained(folder, "alone", f"run.num_rollouts={rollouts}", *common)
        data = f"{folder}/solved.jsonl"
        chosen = json.loads(_said("sft", "alone", "--dir", folder, "--out", data, "--json"))
        warm = _trained(folder, "warm", f"run.num_rollouts={after}", f"warm_start.data={data}", *STAGE, *common)
        stage = json.loads(Path(folder, "warm", "warm_start", "summary.json").read_text())
        return {
            "stage_episodes": chosen["episodes"],
            "stage_steps": stage["num_rollouts"],
            **_rate("seed", alone, "before"),
            **_rate("warm", warm, "before"),
            **_rate("alone", alone, "after"),
            **_rate("warm_then", warm, "after"),
            **{name: value for of, sides in PAIRS.items() for name, value in _gain(folder, of, *sides)},
            "seconds_stage": _seconds(stage),
            "seconds_alone": _seconds(alone),
            "seconds_warm": _seconds(stage) + _seconds(warm),
        }


def _trained(folder: str, name: str, *words: str) -> Any:
    """The run's summary."""
    given = "recipe=tiny_cpu", f"run.dir={folder}", f"run.name={name}", "--ignore-integrity", "--json"
    return json.loads(_said("train", *given, *words))


def _rate(name: str, summary: Any, moment: str) -> Figures:
    low, high = summary[f"heldout_interval_{moment}"]
    return {name: summary[f"heldout_solve_rate_{moment}"], f"{name}_low": low, f"{name}_high": high}


def _gain(folder: str, name: str, before: str, after: str) -> Iterator[tuple[str, float]]:
    found = json.loads(_said("compare", before, after, "--dir", folder, "--json"))["sets"]["heldout"]
    interval = found["intervals"][INTERVAL]
    yield f"gain_{name}", found["difference"]
    yield f"gain_{name}_low", interval["low"]
    yield f"gain_{name}_high", interval["high"]


def _seconds(summary: Any) -> float:
    """Of rollouts and training."""
    return float(sum(taken for phase, taken in summary["seconds_by_phase"].items() if phase not in NOT_TRAINING))


def _said(*words: str) -> str:
    command = [sys.executable, "-m", "slime_swe.launch.cli", *words]
    print(f"$ slime-swe {' '.join(words)}", file=sys.stderr)
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


if __name__ == "__main__":
    floors, options = {"gain_warm_low": 0.0}, {"rollouts": 8, "after": 6, "seed": 0, "groups": 16, "limit": 0}
    ratios = {"seconds_warm": "seconds_alone"}
    sys.exit(run(__doc__, "warm_start", measure, ratios=ratios, floors=floors, **options))
