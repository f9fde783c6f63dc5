"""The worth of an episode: its outcome, and components with declared weights, each of which is logged.

A component is a measure from 0 to 1 times its weight, added or taken off. Correctness dominates: no weights are
accepted with which an answer that is not solved could be worth more than one that is. Group filters see the outcome
alone, or where it is a degree the worth.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from slime_swe.errors import UserError, unknown
from slime_swe.fields import Argument, Meta
from slime_swe.rollout.records import EpisodeRecord, Record, Score
from slime_swe.sample import Sample

OVERLONG = ("overlong_tokens", "overlong_turns")  # have fields of their own: where each begins, and one weight
# Name of an error in the grading's log, for an answer that does not solve the task -> the exceptions that are one.
ERRORS: Mapping[str, tuple[str, ...]] = {
    "syntax": ("SyntaxError", "IndentationError", "TabError"),
    "type": ("TypeError",),
    "name": ("NameError", "UnboundLocalError"),
    "attribute": ("AttributeError",),
    "import": ("ImportError", "ModuleNotFoundError"),
}
ADDED = ("tests", "diff", "format")
TAKEN = (*OVERLONG, "repetition")
WEIGHTED = (*ADDED, "repetition", *ERRORS)  # what `reward.weights` may name
GAPS = {"plus_minus": 2.0, "binary": 1.0, "fraction": 1.0}  # between solved and not, without components
GRAM = 40  # tokens of a piece that counts as repeated, as in arXiv:2502.03373

_ERROR = re.compile(rf"\b({'|'.join(name for names in ERRORS.values() for name in names)})\b")
_KINDS = {exception: kind for kind, exceptions in ERRORS.items() for exception in exceptions}

Segments = Sequence[Sample] | Sequence[Record]


@dataclass(frozen=True)
class Composition:
    """The components of the reward, and what each is worth: `reward.*` of a recipe. Raises `UserError` for weights that
    are refused.

    overlong_tokens, overlong_turns: how long before its limit each penalty begins (0: none); overlong_penalty is the
    weight of both. given: weights of the other components, by name. last_mile: exponent of the share of passed tests.
    """

    max_context: Annotated[int, Argument("rollout_max_context_len"), Meta(ge=1)]
    max_turns: Annotated[int, Argument("swe_max_turns"), Meta(ge=1)]
    overlong_tokens: Annotated[int, Argument("swe_overlong_tokens"), Meta(ge=0)] = 0
    overlong_turns: Annotated[int, Argument("swe_overlong_turns"), Meta(ge=0)] = 0
    overlong_penalty: Annotated[float, Argument("swe_overlong_penalty"), Meta(ge=0)] = 1.0
    given: Annotated[dict[str, float], Argument("swe_reward_weights")] = field(default_factory=dict)
    last_mile: Annotated[float, Argument("swe_last_mile"), Meta(gt=0)] = 1.0
    mode: Annotated[str, Argument("swe_reward_mode")] = "plus_minus"

    def __post_init__(self) -> None:
        if wrong := "; ".join(wrong_weights(self.mode, self.weights)):
            raise UserError(f"reward.weights: {wrong}")

    @property
    def weights(self) -> dict[str, float]:
        """The weights of the components that are in use."""
        windows = dict(zip(OVERLONG, (self.overlong_tokens, self.overlong_turns), strict=True))
        return weights_in_use(self.given, windows, self.overlong_penalty)


def weights_in_use(given: Mapping[str, float], windows: Mapping[str, int], penalty: float) -> dict[str, float]:
    """Return the weights of components in use. windows: of the penalties for long episodes, in tokens and turns."""
    return {name: penalty for name, last in windows.items() if last} | {name: w for name, w in given.items() if w}


def wrong_weights(mode: str, weights: Mapping[str, float]) -> Iterator[str]:
    """Yield what is wrong with weights: names, numbers, or that they could make up for the outcome."""
    for name, weight in weights.items():
        if name not in (*WEIGHTED, *OVERLONG):
            yield unknown("component", name, WEIGHTED)
        elif not 0 <= weight < math.inf:
            yield f"{name}={weight} must be a finite number of at least 0"
    if (at_stake := stakes(weights)) >= GAPS.get(mode, math.inf):
        yield (
            f"what may be added to an answer that is not solved ({', '.join(ADDED)}) and taken off one that is "
            f"({', '.join(TAKEN)}) comes to {at_stake:g}, and must be less than {GAPS[mode]:g}, the gap between them "
            f"with reward.mode={mode}"
        )


def stakes(weights: Mapping[str, float]) -> float:
    """Return how much nearer components can bring an answer that is not solved to one that is."""
    return sum(weights.get(name, 0.0) for name in (*ADDED, *TAKEN))


def composed(score: Score, segments: Segments, episode: EpisodeRecord, settings: Composition) -> Score:
    """Return the score of an outcome with the components in its value and beside its other components.

    In mode `fraction` an answer that is not solved is worth its share to the power of `last_mile`, and less by what is
    at stake, so that components can't lift it above a solved one.
    """
    weights = settings.weights
    found = {
        name: (weight if name in ADDED else -weight) * MEASURES[name](score, segments, episode, settings)
        for name, weight in weights.items()
    }
    value = score.value
    if settings.mode == "fraction" and not score.solved and value > 0:
        value = value**settings.last_mile * (1 - stakes(weights))
    return msgspec.structs.replace(score, value=value + sum(found.values()), components=score.components | found)


def errors_in(log: str) -> list[str]:
    """Return the kinds of errors that a log names, sorted."""
    return sorted({_KINDS[exception] for exception in _ERROR.findall(log)})


Measure = Callable[[Score, Segments, EpisodeRecord, Composition], float]


def _tests(score: Score, segments: Segments, episode: EpisodeRecord, settings: Composition) -> float:
    """Return the share of tests that pass, to the power of `last_mile`; 0 unless a FAIL_TO_PASS test does."""
    passed = [*score.evidence.get("tests", {}).values()]
    if score.solved or not passed:
        return float(score.solved)
    return (sum(passed) / len(passed)) ** settings.last_mile if score.components.get("fail_to_pass") else 0.0


def _diff(score: Score, segments: Segments, episode: EpisodeRecord, settings: Composition) -> float:
    """Return the likeness to the gold patch, or 1 for a right answer, which needs none."""
    return 1.0 if score.solved else float(score.evidence.get("likeness", 0.0))


def _format(score: Score, segments: Segments, episode: EpisodeRecord, settings: Composition) -> float:
    """Return the share of turns without a malformed call."""
    turns = episode.turns
    return max(0.0, 1 - episode.counters.malformed_calls / turns) if turns else 0.0


def _overlong_tokens(score: Score, segments: Segments, episode: EpisodeRecord, settings: Composition) -> float:
    """Return DAPO's soft overlong punishment (arXiv:2503.14476) of the longest sequence."""
    longest = max(len(segment.tokens) for segment in segments)
    return _overlong(longest, settings.max_context, settings.overlong_tokens)


def _overlong_turns(score: Score, segments: Segments, episode: EpisodeRecord, settings: Composition) -> float:
    return _overlong(episode.turns, settings.max_turns, settings.overlong_turns)


def _overlong(size: int, limit: int, last: int) -> float:
    return min(1.0, max(0, size - (limit - last)) / last)


def _repetition(score: Score, segments: Segments, episode: EpisodeRecord, settings: Composition) -> float:
    """Return the share of the policy's pieces of `GRAM` tokens that it had said before in this episode."""
    pieces = [piece for segment in segments for piece in _pieces(segment)]
    return 1 - len({*pieces}) / len(pieces) if pieces else 0.0


def _pieces(segment: Sample | Record) -> Iterator[bytes]:
    """Yield every piece of each run of sampled tokens."""
    length = segment.response_length
    response = segment.tokens[len(segment.tokens) - length :]
    mask = segment.loss_mask if segment.loss_mask is not None else [1] * length
    start = 0
    for at in range(length + 1):
        if at < length and mask[at]:
            continue
        run = array("q", response[start:at])
        packed, size = run.tobytes(), run.itemsize
        yield from (packed[first * size : (first + GRAM) * size] for first in range(len(run) - GRAM + 1))
        start = at + 1


def _error(kind: str) -> Measure:
    """Make a measure of whether an answer that is not solved has made this error: 1 if so, else 0."""

    def measure(score: Score, segments: Segments, episode: EpisodeRecord, settings: Composition) -> float:
        return float(not score.solved and kind in score.evidence.get("errors", ()))

    return measure


MEASURES: Mapping[str, Measure] = {
    "tests": _tests,
    "diff": _diff,
    "format": _format,
    "overlong_tokens": _overlong_tokens,
    "overlong_turns": _overlong_turns,
    "repetition": _repetition,
    **{kind: _error(kind) for kind in ERRORS},
}
