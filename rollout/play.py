"""Play one episode: an agent on a task in a fresh sandbox, and then its grading.

`run_episode` makes an `Episode` of whatever happens to the agent. `Player` plays through the generate and reward hooks,
as many episodes at once as the engines' caches hold, and is the one place where what infrastructure breaks is tried
again: the hooks try once.

- An episode is tried `rollout.max_attempts` times, and once it is finished, its grading alone as often. With more than
  one, both are tried on in a group as `_is_tried_on` says.
- Its record counts the attempts before the one that it is of, by what broke them (`counters.broken_attempts`).
- Between two tries there is a pause (`scheduling.outage.pause`). During an outage they begin one by one until it ends,
  or has lasted so long that it ends the run.
- A group with too few sound episodes is put off by `collect.Driver`, and what is not sound in it tried once more then.
- Within a try the client goes on with a reply that has begun, or asks again where there is none (`EngineClient`,
  `EndpointClient`: `attempts`). `counters.engine_retries` has the causes.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar

from slime_swe.data_sources.task import Task
from slime_swe.errors import InfrastructureError
from slime_swe.fields import Argument, Meta, read_arguments
from slime_swe.rollout.agents.base import Agent, AgentError
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.episode import Episode, EpisodeStatistics, Session, StopReason, Timings
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.records import episode_of, failure_of, is_broken, write_broken_attempts, write_failure
from slime_swe.rollout.replies import EngineError
from slime_swe.rollout.scheduling.admission import Admission, bounds
from slime_swe.rollout.scheduling.outage import Outage, Outages, pause
from slime_swe.sample import Sample
from slime_swe.sandbox.base import SandboxError, Sandboxes

LEAST_SOUND = 2  # episodes of a group that have a baseline

_log = logging.getLogger(__name__)
T = TypeVar("T")
Played = Sample | list[Sample]  # siblings where an episode fans out
Group = list[Played]


async def run_episode(
    agent: Agent,
    task: Task,
    sandboxes: Sandboxes,
    sampling: Sampling,
    *,
    time_budget: float,
    wall_time_budget: float = 0.0,
) -> Episode:
    """Run one agent on one task in a fresh sandbox. A failure of the policy, the engine or the sandbox is not raised:
    it becomes the episode's stop reason.

    `time_budget` (seconds) starts when the sandbox is open, and does not run while the engine samples. Both waits
    depend on the load of the run, not on the policy. `wall_time_budget` runs on meanwhile, and bounds how long a batch
    waits for one episode; 0 is no bound.
    """
    started, began = time.perf_counter(), time.time()
    session, statistics = Session(), EpisodeStatistics()
    patch, detail = "", ""
    try:
        where = task.workspace
        async with sandboxes.open(where.files, agent.limits, where.image, agent.layers) as sandbox:
            statistics.sandbox_seconds += time.perf_counter() - started
            run = agent.run(task, sandbox, session, sampling, statistics)
            reason = await _within(time_budget, wall_time_budget, statistics, run)
            with statistics.sandbox_time():
                patch = await sandbox.diff()
    except EngineError as error:
        reason, detail = StopReason.ENGINE_ERROR, str(error)
    except AgentError as error:
        reason, detail = StopReason.AGENT_ERROR, str(error)
    except SandboxError as error:
        reason, detail = StopReason.SANDBOX_ERROR, str(error)
    if statistics.edits and statistics.first_edit_patch is None:
        statistics.first_edit_patch = patch
    timings = Timings(time.perf_counter() - started, statistics.engine_seconds, statistics.sandbox_seconds, began)
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
    finally:
        statistics.budget = None  # a model call of the agent's program may end later


@dataclass(eq=False)
class Play:
    """An episode that is to be played, and what there is of it.

    sample: as the data source gave it. finished: what the generate hook made of it, which is kept until it is graded.
    sound: the same, graded. causes: what broke each try at it or at its grading. tries: how many of these broke since
    it is finished, if it is; during an outage those of its group's others count while it waits for its turn (`waits`).
    broken_since: when the first of them broke, in the loop's time.
    """

    sample: Sample
    finished: Played | None = None
    sound: Played | None = None
    causes: list[str] = field(default_factory=list)
    tries: int = 0
    broken_since: float = math.inf
    waits: bool = False
    gave_up: bool = False  # where its group had too few sound episodes


@dataclass(frozen=True)
class _Settings:
    max_attempts: Annotated[int, Argument("swe_max_attempts"), Meta(ge=1)]
    outage_limit: Annotated[float, Argument("swe_outage_limit"), Meta(gt=0)] = 3600.0  # seconds


class Player:
    """Plays episodes, and grades them, through a run's hooks. Use in one event loop.

    reward_seconds: the sum over episodes, which run concurrently. admitted: how many episodes are played at once when
    it begins; 0: as many as the engines' caches hold by the plan. outages: those of what plays episodes and of what
    grades them, where another player has noticed them too."""

    def __init__(self, args: Any, hooks: RolloutHooks, admitted: int = 0, outages: Outages | None = None) -> None:
        self.args = args
        self.hooks = hooks
        settings = read_arguments(_Settings, args)
        self.max_attempts = settings.max_attempts
        self.outages = outages or Outages.within(settings.outage_limit)
        cached = getattr(args, "swe_cached_episodes", 0.0)
        planned = bounds(args.sglang_server_concurrency, cached, _engines(args))
        self.admission = Admission(replace(planned, start=admitted or planned.start))
        self.reward_seconds = 0.0
        self._waiting = deque[asyncio.Future[None]]()
        self._in_use: dict[asyncio.Future[None], int] = {}  # of each that has a slot, the most that had one meanwhile

    @property
    def slots(self) -> int:
        """The number of episodes that are admitted now."""
        return self.admission.limit

    async def play_group(self, group: Sequence[Play], on_free: Callable[[], None] = lambda: None) -> Group:
        """Play a group and return its episodes; those that fan out are lists of siblings. on_free: called for each that
        needs its slot no more.

        That is before it is scored, so slots may be free for another group long before this one ends.
        """
        params = sampling_params(self.args)
        for each in group:
            each.gave_up = False
        return await gather(
            self.play(each, seeded(self.args, params, place), on_free, evaluation=False, group=group)
            for place, each in enumerate(group)
        )

    async def play(
        self,
        play: Play,
        params: dict[str, Any],
        on_free: Callable[[], None] = lambda: None,
        *,
        evaluation: bool,
        group: Sequence[Play] = (),
        may_begin: Callable[[], bool] = lambda: True,
    ) -> Played:
        """Generate one episode, then score it unless it was aborted. One that may not begin, once there is a slot for
        it, has no samples; one that may not begin again is left broken.

        What infrastructure breaks is tried again after a pause, as `_is_tried_on` says; of an episode that is finished
        only the grading. What is sound is not played again, nor graded. Raises `InfrastructureError` where
        an outage lasts too long.
        """
        if play.sound is not None:
            return play.sound
        played: Played = []
        while True:
            await self._turn(play, group)
            if played and play.tries and any(each.gave_up for each in group):
                break
            if play.finished is None:
                made = await self._generated(play, params, evaluation, group, may_begin)
                if made == []:
                    break
                played = made
                if not is_broken(_segments(played)):
                    play.finished, play.tries, play.broken_since = played, 0, math.inf
                    on_free()
                    continue
            else:
                played = await self._tried(play, self._scored(play.finished), evaluation, group)
                if not is_broken(_segments(played)):
                    play.sound = played
                    break
            if not self._is_tried_on(play, group):
                break
            await asyncio.sleep(pause(play.tries))
        if play.finished is None:
            on_free()
        broken = is_broken(_segments(played))
        write_broken_attempts(_segments(played), play.causes[:-1] if broken else play.causes)
        return played

    def _is_tried_on(self, play: Play, group: Sequence[Play]) -> bool:
        """Say whether an episode that was broken again is tried again.

        It is `max_attempts` times. With 1 that is all. Else it is in a group as long as others are tried less. Then,
        where the group has too few finished episodes for a baseline, all give up. Where it has enough, an episode is
        tried on until a try of any other that began later is sound: infrastructure works then, and this one is what
        can't be played. One of an evaluation, which has no group and is not put off, is tried on during an outage.
        Since nothing else may be tried, both are for half of the time after which an outage ends the run.
        """
        if self.max_attempts == 1:
            return False
        if not all(each.sound is not None or each.tries >= self.max_attempts for each in (play, *group)):
            return True
        if group and sum(each.finished is not None for each in group) < LEAST_SOUND:
            play.gave_up = True
            return False
        outage, now = self.outages.of(graded=play.finished is not None), _now()
        may_pass = outage.sound_since < play.broken_since if group else outage.is_on(now)
        return may_pass and now - play.broken_since < outage.limit / 2

    async def _generated(
        self,
        play: Play,
        params: dict[str, Any],
        evaluation: bool,
        group: Sequence[Play],
        may_begin: Callable[[], bool],
    ) -> Played:
        extra = {"evaluation": evaluation} if self.hooks.generate_takes_evaluation else {}
        async with self._slot() as turn:
            if not may_begin():
                return []
            sample = _copied(play.sample)
            sample.session_id = uuid.uuid4().hex  # by which SLiME's router keeps its model calls on one engine
            generating: Awaitable[Played] = self.hooks.generate(self.args, sample, params, **extra)
            played = await self._tried(play, generating, evaluation, group)
            self._adapt(_segments(played), self._in_use[turn])
        return played

    async def _scored(self, finished: Played) -> Played:
        """Return a copy of an episode with its score, ABORTED where a machine failed that grades it."""
        segments = [_copied(each) for each in _segments(finished)]
        unscored = [segment for segment in segments if segment.reward is None]
        played: Played = segments if isinstance(finished, list) else segments[0]
        if unscored:
            started = time.perf_counter()
            try:
                if isinstance(played, Sample):
                    played.reward = await self.hooks.reward(self.args, played)
                else:
                    rewards = await self.hooks.reward(self.args, unscored)
                    for segment, reward in zip(unscored, rewards, strict=True):
                        segment.reward = reward
            except InfrastructureError as error:
                for segment in segments:
                    write_failure(segment, "grader_error", str(error))
            self.reward_seconds += time.perf_counter() - started
        return played

    async def _tried(self, play: Play, playing: Awaitable[Played], evaluation: bool, group: Sequence[Play]) -> Played:
        """Await a try, and note how it ends."""
        graded, begun = play.finished is not None, _now()
        outage = self.outages.of(graded=graded)
        outage.begin(begun)
        try:
            played = await playing
        finally:
            outage.end(begun)
        why = ""
        if is_broken(_segments(played)):
            cause, detail = _failure(played)
            play.causes.append(cause)
            play.tries += 1
            play.broken_since = min(play.broken_since, _now())
            why = f"{cause}: {detail}"
            # Where most of a group is sound, what is not may be what can't be played: that tells of no outage.
            lost = sum(each.sound is not None for each in group) < LEAST_SOUND
            outage.broken((evaluation, play.sample.group_index) if lost else None, begun, _now(), why)
            for each in group:  # each would have broken too, and has to wait up to a minute for a turn of its own
                each.tries += each.waits and (each.finished is not None) == graded
        else:
            outage.sound(begun)
        self._say_outage(outage, graded, why)
        return played

    async def _turn(self, play: Play, group: Sequence[Play]) -> None:
        """Wait until a try may begin, or the group gives up."""
        graded = play.finished is not None
        outage = self.outages.of(graded=graded)
        play.waits = True
        while not any(each.gave_up for each in group) and (seconds := outage.wait(_now())):
            await asyncio.sleep(seconds)
            self._say_outage(outage, graded)
        play.waits = False

    def _say_outage(self, outage: Outage, graded: bool, why: str = "") -> None:
        """Log that an outage has begun, or ended."""
        what = "grading" if graded else "episode"
        if outage.is_on(_now()) and not outage.is_logged:
            outage.is_logged = True
            _log.warning("infrastructure breaks every %s that begins, so that few begin until one lasts: %s", what, why)
        elif not outage.is_on(_now()) and outage.is_logged:
            outage.is_logged = False
            _log.warning("infrastructure is there again: each %s begins as usual", what)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[asyncio.Future[None]]:
        """Hold a slot inside the context. Those who wait get theirs in order of arrival."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._let_in()
        try:
            await turn
            yield turn
        finally:
            self._in_use.pop(turn, None)
            self._let_in()

    def _let_in(self) -> None:
        """Give slots to those that wait, to as many as are admitted."""
        while self._waiting and len(self._in_use) < self.slots:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._in_use[turn] = 0
        if self.admission.bounds.adapts:
            for turn, most in self._in_use.items():
                self._in_use[turn] = max(most, len(self._in_use))

    def _adapt(self, segments: Sequence[Sample], in_use: int) -> None:
        """Admit as many as the engine's cache holds, by what it kept of this episode's prefixes and of others'."""
        episode, before = episode_of(segments[0]) if segments else None, self.slots
        if episode is None:
            return
        counters = episode.counters
        lost = self.admission.end(in_use=in_use, known=counters.known_tokens, lost=counters.lost_tokens)
        if self.slots < before:
            _log.warning(
                "the engines' caches hold fewer episodes: %d at once from now on, %d before; %.0f %% of the tokens of "
                "earlier prompts were lost from them, and computed again",
                *(self.slots, before, 100 * lost),
            )


def sampling_params(args: Any) -> dict[str, Any]:
    """Return the training rollout's sampling parameters, under SGLang's names."""
    return {
        "temperature": args.rollout_temperature,
        "top_p": args.rollout_top_p,
        "top_k": args.rollout_top_k,
        "max_new_tokens": args.rollout_max_response_len,
        "stop": args.rollout_stop,
        "stop_token_ids": args.rollout_stop_token_ids,
        "skip_special_tokens": args.rollout_skip_special_tokens,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }


def seeded(args: Any, params: dict[str, Any], place: int) -> dict[str, Any]:
    """Copy the parameters for the sample at `place` of its group, with its own seed where sampling is deterministic."""
    seed = {"sampling_seed": args.rollout_seed + place} if args.sglang_enable_deterministic_inference else {}
    return params | seed


def _now() -> float:
    return asyncio.get_running_loop().time()


def _segments(played: Played) -> list[Sample]:
    return played if isinstance(played, list) else [played]


def _failure(played: Played) -> tuple[str, str]:
    """Return what broke an episode: a name to count it by, and what was said."""
    failure = failure_of(_segments(played)[0])
    return (failure.where, failure.detail) if failure else ("unknown", "no reason given")


def _copied(sample: Sample) -> Sample:
    """Copy a sample so that what the hooks write into it is not in the other."""
    copied = copy.copy(sample)
    copied.metadata = dict(sample.metadata or {})
    return copied


async def gather(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return results in order. When one fails or the caller is cancelled, the rest is cancelled and awaited first."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_all(tasks)


async def end_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, and wait for it."""
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def _engines(args: Any) -> int:
    """Return how many engines share the episodes: SLiME's concurrency is that of one of them."""
    gpus = getattr(args, "rollout_num_gpus", None)
    return max(1, gpus // args.rollout_num_gpus_per_engine) if gpus else 1
