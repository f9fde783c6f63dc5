"""The scores that a run has given already. A policy writes the same patch for a task again and again, most of all when
it has learned the task: where the score is a function of task, patch and grader, it is graded once.

The oracle says whether it is (`Oracle.deterministic`), and a run checks what it says. A repetition of a solved patch is
graded the first time it comes, and one in `CHECKED` of all others. Where the two scores differ, `score_changed` is in
the evidence and in the metrics, the log says so, the score that was given last counts, and nothing of this task is
taken from the cache any more. So no patch is rewarded twice for one stroke of luck, and each score was given to that
very patch by the grader, in a sandbox of its own.

Never kept: a score that a time-out decided, since the load of the machine may have, and a failure of the grader.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import orjson

from slime_swe.data_sources.slime_plugin import metadata_of
from slime_swe.data_sources.task import Task
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rewards.shared import cached
from slime_swe.rollout.loop_scope import opened_once
from slime_swe.rollout.records import Score
from slime_swe.sandbox.base import Sandboxes

CHECKED = 32  # repetitions, of which one is graded again
MOST_SCORES = 8192  # that are kept, each with the end of its log
KEPT, CHANGED = "score_kept", "score_changed"  # in the evidence of a score that was not graded for this episode alone

_log = logging.getLogger(__name__)


@dataclass
class _Repetitions:
    """The repetitions of one event loop. asked: how often, by key. doubtful: tasks of which a score has changed."""

    asked: Counter[bytes] = field(default_factory=Counter)
    repeated: int = 0
    doubtful: set[str] = field(default_factory=set)

    def is_checked(self, key: bytes, solved: bool) -> bool:
        """Say whether this repetition is graded again."""
        self.asked[key] += 1
        self.repeated += 1
        return (solved and self.asked[key] == 1) or self.repeated % CHECKED == 0


async def score_of(task: Task, patch: str, sandboxes: Sandboxes, sandbox: str, settings: GradingSettings) -> Score:
    """Grade a patch, or return the score that it was given before. sandbox: the backend's name, as of `sandboxes`.
    Raises what `grade` raises."""
    seen = await opened_once("repeated gradings", lambda: contextlib.nullcontext(_Repetitions()))
    if not task.oracle.deterministic or task.id in seen.doubtful:
        return await grade(task, patch, sandboxes, settings)
    first = False

    async def make() -> Score:
        nonlocal first
        first = True
        return await grade(task, patch, sandboxes, settings)

    decides = orjson.dumps([metadata_of(task), patch.encode("utf-8", "replace").hex(), sandbox, settings])
    key = hashlib.sha256(decides).digest()
    known = await cached("scores", key, make, keep=_is_kept, most=MOST_SCORES)
    if first:
        return known
    if not seen.is_checked(key, known.solved):
        return _noted(known, KEPT)
    again = await grade(task, patch, sandboxes, settings)
    if not _is_kept(again) or _verdict(again) == _verdict(known):
        return again
    seen.doubtful.add(task.id)
    _log.warning(
        "two gradings of one patch of task %s differ (%s, then %s): its scores are graded one by one from now on",
        task.id,
        known.evidence.get("outcome"),
        again.evidence.get("outcome"),
    )
    return _noted(again, CHANGED)


def _is_kept(score: Score) -> bool:
    return score.evidence.get("outcome") != "timeout"


def _verdict(score: Score) -> tuple[object, ...]:
    return score.solved, score.value, score.components, score.evidence.get("outcome"), score.evidence.get("tests")


def _noted(score: Score, what: str) -> Score:
    return msgspec.structs.replace(score, evidence=score.evidence | {what: True})
