"""Grade a step by how far its calls agree with those that a solved episode made there (PivotRL, arXiv:2603.21383).

Two calls agree where they are interchangeable: tool and names of arguments are the same, and so is every value that is
no text of several words, such as a path or a line. Texts of several words, such as commands and edits, agree as far as
they have words and signs in common, from half of them on. What agrees wholly but for white space solves the step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from slime_swe.data_sources.steps import ANSWER, Call, StepOracle, read_calls
from slime_swe.data_sources.task import Task
from slime_swe.rewards.grade import GradingSettings, Trial, answer_in
from slime_swe.sandbox.base import Sandboxes

MOST_CHARACTERS = 200_000  # of an answer
LEAST_ALIKE = 0.5  # F1 of the words in common from which on texts agree at all
_WORD = re.compile(r"\w+|[^\w\s]")


def agreement(said: Sequence[Call], made: Sequence[Call]) -> float:
    """Return how far calls agree with those that were made, in order, 0 to 1: their mean; 0 of another number."""
    if len(said) != len(made) or not made:
        return 0.0
    return sum(_alike(one, other) for one, other in zip(said, made, strict=True)) / len(made)


def _alike(said: Call, made: Call) -> float:
    if said.name != made.name or said.arguments.keys() != made.arguments.keys():
        return 0.0
    values = [_same(said.arguments[key], value) for key, value in made.arguments.items()]
    return 0.0 if 0.0 in values else sum(values) / len(values) if values else 1.0


def _same(said: Any, made: Any) -> float:
    if said == made and type(said) is type(made):
        return 1.0
    if not (isinstance(said, str) and isinstance(made, str)):
        return 0.0
    if said.split() == made.split():
        return 1.0
    if len(made.split()) < 2:
        return 0.0
    ours, theirs = Counter(_WORD.findall(said)), Counter(_WORD.findall(made))
    f1 = 2 * (ours & theirs).total() / max(1, ours.total() + theirs.total())
    return max(0.0, (f1 - LEAST_ALIKE) / (1 - LEAST_ALIKE)) * 0.99  # other words are never wholly the same


async def try_patch(task: Task, patch: str, sandboxes: Sandboxes, settings: GradingSettings) -> Trial:
    """Grade the calls that a patch leaves. Nothing runs: no sandbox is opened. Raises `PatchError`."""
    oracle = task.oracle
    assert isinstance(oracle, StepOracle), oracle
    text = await answer_in(task, patch, ANSWER)
    if text is None or len(text) > MOST_CHARACTERS:
        return _trial(oracle, 0.0, f"there is no {ANSWER} of at most {MOST_CHARACTERS} characters")
    try:
        said = read_calls(text)
    except ValueError as error:
        return _trial(oracle, 0.0, f"{ANSWER} has no calls: {error}")
    made = read_calls(oracle.calls)
    return _trial(oracle, agreement(said, made), f"said: {text[:2000]}\nmade: {oracle.calls[:2000]}")


def _trial(oracle: StepOracle, quality: float, log: str) -> Trial:
    solved = quality == 1.0
    return Trial(
        dict.fromkeys(oracle.fail_to_pass, solved), solved, log, quality=quality, components={"agreement": quality}
    )
