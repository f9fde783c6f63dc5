"""Run one agent on one task in a fresh sandbox, and make an `Episode` of whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import perf_counter, time
from typing import Any

from slime_swe.data_sources.task import Task
from slime_swe.rollout.agents.base import Agent, AgentError
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.episode import Episode, EpisodeStatistics, StopReason, Timings
from slime_swe.rollout.replies import EngineAborted, EngineError
from slime_swe.rollout.sandbox.base import SandboxError, Sandboxes
from slime_swe.rollout.session import Session


async def run_episode(
    agent: Agent,
    task: Task,
    sandboxes: Sandboxes,
    sampling: Sampling,
    *,
    time_budget: float,
    wall_time_budget: float = 0.0,
) -> Episode:
    """Never raises for a failure of the policy, the engine or the sandbox: these become the episode's stop reason.

    `time_budget` (seconds) starts when the sandbox is open, and does not run while the engine samples. Both waits
    depend on the load of the run, not on the policy. `wall_time_budget` runs on meanwhile, and bounds how long a batch
    waits for one episode; 0 is no bound.
    """
    started, began = perf_counter(), time()
    session, statistics = Session(), EpisodeStatistics()
    patch, detail = "", ""
    try:
        where = task.workspace
        async with sandboxes.open(where.files, agent.limits, where.image, agent.layers) as sandbox:
            statistics.sandbox_seconds += perf_counter() - started
            run = agent.run(task, sandbox, session, sampling, statistics)
            reason = await _within(time_budget, wall_time_budget, statistics, run)
            with statistics.sandbox_time():
                patch = await sandbox.diff()
    except EngineError as error:
        reason, detail = StopReason.ENGINE_ERROR, str(error)
        statistics.engine_aborted = isinstance(error, EngineAborted)
    except AgentError as error:
        reason, detail = StopReason.AGENT_ERROR, str(error)
    except SandboxError as error:
        reason, detail = StopReason.SANDBOX_ERROR, str(error)
    if statistics.edits and statistics.first_edit_patch is None:
        statistics.first_edit_patch = patch
    timings = Timings(perf_counter() - started, statistics.engine_seconds, statistics.sandbox_seconds, began)
    return Episode(task.id, session.segments(), patch, reason, detail, statistics.turns, timings, statistics.counters())


async def _within(
    seconds: float, wall_seconds: float, statistics: EpisodeStatistics, run: Coroutine[Any, Any, StopReason]
) -> StopReason:
    limit, wall = asyncio.timeout(seconds), asyncio.timeout(wall_seconds or None)
    statistics.budget = limit
    try:
        async with wall, limit:
            return await run
    except TimeoutError:
        if not (limit.expired() or wall.expired()):
            raise  # not ours: a bug, not the end of the budget
        return StopReason.TIME_BUDGET
