"""The checks of a rehearsal: a function each, from what the rehearsal left behind to a figure and its limit.

Adding one is a function in a file here, and its name in `CHECKS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module

from slime_swe.launch.rehearse.evidence import Evidence


@dataclass(frozen=True)
class Check:
    """The outcome of a check.

    ok: None where the rehearsal could not make it; `look_at` says why. value: what was found. limit: the most that it
    may be, or the least where `Measured.at_least`. look_at: where a fault would be.
    """

    name: str
    ok: bool | None
    value: float | None
    limit: float | None
    look_at: str


@dataclass(frozen=True)
class Measured:
    """The figure that a check found: it is ok where it is not above the limit, or not below it with `at_least`."""

    value: float
    limit: float
    at_least: bool = False

    @property
    def ok(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit  # of no number neither


def worst(values: Iterable[float]) -> float:
    """Return the largest value, or the first that is no finite number, which `max` may drop: no comparison with NaN
    holds. It is infinity where there is none: a check of nothing has not passed."""
    found = list(values)
    return next((value for value in found if not math.isfinite(value)), max(found, default=math.inf))


class NotMadeError(Exception):
    """There is nothing to check in this recipe's run: the message says why. A log that does not say what it should is a
    fault."""


BROKEN = (LookupError, ValueError, RuntimeError, OSError)
"""What a check raises of evidence that does not fit together, tensors of other shapes and missing files among it. The
others of the run are made all the same."""

Function = Callable[[Evidence], Measured]
_PACKAGE = "slime_swe.launch.rehearse.checks"
CHECKS = {  # name -> function, and where to look where it fails
    "log_probabilities": (
        "samples.before_updates",
        "trainer and server compute otherwise: model.config against the checkpoint, --rotary-base, the temperature",
    ),
    "served_weights": (
        "samples.after_updates",
        "what arrives is not what was trained: SLiME's weight conversion and update for this family",
    ),
    "weight_versions": (
        "samples.versions",
        "tokens have weights that the schedule does not allow: rollout.max_staleness, SLiME's weight updates",
    ),
    "layout_log_probabilities": (
        "training.layout_log_probabilities",
        "the layout: tp, cp, ep and sequence parallelism",
    ),
    "layout_loss": ("training.layout_loss", "the split over data- and context-parallel ranks, and denominators"),
    "layout_gradient_norm": ("training.layout_gradient_norm", "gradients that a parallel group does not add up"),
    "layout_weights": (
        "training.layout_weights",
        "gradients that a parallel group does not add up, or the optimizer's shards",
    ),
    "moved_weights": ("training.moved", "a layer that is not trained, or whose weights are not exported"),
    "experts": ("samples.tables", "--enable-return-routed-experts, the router, overlap scheduling"),
    "routing_replay": ("samples.replayed", "--use-rollout-routing-replay, and the tables in the samples"),
    "rewards": ("samples.rewards", "reward.function, or samples that have each other's episodes"),
    "advantages": ("samples.advantages", "algorithm.post_process: groups and trajectories"),
    "masks": ("samples.masks", "rollout.generate: which tokens the policy sampled"),
    "denominators": ("samples.denominators", "rollout_mask_sums, micro-batches and batch sizes in SLiME's schedule"),
    "loss": ("training.loss", "algorithm.reduction, and the loss that SLiME computes of these samples"),
    "arguments": ("training.arguments", "a flag that is lost in rendering, or that SLiME changes"),
    "end_tokens": ("samples.ends", "eos_token_id of config.json and generation_config.json against the chat template"),
    "vocabulary": ("samples.vocabulary", "--make-vocab-size-divisible-by: rows that pad take part in each softmax"),
    "conversion": ("training.conversion", "SLiME's converters for this family"),
    "export": ("training.export", "--save-hf against the checkpoint of the same step"),
    "resume_log_probabilities": ("training.resumed_log_probabilities", "the checkpoint: weights"),
    "resume_weights": ("training.resumed_weights", "the checkpoint: the optimizer's states and schedule"),
    "resume_steps": ("training.resumed_steps", "where a resumed run goes on"),
    "memory": ("training.memory", "the planner's parameters of one rank: recipes/families, recipes/layers"),
}

WITHOUT_ROLLOUTS = (  # those that batches of random tokens can be checked with
    *("log_probabilities", "layout_log_probabilities", "layout_loss", "layout_gradient_norm", "layout_weights"),
    *("moved_weights", "denominators", "loss", "arguments", "vocabulary", "conversion", "export"),
    *("resume_log_probabilities", "resume_weights", "resume_steps", "memory"),
)


def run_checks(evidence: Evidence) -> Iterator[Check]:
    """Run every check, in order."""
    return (run_check(name, evidence) for name in CHECKS)


def run_check(name: str, evidence: Evidence) -> Check:
    """Run one check. A check that can't be made says why; one that ends in an error has failed, and names it."""
    if "rollouts" in evidence.skipped and name not in WITHOUT_ROLLOUTS:
        return Check(name, None, None, None, evidence.skipped["rollouts"])
    path, look_at = CHECKS[name]
    module, _, function = path.rpartition(".")
    measure: Function = getattr(import_module(f"{_PACKAGE}.{module}"), function)
    try:
        found = measure(evidence)
    except NotMadeError as error:
        return Check(name, None, None, None, str(error))
    except BROKEN as error:
        return Check(name, False, math.inf, None, f"{type(error).__name__}: {error}; {look_at}")
    return Check(name, found.ok, found.value, found.limit, look_at)
