"""`RunRecord`: what a run under SLiME leaves for those who watch it, and says where its rollouts train nothing.

SLiME keeps its figures in its trackers alone. Here each rollout and evaluation gets a line in `metrics.jsonl`, by the
names that the embedded engine has, without the trainer's own figures, which are not known yet.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slime_swe.dotted import load_object
from slime_swe.files import append, writing
from slime_swe.journal import encoded
from slime_swe.redaction import redacted, secrets_of
from slime_swe.rollout.alarms import Alarms
from slime_swe.rollout.collect import Rollout
from slime_swe.rollout.evaluation import limits
from slime_swe.rollout.hooks import is_supervised
from slime_swe.rollout.logprob_gap import Gap
from slime_swe.rollout.metrics import (
    COLUMNS,
    GAP_BEFORE,
    SAMPLED,
    Untrained,
    episode_metrics,
    evaluation_metrics,
    rollout_record,
    rows_of,
    why_untrained,
)
from slime_swe.rollout.records import EPISODES, METRICS, flatten
from slime_swe.sample import Sample
from slime_swe.status import StatusFile

_log = logging.getLogger(__name__)


class RunRecord:
    """The record of one process's part of a run. `metrics.jsonl` is written where `args.swe_record_metrics` says so: a
    launcher that reads the trainer's figures back writes it itself."""

    def __init__(self, args: Any) -> None:
        self.args, self.folder = args, Path(args.swe_run_dir)
        self.attempt = getattr(args, "swe_attempt", None) or 1
        self.status = StatusFile(self.folder, self.attempt)
        self._untrained, self._alarms = Untrained(), Alarms(getattr(args, "swe_alarms", {}))
        self._recorded = time.perf_counter()

    def on_rollout(self, rollout_id: int, rollout: Rollout, seconds: float, gap: Gap | None = None) -> dict[str, float]:
        """Record a batch that is complete, after so many seconds, and return its figures for SLiME's trackers. gap:
        that of the rollout before, which is known by now."""
        kept, key = flatten(rollout.kept), getattr(self.args, "reward_key", None)
        trained = trained_tokens(self.args, kept)
        known = {} if trained is None else {"trained_tokens": trained}
        before = {} if gap is None else {GAP_BEFORE: gap.mean}
        figures = episode_metrics(flatten(rollout.played), key) | rollout.metrics() | known | before
        record = rollout_record(rollout_id, self.attempt, figures, {"generation": seconds, "total": self._since_then()})
        if why_untrained([record]):
            _log.warning("rollout %d trains nothing", rollout_id + 1)
        if said := self._untrained.add(record):
            _log.warning("%s", said)
        for said in self._alarms.add(record):
            _log.warning("%s", said)
        self._append(record)
        requeued: dict[str, float] = {"rollout/requeued": rollout.requeued}
        return rollout.metrics() | before | requeued | {f"rollout/{name}": count for name, count in known.items()}

    def on_evaluation(self, rollout_id: int, sets: Mapping[str, list[Sample]]) -> None:
        """Record an evaluation's samples by set. rollout_id: SLiME's number of the rollout before it."""
        number = evaluated_after(self.folder, rollout_id)
        last = self.args.num_rollout - 1
        moment = "before" if number < 0 else "after" if number == last else "during"
        for name, samples in sets.items():
            where = {"kind": "eval", "name": name, "moment": moment, "rollout_id": number, "attempt": self.attempt}
            figures = evaluation_metrics(samples, getattr(self.args, "reward_key", None))
            self._append({**where, **limits(self.args), **figures, "seconds": {"total": self._since_then()}})

    def _since_then(self) -> float:
        """Return the seconds since the last record of this process."""
        before, self._recorded = self._recorded, time.perf_counter()
        return self._recorded - before

    def _append(self, record: Mapping[str, Any]) -> None:
        if getattr(self.args, "swe_record_metrics", False):
            path = self.folder / METRICS
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                append(path, encoded(record))


def evaluated_after(folder: Path, rollout_id: int) -> int:
    """Return the rollout that an evaluation follows; -1 for one before the first rollout, which SLiME calls 0 too."""
    episodes = folder / EPISODES
    return -1 if rollout_id == 0 and not (episodes.exists() and episodes.stat().st_size) else rollout_id


def log_table(args: Any, rollout_id: int, samples: Sequence[Sample]) -> None:
    """Send a table of a few episodes to SLiME's run in Weights & Biases, where this process has one; TensorBoard, its
    other tracker, has no tables. Secrets of the environment are replaced in it."""
    wandb = sys.modules.get("wandb") if getattr(args, "use_wandb", False) else None
    if wandb is None or wandb.run is None:
        return
    step = rollout_id
    if getattr(args, "wandb_always_use_train_step", False):  # slime/observability/metric_utils.py, compute_rollout_step
        step = rollout_id * args.rollout_batch_size * args.n_samples_per_prompt // args.global_batch_size
    rows = redacted(rows_of(rollout_id, samples), secrets_of(os.environ))
    try:
        wandb.define_metric("swe/*", step_metric="rollout/step")  # SLiME defines the steps of its own names
        wandb.log({"rollout/step": step, SAMPLED: wandb.Table(columns=list(COLUMNS), data=rows)})
    except OSError as error:  # it writes a file
        _log.warning("the table of episodes of rollout %d: %s", rollout_id + 1, error)


def trained_tokens(args: Any, samples: list[Sample]) -> int | None:
    """Count the tokens that have an advantage other than 0, by our post-process hook. Returns None with another one,
    which may not be called twice, and without one. Of a supervised run all that are not masked count."""
    if is_supervised(args):
        return sum(sum(sample.loss_mask or ()) for sample in samples)
    path = getattr(args, "custom_reward_post_process_path", None) or ""
    if not path.startswith("slime_swe."):
        return None
    _, advantages = load_object(path, "custom_reward_post_process_path")(args, samples)
    found = zip(samples, advantages, strict=True)
    return sum(sum(sample.loss_mask or ()) for sample, value in found if value and not sample.remove_sample)
