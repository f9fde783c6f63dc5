"""Show a run's figures beside its own `metrics.jsonl`: Weights & Biases, trackio, TensorBoard.

Each tracker has a thread of its own, so that nothing it does, raises or waits for is the training's: a tracker that is
lost is said once, and the run goes on. `metrics.jsonl` holds everything.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Full, Queue
from typing import Any, Protocol

from slime_swe.errors import UserError
from slime_swe.redaction import redacted, secrets_of
from slime_swe.rollout.metrics import COLUMNS, SAMPLED

MOST_WAITING = 32  # logs that a tracker is behind before it is taken for lost
CLOSE_SECONDS = 60.0  # that a tracker gets at the end of a run to send what it holds

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """The arguments that a tracker is opened with."""

    run_dir: Path
    project: str
    configuration: Mapping[str, Any] = field(default_factory=dict)


class Tracker(Protocol):
    """An open tracker. It may raise whatever it likes."""

    def log(self, step: int, figures: Mapping[str, float], episodes: Sequence[Sequence[Any]]) -> None: ...

    def close(self) -> None: ...


class Trackers:
    """All trackers of a run. `log` waits for none of them. Secrets of the environment are replaced in what they get."""

    def __init__(self, names: Sequence[str], opening: Opening) -> None:
        self._secrets = secrets_of(os.environ)
        opening = replace(opening, configuration=redacted(opening.configuration, self._secrets))
        self._workers = [_Worker(name, TRACKERS[name], opening) for name in names]

    def log(self, step: int, figures: Mapping[str, float], episodes: Sequence[Sequence[Any]] = ()) -> None:
        shown = redacted(episodes, self._secrets) if self._workers else ()
        for worker in self._workers:
            worker.put((step, figures, shown))

    def waiting(self) -> int:
        """Return how many logs no tracker has taken yet."""
        return sum(worker.unfinished for worker in self._workers)

    def close(self, seconds: float = CLOSE_SECONDS) -> dict[str, str]:
        """Let each tracker send what it holds, in so many seconds for all; return why each lost one was lost."""
        deadline = time.monotonic() + seconds
        for worker in self._workers:
            worker.end()
        for worker in (each for each in self._workers if not each.lost):
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                worker.lose(f"it did not end within {seconds:.0f} s")
        return {worker.name: worker.lost for worker in self._workers if worker.lost}


class _Worker(threading.Thread):
    def __init__(self, name: str, make: Callable[[Opening], Tracker], opening: Opening) -> None:
        super().__init__(name=name, daemon=True)  # a run does not outlive its trainer for a tracker that hangs
        self._make, self._opening, self.lost = make, opening, ""
        self._waiting: Queue[tuple[int, Mapping[str, float], Sequence[Sequence[Any]]] | None] = Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._ended = False
        self.start()

    def run(self) -> None:
        try:
            tracker = self._make(self._opening)
            while (item := self._waiting.get()) is not None:
                if not self.lost:
                    tracker.log(*item)
                self._waiting.task_done()
            tracker.close()
        except (Exception, SystemExit) as error:  # whatever a library of others raises ends its tracker alone
            first = next(iter(str(error).strip().splitlines()), "")
            self.lose(f"{type(error).__name__}: {first}" if first else type(error).__name__)

    def put(self, item: tuple[int, Mapping[str, float], Sequence[Sequence[Any]]]) -> None:
        if self.lost:
            return
        try:
            self._waiting.put_nowait(item)
        except Full:
            self.lose(f"{MOST_WAITING} logs wait, and it takes none")

    @property
    def unfinished(self) -> int:
        return 0 if self.lost else self._waiting.unfinished_tasks

    def end(self) -> None:
        if not self._ended and not self.lost:
            self._ended = True
            try:
                self._waiting.put_nowait(None)
            except Full:
                self.lose(f"{MOST_WAITING} logs wait, and it takes none")

    def lose(self, why: str) -> None:
        """Warn that the tracker is lost: once, by whichever thread finds out."""
        with self._lock:
            if self.lost:
                return
            self.lost = why
        _log.warning("%s is lost, and the run goes on without it: %s; metrics.jsonl has every figure", self.name, why)


class _Run:
    """A run in Weights & Biases, or in trackio, which has the same calls."""

    def __init__(self, module: Any, run: Any) -> None:
        self._module, self._run = module, run

    def log(self, step: int, figures: Mapping[str, float], episodes: Sequence[Sequence[Any]]) -> None:
        table = {SAMPLED: self._module.Table(columns=list(COLUMNS), data=[*map(list, episodes)])} if episodes else {}
        self._run.log({STEP: step, **figures, **table})

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._run.finish()


def open_wandb(opening: Opening) -> Tracker:
    import wandb

    settings = wandb.Settings(silent=True, console="off")
    run = wandb.init(
        project=opening.project,
        name=opening.run_dir.name,
        group=opening.run_dir.name,
        dir=str(opening.run_dir),
        config=dict(opening.configuration),
        settings=settings,
    )
    run.define_metric("*", step_metric=STEP)
    return _Run(wandb, run)


def open_trackio(opening: Opening) -> Tracker:
    import trackio

    with redirect_stdout(sys.stderr):  # it prints, and --json has one document there
        run = trackio.init(
            project=opening.project,
            name=opening.run_dir.name,
            config=dict(opening.configuration),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
    return _Run(trackio, run)


class TensorBoard:
    """Event files in the run's folder."""

    def __init__(self, opening: Opening) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(opening.run_dir / "tensorboard"))

    def log(self, step: int, figures: Mapping[str, float], episodes: Sequence[Sequence[Any]]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        if episodes:
            self._writer.add_text(SAMPLED, "\n\n".join(map(_as_text, episodes)), step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


TRACKERS: dict[str, Callable[[Opening], Tracker]] = {
    "wandb": open_wandb,
    "trackio": open_trackio,
    "tensorboard": TensorBoard,
}


def require_account() -> None:
    """Raise `UserError` where Weights & Biases would ask for a key, which a run can't answer."""
    if os.environ.get("WANDB_MODE", "online") != "online":
        return
    import wandb

    if not wandb.login(prompt=False):
        raise UserError(
            "run.trackers names wandb, and there is no key for it: set WANDB_API_KEY, run `wandb login`, or set "
            "WANDB_MODE=offline and send the run's folder `wandb` later by `wandb sync`"
        )


def _as_text(row: Sequence[Any]) -> str:
    *figures, patch = row
    said = " · ".join(f"{name} {value}" for name, value in zip(COLUMNS, figures, strict=False))
    return f"{said}\n\n" + "\n".join(f"    {line}" for line in str(patch).splitlines())


# The trackers of a run are given its figures, by the names that SLiME's trackers have for them.
STEP = "rollout/step"  # the abscissa, as SLiME calls it
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
    """Return the numbers in a record of `metrics.jsonl`, under the names that SLiME's trackers have for them."""
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
