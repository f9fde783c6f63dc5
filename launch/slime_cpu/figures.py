"""What a run under SLiME left behind -> the records that `metrics.jsonl` holds, as the embedded engine writes them.

The plug-ins' logging hooks write every episode; SLiME writes its own figures for TensorBoard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slime_swe.attempts import of_last_attempt
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.metrics import GAP_BEFORE, depends_on_timing, episode_metrics, evaluation_metrics
from slime_swe.rollout.records import EPISODES, EVALUATIONS, Record

Scalars = Mapping[str, Mapping[int, float]]  # SLiME's name of a figure -> step -> value

TRAINED = {  # SLiME's figure of an optimizer step -> its name in the records
    "train/loss": "loss",
    "train/pg_loss": "pg_loss",
    "train/entropy_loss": "entropy",
    "train/pg_clipfrac": "clip_fraction",
    "train/ppo_kl": "kl_to_old",
    "train/grad_norm": "grad_norm",
}
GAP = "train/train_rollout_logprob_abs_diff"
OURS = ("rollout/staleness", "rollout/dynamic_filter/", "rollout/retried/")  # how our rollout function's figures begin
OLDEST, TRAINED_TOKENS = "rollout/staleness_max", "rollout/trained_tokens"
TIMED = {  # SLiME's figure of a rollout, in seconds -> its name in the records
    "perf/rollout_time": "generation",
    "perf/train_time": "training",
    "perf/update_weights_time": "weight_sync",
    "perf/save_model_time": "checkpoint",
}


def read_figures(
    run: Path, tensorboard: Path, *, steps: int, rollouts: int, limits: Mapping[str, int]
) -> list[dict[str, Any]]:
    """All records of a run of `rollouts` rollouts so far, each with `steps` optimizer steps, in the order of time.

    limits: of an evaluation's episodes, which its records state."""
    figures = scalars(tensorboard)
    records: list[dict[str, Any]] = []
    for number, episodes in _by("rollout_id", _counted(run / EPISODES)).items():
        means = {name: mean for name, mean in episode_metrics(episodes).items() if not depends_on_timing(name)}
        where = {"kind": "train", "rollout_id": number, "attempt": episodes[0].attempt}
        records.append({**where, **means, **step_figures(figures, number, steps)})
    for name, played in _by("dataset", _counted(run / EVALUATIONS)).items():
        for number, episodes in _by("rollout_id", played).items():
            moment = {rollouts - 1: "after", -1: "before"}.get(number, "during")
            where = {"kind": "eval", "name": name, "moment": moment, "rollout_id": number}
            where["attempt"] = episodes[0].attempt
            records.append({**where, **limits, **evaluation_metrics(episodes)})
    return sorted(records, key=lambda record: (record["rollout_id"], record["kind"] == "eval"))


def step_figures(figures: Scalars, rollout_id: int, steps: int) -> dict[str, Any]:
    """Of a rollout, our rollout function's figures and SLiME's own: means over its optimizer steps.

    `logprob_diff_mean` compares trainer and server in the first step. Where older weights have sampled it is what our
    rollout function gives while it samples the next rollout, so that the last one has none. Trained tokens are those
    that our rollout function counts; where it counts none, as with a post-process hook of the user's own, and no step
    had a gradient, there were none.
    """
    numbers = range(rollout_id * steps, (rollout_id + 1) * steps)
    found = {
        name: [figures[tag][n] for n in numbers if n in figures[tag]] for tag, name in TRAINED.items() if tag in figures
    }
    means = {name: sum(values) / len(values) for name, values in found.items() if values}
    ours = {tag: values[rollout_id] for tag, values in figures.items() if tag.startswith(OURS) and rollout_id in values}
    gap = figures.get(GAP, {}).get(numbers[0])
    if ours.get(OLDEST):
        gap = figures.get(GAP_BEFORE, {}).get(rollout_id + 1)
    seconds = {name: figures[tag][rollout_id] for tag, name in TIMED.items() if rollout_id in figures.get(tag, {})}
    if rollout_id in figures.get(TRAINED_TOKENS, {}):
        means["trained_tokens"] = figures[TRAINED_TOKENS][rollout_id]
    elif means.get("grad_norm") == 0:
        means["trained_tokens"] = 0
    return ours | means | ({} if gap is None else {"logprob_diff_mean": gap}) | {"seconds": seconds}


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Every figure in a folder of TensorBoard files; of a step that was repeated after a resumption, the last."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # SLiME's environment has it

        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = float(value.tensor.float_val[0])
    return found


def _counted(journal: Path) -> list[Record]:
    """Of a rollout that two attempts wrote, the last one's."""
    records = read_records(journal)
    return of_last_attempt(records, lambda record: (record.dataset, record.rollout_id), lambda record: record.attempt)


def _by(key: str, records: Iterable[Record]) -> dict[Any, list[Record]]:
    groups: dict[Any, list[Record]] = {}
    for record in records:
        groups.setdefault(getattr(record, key), []).append(record)
    return groups
