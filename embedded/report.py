"""What is left of a run: `summary.json` and the learning curve."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from embedded.disk import replace_file, writing
from embedded.metrics import compare

SUMMARY_FILE = "summary.json"
CURVE_FILE = "learning_curve.png"
PREFIXES = {"unseen": "unseen_bug_class"}  # evaluation set -> prefix of its keys; any other set is its own prefix
FIGURES = {  # key in the summary -> key of an evaluation's metrics
    "solve_rate": "solve_rate",
    "interval": "interval",
    "episodes": "episodes",
    "tasks": "tasks",
    "infrastructure_failures": "infrastructure_failures",
    "first_edit_solve_rate": "first_edit_solve_rate",
    "edits_per_episode": "edits",
    "turns_per_episode": "turns",
    "stop_reasons": "stop_reasons",
}


def summarize(
    args: Namespace, records: Sequence[Mapping[str, Any]], seconds: Mapping[str, float], wall_seconds: float
) -> dict[str, Any]:
    """The summary of a finished run from the records of its `metrics.jsonl`.

    Each evaluation figure appears as `<set>_<figure>_before` and `_after`; intervals are Wilson's, 95 %.
    """
    steps = [record for record in records if record["kind"] == "train"]
    summary: dict[str, Any] = {}
    for name in args.swe_eval_tasks or {}:
        summary |= _evaluation(name, records)
    return summary | {
        "reward_per_step": [step.get("reward") for step in steps],
        "solve_rate_per_step": [step.get("solve_rate") for step in steps],
        "infrastructure_failures": sum(step["infrastructure_failures"] for step in steps),
        "logprob_diff_max": max(
            (step["logprob_diff_max"] for step in steps if "logprob_diff_max" in step), default=None
        ),
        "wall_seconds": wall_seconds,
        "seconds_by_phase": dict(seconds),
        "seed": args.seed,
        "num_rollouts": args.num_rollout,
        "episodes_per_rollout": args.rollout_batch_size * args.n_samples_per_prompt,
        "run_dir": str(args.swe_run_dir),
    }


def _evaluation(name: str, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    prefix = PREFIXES.get(name, name)
    found = {
        moment: next((r for r in records if r["kind"] == "eval" and (r["name"], r["moment"]) == (name, moment)), None)
        for moment in ("before", "after")
    }
    figures = {
        f"{prefix}_{figure}_{moment}": record[key]
        for moment, record in found.items()
        for figure, key in FIGURES.items()
        if record is not None and key in record
    }
    before, after = found["before"], found["after"]
    if before is not None and after is not None:
        figures[f"{prefix}_paired"] = compare(before["outcomes"], after["outcomes"])
    return figures


def write_summary(run_dir: Path, summary: Mapping[str, Any]) -> None:
    with writing(run_dir / SUMMARY_FILE):
        replace_file(run_dir / SUMMARY_FILE, orjson.dumps(summary, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))


def write_curve(run_dir: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Training reward and solve rate by rollout, with every evaluation and its interval, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes half a second to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    steps = [r for r in records if r["kind"] == "train" and r.get("solve_rate") is not None]
    axes.plot(
        [r["rollout_id"] + 1 for r in steps], [r["solve_rate"] for r in steps], color="0.6", label="training episodes"
    )
    for name in dict.fromkeys(r["name"] for r in records if r["kind"] == "eval"):
        _plot_evaluation(axes, name, [r for r in records if r["kind"] == "eval" and r["name"] == name])
    axes.set(xlabel="rollouts", ylabel="solve rate", ylim=(-0.02, 1.02))
    axes.grid(alpha=0.3)
    if axes.has_data():
        axes.legend(loc="best", fontsize="small")
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    with writing(run_dir / CURVE_FILE):
        replace_file(run_dir / CURVE_FILE, content.getvalue())


def _plot_evaluation(axes: Any, name: str, records: Sequence[Mapping[str, Any]]) -> None:
    points = [r for r in records if r["solve_rate"] is not None]
    rates = [r["solve_rate"] for r in points]
    low = [max(0.0, rate - r["interval"][0]) for rate, r in zip(rates, points, strict=True)]
    high = [max(0.0, r["interval"][1] - rate) for rate, r in zip(rates, points, strict=True)]
    at = [r["rollout_id"] + 1 for r in points]
    label = f"{PREFIXES.get(name, name).replace('_', ' ')} (95 % interval)"
    axes.errorbar(at, rates, yerr=[low, high], marker="o", capsize=4, label=label)
