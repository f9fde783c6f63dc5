"""Write what is left of a run: `summary.json` and the learning curve."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from slime_swe.files import replace_file, writing
from slime_swe.rollout.alarms import Alarms
from slime_swe.rollout.episode import StopReason
from slime_swe.rollout.evaluation import limits
from slime_swe.rollout.metrics import compare, why_untrained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    "first_try_solve_rate": "first_try_solve_rate",
    "edits_per_episode": "edits",
    "turns_per_episode": "turns",
    "stop_reasons": "stop_reasons",
}
COLORS = {  # of stop reasons: the same in every figure, and none of those of the evaluations
    f"stop/{reason.value}": color
    for reason, color in zip(
        (reason for reason in StopReason if not reason.is_infrastructure),
        ("#a8d5a2", "#e4a853", "#c9593f", "#8d6cab", "#d69bb5", "#7aa6c2", "#9a9a9a"),
        strict=True,
    )
}


def summarize(
    args: Namespace, records: Sequence[Mapping[str, Any]], seconds: Mapping[str, float], wall_seconds: float
) -> dict[str, Any]:
    """Make the summary of a finished run from the records of its `metrics.jsonl`.

    Each evaluation figure appears as `<set>_<figure>_before` and `_after`; intervals are Wilson's, 95 %.
    """
    steps = [record for record in records if record["kind"] == "train"]
    summary: dict[str, Any] = {}
    for name in args.swe_eval_tasks or {}:
        summary |= _evaluation(name, records)
    return summary | {
        "reward_per_step": [step.get("reward") for step in steps],
        "solve_rate_per_step": [step.get("solve_rate") for step in steps],
        "nothing_trained_because": why_untrained(steps) or None,
        "alarms": Alarms.of(getattr(args, "swe_alarms", {}), steps).as_json(),
        "infrastructure_failures": sum(step["infrastructure_failures"] for step in steps),
        "logprob_diff_max": max(
            (step["logprob_diff_max"] for step in steps if "logprob_diff_max" in step), default=None
        ),
        "wall_seconds": wall_seconds,
        "seconds_by_phase": dict(seconds),
        **limits(args),
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
    """Write `draw_curve`'s figure as a PNG."""
    content = io.BytesIO()
    draw_curve(records).savefig(content, format="png", metadata={"Software": None})
    with writing(run_dir / CURVE_FILE):
        replace_file(run_dir / CURVE_FILE, content.getvalue())


def draw_curve(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw solve rate, mean reward and shares of stop reasons by rollout, one panel each, of training and evaluations.

    An evaluation's solve rate has its interval. Stop reasons are those of training episodes; their panel is left out
    where the generate hook reports none.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes half a second to import
    from matplotlib.figure import Figure

    steps = [r for r in records if r["kind"] == "train" and r.get("solve_rate") is not None]
    evaluations: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if record["kind"] == "eval" and record["solve_rate"] is not None:
            evaluations.setdefault(record["name"], []).append(record)
    reasons = [f"stop/{r.value}" for r in StopReason if any(step.get(f"stop/{r.value}") for step in steps)]
    heights = [3, 2, 2] if reasons else [3, 2]
    figure = Figure(figsize=(10, 1.2 + 1.1 * sum(heights)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(heights), sharex=True, height_ratios=heights)
    for axes, key, label in zip(panels, ("solve_rate", "reward"), ("solve rate", "mean reward"), strict=False):
        axes.plot(_rollouts(steps), [r[key] for r in steps], color="0.6", marker=".", label="training episodes")
        for name, found in evaluations.items():
            _plot_evaluation(axes, name, found, key)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[0].set_ylim(-0.02, 1.02)
    if reasons:
        _plot_stop_reasons(panels[2], steps, reasons)
    for axes in panels[::2]:  # the panel of rewards shows the same sets as the first
        if axes.has_data():
            axes.legend(
                loc="upper left",
                bbox_to_anchor=(1.01, 1),
                borderaxespad=0,
                frameon=False,
                reverse=axes is not panels[0],
            )
    panels[-1].set_xlabel("rollouts")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    figure.align_ylabels(panels)
    return figure


def _rollouts(records: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return how many rollouts each record had behind it."""
    return [r["rollout_id"] + 1 for r in records]


def _plot_evaluation(axes: Any, name: str, records: Sequence[Mapping[str, Any]], key: str) -> None:
    means = [r[key] for r in records]
    if key == "solve_rate":
        low = [max(0.0, mean - r["interval"][0]) for mean, r in zip(means, records, strict=True)]
        high = [max(0.0, r["interval"][1] - mean) for mean, r in zip(means, records, strict=True)]
        label = f"{PREFIXES.get(name, name).replace('_', ' ')} (95 % interval)"
        axes.errorbar(_rollouts(records), means, yerr=[low, high], marker="o", capsize=4, label=label)
    else:
        axes.plot(_rollouts(records), means, marker="o")


def _plot_stop_reasons(axes: Any, steps: Sequence[Mapping[str, Any]], reasons: Sequence[str]) -> None:
    """Stack the shares from the first reason upwards."""
    below = [0.0] * len(steps)
    for reason in reasons:
        shares = [step.get(reason, 0.0) for step in steps]
        label = reason.removeprefix("stop/").replace("_", " ")
        axes.bar(_rollouts(steps), shares, width=1.0, bottom=below, color=COLORS[reason], label=label)
        below = [height + share for height, share in zip(below, shares, strict=True)]
    axes.set(ylabel="share of stop reasons", ylim=(0, 1))
