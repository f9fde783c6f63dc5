"""Does the main job learn? The launcher's own command for several seeds, and a control whose rewards say nothing.

    python -m benchmarks.learning [--seeds 0 1 2 3 4] [--schedules carry continuous] [--json] [--save] [key=value ...]

Each run is `bash launch/run_qwen_swe.sh recipe=tiny_cpu run.seed=N`, one after the other, in a folder of its own. The
control is the first seed with `algorithm.post_process=benchmarks.learning.shuffled_post_process`: the same run in every
other respect, so what it still gains is not learned from the reward. `--schedules` runs each seed with
`rollout.schedule` too. `--save` writes what was run into the baseline. A run that is there already is read, not
repeated.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from statistics import mean
from typing import Any

from slime_swe.rewards.slime_plugin import post_process
from slime_swe.rollout.records import is_broken, trajectories
from slime_swe.sample import Sample

ROOT = Path(__file__).parents[1]
BASELINE = Path(__file__).parent / "baselines" / "learning.json"
CONTROL = "algorithm.post_process=benchmarks.learning.shuffled_post_process"  # from the current folder
_BEFORE_AND_AFTER = (
    *("heldout_solve_rate", "heldout_interval", "heldout_episodes", "heldout_first_edit_solve_rate"),
    *("unseen_bug_class_solve_rate", "unseen_bug_class_interval"),
)
KEPT = (
    *(f"{name}_{moment}" for name in _BEFORE_AND_AFTER for moment in ("before", "after")),
    *("heldout_paired", "wall_seconds", "seconds_by_phase", "logprob_diff_max", "seed", "num_rollouts"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--schedules", nargs="+", default=[], help="values of rollout.schedule, beside sync")
    parser.add_argument("--dir", type=Path, default=ROOT / "runs" / "benchmark-learning", help="folder of the runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", action="store_true", help=f"write {BASELINE.relative_to(ROOT)}")
    options, overrides = parser.parse_known_args()
    runs = {f"seed{seed}": [f"run.seed={seed}"] for seed in options.seeds}
    for schedule in options.schedules:
        runs |= {f"{schedule}{seed}": [f"run.seed={seed}", f"rollout.schedule={schedule}"] for seed in options.seeds}
    runs["shuffled"] = [f"run.seed={options.seeds[0]}", CONTROL]
    results = {name: _result(options.dir, name, [*extra, *overrides]) for name, extra in runs.items()}
    written = json.dumps(results, indent=2)
    print(written if options.json else _table(results))
    if options.save:
        BASELINE.write_text(json.dumps(json.loads(BASELINE.read_text()) | results, indent=2) + "\n")
    return 0


def shuffled_post_process(args: Namespace, samples: list[Sample]) -> tuple[list[float], list[float]]:
    """Rewards permuted over the batch's trajectories before the group advantage (`--custom-reward-post-process-path`).

    The permutation depends on the seed and the batch alone. What infrastructure broke keeps out of it; the raw
    rewards that are returned and logged stay the true ones.
    """
    sound = [segments for segments in trajectories(samples) if not is_broken(segments)]
    rewards = [segments[0].reward for segments in sound]
    first = min((sample.index for sample in samples if sample.index is not None), default=0)
    random.Random(f"shuffled rewards {args.seed} {first}").shuffle(rewards)
    given = {id(segment): reward for segments, reward in zip(sound, rewards, strict=True) for segment in segments}
    stand_ins = []
    for sample in samples:
        stand_in = copy.copy(sample)
        stand_in.reward = given.get(id(sample), sample.reward)
        stand_ins.append(stand_in)
    raw, _ = post_process(args, samples)
    return raw, post_process(args, stand_ins)[1]


def _result(folder: Path, name: str, overrides: list[str]) -> dict[str, Any]:
    summary = folder / name / "summary.json"
    if not summary.exists():
        resume = ["--resume"] if (folder / name).exists() else ["recipe=tiny_cpu"]
        where = [f"run.dir={folder}", f"run.name={name}"]
        command = ["bash", str(ROOT / "launch" / "run_qwen_swe.sh"), *resume, *where, *overrides]
        print(f"$ {' '.join(command)}", file=sys.stderr)
        subprocess.run(command, stdout=sys.stderr, check=True)
    found = json.loads(summary.read_text())
    return {key: found.get(key) for key in KEPT}


def _table(results: dict[str, dict[str, Any]]) -> str:
    lines = ["run        held-out before → after           gain    first edit        unseen classes    wall"]
    for name, result in results.items():
        before, after = (_rate(result, "heldout", moment) for moment in ("before", "after"))
        gain = result["heldout_solve_rate_after"] - result["heldout_solve_rate_before"]
        first = _pair(result, "heldout_first_edit_solve_rate")
        unseen = _pair(result, "unseen_bug_class_solve_rate")
        wall = f"{result['wall_seconds']:.0f} s"
        lines.append(f"{name:10} {before} → {after}  {gain:+.2f}   {first:16}  {unseen:16}  {wall}")
    kinds = dict.fromkeys(name.rstrip("0123456789") for name in results if name != "shuffled")
    for kind in kinds:
        seeds = [result for name, result in results.items() if name.rstrip("0123456789") == kind]
        means = [mean(result[f"heldout_solve_rate_{moment}"] for result in seeds) for moment in ("before", "after")]
        named = "" if kind == "seed" else f", {kind}"
        lines.append(f"mean of {len(seeds)} seeds{named}: {means[0]:.3f} → {means[1]:.3f}  {means[1] - means[0]:+.3f}")
    return "\n".join(lines)


def _rate(result: dict[str, Any], name: str, moment: str) -> str:
    low, high = result[f"{name}_interval_{moment}"]
    return f"{result[f'{name}_solve_rate_{moment}']:.2f} [{low:.2f}, {high:.2f}]"


def _pair(result: dict[str, Any], figure: str) -> str:
    values = [result[f"{figure}_{moment}"] for moment in ("before", "after")]
    return " → ".join("–" if value is None else f"{value:.2f}" for value in values)


if __name__ == "__main__":
    sys.exit(main())
