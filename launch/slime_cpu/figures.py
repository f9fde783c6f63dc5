"""What a run under SLiME left behind -> the records that `metrics.jsonl` holds, as the embedded engine writes them.

The plug-ins' logging hooks write every episode; SLiME writes its own figures for TensorBoard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from data_sources.sample import Sample
from embedded.metrics import evaluation_metrics, outcome_metrics

Line = Mapping[str, Any]
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
TIMED = {  # SLiME's figure of a rollout, in seconds -> its name in the records
    "perf/rollout_time": "generation",
    "perf/train_time": "training",
    "perf/update_weights_time": "weight_sync",
    "perf/save_model_time": "checkpoint",
}


def read_records(run: Path, tensorboard: Path, *, steps: int, rollouts: int) -> list[dict[str, Any]]:
    """All records of a run of `rollouts` rollouts so far, each with `steps` optimizer steps, in the order of time."""
    told = scalars(tensorboard)
    trained = [
        training_record(number, lines) | step_figures(told, number, steps)
        for number, lines in _by("rollout_id", read_lines(run / "episodes.jsonl")).items()
    ]
    evaluated = [
        evaluation_record(name, lines, place, rollouts)
        for name, played in _by("dataset", read_lines(run / "evaluations.jsonl")).items()
        for place, lines in enumerate(_rounds(played))
    ]
    return sorted([*trained, *evaluated], key=lambda record: (record["rollout_id"], record["kind"] == "eval"))


def training_record(rollout_id: int, episodes: Iterable[Line]) -> dict[str, Any]:
    """One rollout's outcome, from its lines of `episodes.jsonl`."""
    return {"kind": "train", "rollout_id": rollout_id, **outcome_metrics([sample_of(line) for line in episodes])}


def evaluation_record(name: str, episodes: Sequence[Line], place: int, rollouts: int) -> dict[str, Any]:
    """The outcome of the set's evaluation number `place`; the first is that before the first rollout."""
    rollout_id = -1 if place == 0 else int(episodes[0]["rollout_id"])  # SLiME calls that one 0 too
    moment = "before" if place == 0 else "after" if rollout_id == rollouts - 1 else "during"
    figures = evaluation_metrics([sample_of(line) for line in episodes])
    return {"kind": "eval", "name": name, "moment": moment, "rollout_id": rollout_id, **figures}


def step_figures(told: Scalars, rollout_id: int, steps: int) -> dict[str, Any]:
    """SLiME's own figures of a rollout: means over its optimizer steps.

    `logprob_diff_mean` compares trainer and server in the first step, where both have the same weights.
    """
    numbers = range(rollout_id * steps, (rollout_id + 1) * steps)
    found = {name: [told[tag][n] for n in numbers if n in told[tag]] for tag, name in TRAINED.items() if tag in told}
    means = {name: sum(values) / len(values) for name, values in found.items() if values}
    gap = told.get(GAP, {}).get(numbers[0])
    seconds = {name: told[tag][rollout_id] for tag, name in TIMED.items() if rollout_id in told.get(tag, {})}
    return means | ({} if gap is None else {"logprob_diff_mean": gap}) | {"seconds": seconds}


def sample_of(line: Line) -> Sample:
    """As much of an episode's sample as the figures need."""
    parts = {name: line[name] for name in ("episode", "score", "infrastructure") if line.get(name)}
    return Sample(
        index=line["index"],
        group_index=line["group_index"],
        rollout_id=line["trajectory"],
        status=Sample.Status(line["status"]),
        reward=line["reward"],
        metadata={"task": {"id": line["task"]}, **parts},
    )


def read_lines(path: Path) -> list[Line]:
    """The whole lines of a journal; a last one that is still being written is left out."""
    if not path.exists():
        return []
    return [orjson.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Every figure in a folder of TensorBoard files; of a step that was repeated after a resumption, the last."""
    told: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # SLiME's environment has it

        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                told.setdefault(value.tag, {})[event.step] = float(value.tensor.float_val[0])
    return told


def _by(key: str, lines: Iterable[Line]) -> dict[Any, list[Line]]:
    groups: dict[Any, list[Line]] = {}
    for line in lines:
        groups.setdefault(line[key], []).append(line)
    return groups


def _rounds(lines: Iterable[Line]) -> list[list[Line]]:
    """One set's lines by evaluation: an index that is there already begins the next."""
    rounds: list[list[Line]] = []
    seen: set[int] = set()
    for line in lines:
        if not rounds or line["index"] in seen:
            rounds.append([])
            seen = set()
        seen.add(line["index"])
        rounds[-1].append(line)
    return rounds
