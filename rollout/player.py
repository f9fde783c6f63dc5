"""`Player`: plays episodes through the generate and reward hooks, as many at once as the engines' caches hold."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.records import episode_of
from slime_swe.rollout.scheduling.admission import Admission, bounds
from slime_swe.sample import Sample

_log = logging.getLogger(__name__)
T = TypeVar("T")
Group = list[Sample | list[Sample]]


class Player:
    """reward_seconds: summed over episodes, which run concurrently. admitted: episodes at once when it begins; 0: as
    many as the engines' caches hold by the plan."""

    def __init__(self, args: Any, hooks: RolloutHooks, admitted: int = 0) -> None:
        self.args = args
        self.hooks = hooks
        cached = getattr(args, "swe_cached_episodes", 0.0)
        planned = bounds(args.sglang_server_concurrency, cached, _engines(args))
        self.admission = Admission(replace(planned, start=admitted or planned.start))
        self.reward_seconds = 0.0
        self._waiting = deque[asyncio.Future[None]]()
        self._in_use: dict[asyncio.Future[None], int] = {}  # of each that has a slot, the most that had one meanwhile

    @property
    def slots(self) -> int:
        """Of episodes, as many as are admitted now."""
        return self.admission.limit

    async def play_group(self, group: Sequence[Sample], on_free: Callable[[], None] = lambda: None) -> Group:
        """Its episodes; those that fan out are lists of siblings. on_free: called for each that needs its slot no more.

        That is before it is scored, so slots may be free for another group long before this one ends.
        """
        params = sampling_params(self.args)
        return await gather(
            self.play(sample, seeded(self.args, params, place), on_free, evaluation=False)
            for place, sample in enumerate(group)
        )

    async def play(
        self,
        sample: Sample,
        params: dict[str, Any],
        on_free: Callable[[], None] = lambda: None,
        *,
        evaluation: bool,
        may_begin: Callable[[], bool] = lambda: True,
    ) -> Sample | list[Sample]:
        """Generate one episode, then score it unless it was aborted. One that may not begin, once there is a slot for
        it, has no samples."""
        extra = {"evaluation": evaluation} if self.hooks.generate_takes_evaluation else {}
        async with self._slot() as turn:
            if not may_begin():
                return []
            played: Sample | list[Sample] = await self.hooks.generate(self.args, sample, params, **extra)
            segments = played if isinstance(played, list) else [played]
            self._adapt(segments, self._in_use[turn])
        on_free()
        if any(segment.status == Sample.Status.ABORTED for segment in segments):
            return played
        unscored = [segment for segment in segments if segment.reward is None]
        if unscored:
            started = time.perf_counter()
            await self._score(played, unscored)
            self.reward_seconds += time.perf_counter() - started
        return played

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[asyncio.Future[None]]:
        """One of them inside the context, in order of arrival."""
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
        """Those that wait, as many as are admitted."""
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

    async def _score(self, played: Sample | list[Sample], unscored: list[Sample]) -> None:
        if isinstance(played, Sample):
            played.reward = await self.hooks.reward(self.args, played)
            return
        rewards = await self.hooks.reward(self.args, unscored)
        for segment, reward in zip(unscored, rewards, strict=True):
            segment.reward = reward


def sampling_params(args: Any) -> dict[str, Any]:
    """The training rollout's sampling parameters, under SGLang's names."""
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
    """A copy for the sample at `place` of its group, with a seed of its own where sampling is deterministic."""
    seed = {"sampling_seed": args.rollout_seed + place} if args.sglang_enable_deterministic_inference else {}
    return params | seed


async def gather(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; when one fails or the caller is cancelled, the rest is cancelled and awaited first."""
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
    """How many share the episodes: SLiME's concurrency is that of one of them."""
    gpus = getattr(args, "rollout_num_gpus", None)
    return max(1, gpus // args.rollout_num_gpus_per_engine) if gpus else 1
