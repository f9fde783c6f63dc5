"""What the trackers of a run are given: its figures, by the names that SLiME's trackers have for them, and a table of a
few episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slime_swe.rollout.records import record_of, trajectories
from slime_swe.sample import Sample

SHOWN = 4  # episodes of a rollout
STEP = "rollout/step"  # the abscissa, as SLiME calls it
EPISODES = "swe/sampled_episodes"
COLUMNS = ("rollout", "task", "solved", "reward", "stop_reason", "turns", "patch")
SLIMES = {  # figures of the trainer, and of a batch -> SLiME's name
    "loss": "train/loss",
    "pg_loss": "train/pg_loss",
    "kl_loss": "train/kl_loss",
    "entropy": "train/entropy_loss",
    "clip_fraction": "train/pg_clipfrac",
    "kl_to_old": "train/ppo_kl",
    "grad_norm": "train/grad_norm",
    "logprob_diff_mean": "train/train_rollout_logprob_abs_diff",
    "trained_tokens": "rollout/trained_tokens",
    "admitted_episodes": "rollout/admitted_episodes",
}


def figures_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a record of `metrics.jsonl`, under the names that SLiME's trackers have for them."""
    if record["kind"] == "eval":
        below = f"eval/{record['name']}/swe/"
        return {f"{below}{name}": value for name, value in _numbers(record)}
    return {SLIMES.get(name) or (name if name.startswith("rollout/") else f"swe/{name}"): value
            for name, value in _numbers(record)}  # fmt: skip


def _numbers(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            inside = {"serving": "", "stop_reasons": "stop/", "outcomes": None}.get(name, f"{name}/")
            found += [] if inside is None else _numbers(value, inside)
        elif isinstance(value, int | float) and name not in ("rollout_id", "attempt"):
            found.append((f"{prefix}{name}".removeprefix("seconds/episode/"), float(value)))
    return found


def rows_of(rollout_id: int, samples: Sequence[Sample]) -> list[list[Any]]:
    """A few of a rollout's episodes, evenly spaced, for a table of `COLUMNS`."""
    episodes = trajectories(samples)
    places = sorted({round(i * (len(episodes) - 1) / (SHOWN - 1)) for i in range(SHOWN)}) if episodes else []
    rows: list[list[Any]] = []
    for record in (record_of(episodes[place][0]) for place in places):
        done = record.episode
        what = (done.stop_reason, done.turns, done.patch) if done else ("", 0, "")
        rows.append([rollout_id, record.task or "", record.solved, record.reward or 0.0, *what])
    return rows
