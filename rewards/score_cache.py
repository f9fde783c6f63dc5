"""The scores that a run has given already. A policy writes the same patch for a task again and again, most of all when
it has learned the task: where the score is a function of task, patch and grader, it is graded once.

The oracle says whether it is (`Oracle.deterministic`), and a run checks what it says. A solved patch is graded a second
time when it comes again, and its other repetitions wait for that; one in `CHECKED` of all repetitions is graded too.
Where two scores differ, `score_changed` is in the evidence and in the metrics, the log says so, the score given last
counts, and nothing of this task is taken from the cache any more. So no patch is rewarded twice for one stroke of
luck, and each score was given to that very patch by the grader, in a sandbox of its own.

Never kept: a score that a time-out decided, since the load of the machine may have, and a failure of the grader.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable
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
    """The repetitions of one event loop, and the tasks of which a score has changed."""

    count: int = 0
    doubtful: set[str] = field(default_factory=set)


async def score_of(task: Task, patch: str, sandboxes: Sandboxes, sandbox: str, settings: GradingSettings) -> Score:
    """Grade a patch, or return the score that it was given before. sandbox: the backend's name, as of `sandboxes`.
    Raises what `grade` raises."""
    seen = await opened_once("repeated gradings", lambda: contextlib.nullcontext(_Repetitions()))
    if not task.oracle.deterministic or task.id in seen.doubtful:
        return await grade(task, patch, sandboxes, settings)

    async def fresh() -> Score:
        return await grade(task, patch, sandboxes, settings)

    decides = orjson.dumps([metadata_of(task), patch.encode("utf-8", "replace").hex(), sandbox, settings])
    key = hashlib.sha256(decides).digest()
    known, own = await _once("scores", key, fresh)
    if own:
        return known
    seen.count += 1
    again, checked = known, seen.count % CHECKED == 0
    if known.solved:
        again, own = await _once("second scores", key, fresh)
    if checked and not own:
        again, own = await fresh(), True
    if not _is_kept(again) or _verdict(again) == _verdict(known):
        return again if own else _noted(again, KEPT)
    if task.id not in seen.doubtful:
        seen.doubtful.add(task.id)
        _log.warning(
            "two gradings of one patch of task %s differ (%s, then %s): its scores are graded one by one from now on",
            task.id,
            known.evidence.get("outcome"),
            again.evidence.get("outcome"),
        )
    return _noted(again, CHANGED) if own else await fresh()


async def _once(kind: str, key: bytes, fresh: Callable[[], Awaitable[Score]]) -> tuple[Score, bool]:
    """Return the score of this kind, and whether it was graded for this caller. Those that come meanwhile wait for it;
    if it is not kept, each is graded by itself."""
    own = False

    async def make() -> Score:
        nonlocal own
        own = True
        return await fresh()

    score = await cached(kind, key, make, keep=_is_kept, most=MOST_SCORES)
    return (score, own) if own or _is_kept(score) else (await fresh(), True)


def _is_kept(score: Score) -> bool:
    return score.evidence.get("outcome") != "timeout"


def _verdict(score: Score) -> tuple[object, ...]:
    return score.solved, score.value, score.components, score.evidence.get("outcome"), score.evidence.get("tests")


def _noted(score: Score, what: str) -> Score:
    return msgspec.structs.replace(score, evidence=score.evidence | {what: True})
