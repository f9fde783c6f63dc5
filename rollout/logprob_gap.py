"""`GapCheck`: how far the trainer's log-probabilities of a rollout are from the engines', for the same weights.

It is the figure that shows a broken weight synchronisation. The trainer's are read from `trained.jsonl`, which it
writes before the rollout's first optimizer step, or in its first micro-batch. The engines' depend on the schedule:

- Where a rollout is trained before the next is sampled (`sync`, `carry`): what the engines said of the tokens that the
  same weights sampled; those of older weights are left out. The comparison is made when the next rollout
  begins, and asks the engines for nothing.
- Where both are at once (`async`, `continuous`): older weights than those that train have sampled everything but the
  first rollout. While the trainer works on rollout n the engines have its weights, and sample rollout n + 1: SLiME
  waits for that one before it updates them. So meanwhile they are asked for the log-probabilities of a few samples of
  rollout n.

Not covered: the last rollout, after which none is sampled; tokens after the first `WINDOW` of a response;
`keep_old_actor`, under which the file has another model's log-probabilities; with `async` and `continuous` a
temperature other than 1, at which SGLang gives none of a prompt; a train loop that does not write the file, as miles.
With routing replay the trainer has the experts that were chosen when a token was sampled, and an engine that is asked
later chooses anew: the figure has that difference in it, in each rollout alike.
"""

from __future__ import annotations

import asyncio
import logging
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from slime_swe.errors import InfrastructureError
from slime_swe.fields import Argument, Meta, read_arguments
from slime_swe.rollout.alarms import CHECK
from slime_swe.rollout.client import EngineClient
from slime_swe.rollout.engine import engine_urls
from slime_swe.rollout.journals import TRAINED, TrainedSample, read_appended
from slime_swe.rollout.records import loss_mask_of, version_spans_of
from slime_swe.rollout.replies import part_of
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sample import Sample

SAMPLES = 4  # of a rollout that engines are asked about, at least; more where there are more engines
WINDOW = 1024  # tokens that are compared, from the first trained one: an engine holds a row of logits for each
PATIENCE = 300.0  # seconds that a finished rollout waits for the trainer's first micro-batch of the one before
LOOKED = 1.0  # seconds between two looks into the file

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Gap:
    """The gap of one rollout. mean: of |trainer's − engine's log-probability|, in nats, over so many tokens."""

    rollout_id: int
    mean: float
    tokens: int


@dataclass(frozen=True)
class Window:
    """A sample up to the last token that is compared. places: those of trained tokens in `tokens`. sampled: what the
    engine said of each of these when it sampled it, and which weights it had."""

    tokens: array[int]
    places: Sequence[int]
    sampled: Sequence[tuple[float, str | None]]

    @classmethod
    def of(cls, sample: Sample) -> Window | None:
        """Cut a sample's window; None where nothing of it is trained, or its record lacks what is compared."""
        mask, log_probs, spans = loss_mask_of(sample), sample.rollout_log_probs, version_spans_of(sample)
        if sample.remove_sample or log_probs is None or spans is None or 1 not in mask:
            return None
        first, start = mask.index(1), len(sample.tokens) - sample.response_length
        end = first + WINDOW
        versions = [version for version, count in part_of(spans, first, end) for _ in range(count)]
        trained = [at for at in range(first, min(end, len(mask))) if mask[at]]
        return cls(
            array("i", sample.tokens[: start + trained[-1] + 1]),
            [start + at for at in trained],
            [(log_probs[at], versions[at - first]) for at in trained],
        )


@dataclass(frozen=True)
class _Before:
    """The rollout before the one that is sampled. weights: the version that trains it, as engines name it. start: where
    the trainer's lines about it begin in its file, in bytes, or later."""

    rollout_id: int
    weights: str
    windows: Mapping[int | None, Window]
    start: int


@dataclass(frozen=True)
class _Settings:
    run_dir: Annotated[Path, Argument("swe_run_dir")]
    attempt: Annotated[int | None, Argument("swe_attempt")] = None
    recorder: Annotated[str, Argument("rollout_data_postprocess_path")] = ""
    lag: Annotated[int, Argument("swe_version_lag"), Meta(ge=0)] = 0  # 1 where the next rollout is sampled meanwhile
    interval: Annotated[int, Argument("update_weights_interval"), Meta(ge=1)] = 1
    keep_old_actor: bool = False
    temperature: Annotated[float, Argument("rollout_temperature")] = 1.0


class GapCheck:
    """Compares the rollouts of one process's part of a run, in one event loop: `keep` a rollout, `start` its comparison
    when the next one begins, and `finish` it when that one is complete.

    An engine that does not answer, or can't score a prompt, leaves a rollout without its figure, and the log says so
    once. patience: seconds; see `PATIENCE`.
    """

    def __init__(self, args: Any, patience: float = PATIENCE) -> None:
        settings = read_arguments(_Settings, args)
        self._args, self._settings, self._patience = args, settings, patience
        self._file, self._asks = settings.run_dir / TRAINED, settings.lag > 0
        scored = not self._asks or settings.temperature == 1
        self.is_possible = settings.recorder.startswith("slime_swe.") and not settings.keep_old_actor and scored
        self._first: int | None = None
        self._before: _Before | None = None
        self._comparing: asyncio.Task[Gap | None] | None = None
        self._silent = False

    def start(self) -> None:
        """Begin the comparison of the rollout that was kept last."""
        if self._before is not None:
            self._comparing, self._before = asyncio.create_task(self._compare(self._before)), None

    async def finish(self) -> Gap | None:
        """Return the comparison's outcome, once the next rollout is complete; None where nothing could be compared."""
        if self._comparing is None:
            return None
        try:
            return await asyncio.wait_for(self._comparing, self._patience)
        except TimeoutError:
            self._say(f"the trainer has written no log-probabilities within {self._patience:g} seconds")
            self._patience = 0.0
        except InfrastructureError as error:
            self._say(str(error))
        finally:
            self.cancel()
        return None

    def cancel(self) -> None:
        """Cancel a comparison that is under way."""
        if self._comparing is not None:
            self._comparing.cancel()
            self._comparing = None

    def keep(self, rollout_id: int, samples: Iterable[Sample]) -> None:
        """Remember a rollout that the trainer gets next. Of each sample no more stays than what is compared."""
        if not self.is_possible:
            return
        self._first = rollout_id if self._first is None else self._first
        weights = weights_of(rollout_id, self._first, self._settings.interval if self._asks else 1)
        found = {sample.index: window for sample in samples if (window := Window.of(sample)) is not None}
        if weights is not None and found:
            size = self._file.stat().st_size if self._file.exists() else 0
            self._before = _Before(rollout_id, weights, found, size)

    async def _compare(self, before: _Before) -> Gap | None:
        trained = await self._trained(before)
        gaps = await self._asked(before, trained) if self._asks else _recorded(before, trained)
        return Gap(before.rollout_id, math.fsum(gaps) / len(gaps), len(gaps)) if gaps else None

    async def _trained(self, before: _Before) -> list[TrainedSample]:
        """Read what the trainer has written of the rollout; what an overlapping one is still to write is waited for."""
        found, at = list[TrainedSample](), before.start
        while True:
            lines, at = await asyncio.to_thread(read_appended, self._file, at)
            found += [
                one
                for one in lines
                if (one.rollout_id, one.attempt) == (before.rollout_id, self._settings.attempt)
                and one.log_probs is not None
                and one.index in before.windows
            ]
            if found or not self._asks:
                return found
            await asyncio.sleep(LOOKED)

    async def _asked(self, before: _Before, trained: Sequence[TrainedSample]) -> list[float]:
        """Return the distances from what each engine says of one sample or more. Raises `InfrastructureError`."""
        settings = RolloutSettings.from_args(self._args)
        engines, gaps = await engine_urls(settings.engine_url), list[float]()
        for number in range(max(len(engines), min(SAMPLES, len(trained)))):
            sample, engine = trained[number % len(trained)], engines[number % len(engines)]
            window = before.windows[sample.index]
            async with EngineClient(engine, timeout=settings.time_budget / 2) as client:
                scores = await client.score(window.tokens.tolist(), window.places[0])
            if scores.weight_version != before.weights:
                raise InfrastructureError(
                    f"the engine at {engine} says that it has weights {scores.weight_version}, and the trainer has "
                    f"sent it {before.weights}. {CHECK}"
                )
            given = [scores.log_probs[place - window.places[0]] for place in window.places]
            gaps += [abs(a - b) for a, b in zip(_first(sample, window), given, strict=True) if not math.isnan(b)]
        return gaps

    def _say(self, why: str) -> None:
        if not self._silent:
            self._silent = True
            _log.warning("the trainer's log-probabilities are not compared with the engines' in each rollout: %s", why)


def _recorded(before: _Before, trained: Iterable[TrainedSample]) -> list[float]:
    """Return the distances from what the engines said when they sampled, of the tokens that these weights sampled."""
    found = ((sample, before.windows[sample.index]) for sample in trained)
    pairs = (pair for sample, window in found for pair in zip(_first(sample, window), window.sampled, strict=True))
    return [abs(ours - theirs) for ours, (theirs, version) in pairs if version == before.weights]


def _first(sample: TrainedSample, window: Window) -> Sequence[float]:
    """Return the trainer's log-probabilities of the compared tokens: it has one for each trained token, in order."""
    return (sample.log_probs or [])[: len(window.places)]


def weights_of(rollout_id: int, first: int, interval: int) -> str | None:
    """Return SLiME's number of the weights that engines have while a rollout is trained, in a process whose first
    rollout is `first`, and which updates them after each rollout whose number, counted from 1, `interval` divides; None
    where the trainer has newer ones. Those of the start are 1.
    """
    if rollout_id != first and rollout_id % interval:
        return None
    return str(1 + rollout_id // interval - first // interval)
