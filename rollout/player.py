"""`Player`: plays episodes through the generate and reward hooks, as many at once as the engines take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.sample import Sample

T = TypeVar("T")
Group = list[Sample | list[Sample]]


class Player:
    """slots: of episodes. reward_seconds: summed over episodes, which run concurrently."""

    def __init__(self, args: Any, hooks: RolloutHooks) -> None:
        self.args = args
        self.hooks = hooks
        self.slots = args.sglang_server_concurrency * _engines(args)
        self.reward_seconds = 0.0
        self._free = asyncio.Semaphore(self.slots)

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
        async with self._free:
            if not may_begin():
                return []
            played: Sample | list[Sample] = await self.hooks.generate(self.args, sample, params, **extra)
        on_free()
        segments = played if isinstance(played, list) else [played]
        if any(segment.status == Sample.Status.ABORTED for segment in segments):
            return played
        unscored = [segment for segment in segments if segment.reward is None]
        if unscored:
            started = time.perf_counter()
            await self._score(played, unscored)
            self.reward_seconds += time.perf_counter() - started
        return played

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
