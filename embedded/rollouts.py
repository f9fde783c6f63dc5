"""One rollout: play the groups of a step through the generate, reward and filter hooks, as SLiME's own loop does.

The one difference: groups are taken in the order in which they were submitted, not in which they finished, so that a
run is a function of its seed.
"""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from slime_swe.embedded.hooks import Hooks
from slime_swe.errors import UserError
from slime_swe.sample import Sample

T = TypeVar("T")
Group = list[Sample] | list[list[Sample]] | list[Sample | list[Sample]]
MAX_ROUNDS = 50  # of sampling for one rollout, before a filter that rejects everything is called an error


class FilterError(UserError):
    """The group filter rejects (nearly) everything, so that no batch can be filled."""


@dataclass
class Rollout:
    """What one step's sampling gave. `kept` is trained on; `played` is everything that was sampled for it."""

    kept: list[Group] = field(default_factory=list)
    played: list[Group] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    reward_seconds: float = 0.0  # summed over episodes, which run concurrently


class Player:
    """Plays episodes through the hooks, at most `sglang_server_concurrency` at once."""

    def __init__(self, args: Namespace, hooks: Hooks) -> None:
        self.args = args
        self.hooks = hooks
        self.reward_seconds = 0.0
        self._slots = asyncio.Semaphore(args.sglang_server_concurrency)

    async def collect(self, data_source: Any) -> Rollout:
        """Sample until `rollout_batch_size` groups passed the filter; more are sampled only where too few are left."""
        target, rollout = self.args.rollout_batch_size, Rollout()
        remaining = 0
        for _ in range(MAX_ROUNDS):
            submitted: list[list[Sample]] = []
            while remaining < target:
                fetched = data_source.get_samples(self.args.over_sampling_batch_size)
                submitted += fetched
                remaining += len(fetched)
            groups = await gather(self.play_group(group) for group in submitted)
            rollout.played += groups
            for group in groups:
                reason = self._drop_reason(group, remaining, target)
                if reason is not None:
                    rollout.dropped[reason] += 1
                    remaining -= 1
                elif len(rollout.kept) < target:
                    rollout.kept.append(group)
            if len(rollout.kept) == target:
                rollout.reward_seconds, self.reward_seconds = self.reward_seconds, 0.0
                return rollout
        raise FilterError(
            f"{self.args.dynamic_sampling_filter_path} kept {len(rollout.kept)} of {len(rollout.played)} groups, and "
            f"{target} are needed: choose tasks that the policy sometimes solves, or leave the filter out"
        )

    async def play_group(self, group: Sequence[Sample]) -> Group:
        params = sampling_params(self.args)
        return await gather(
            self.play(sample, seeded(self.args, params, place), evaluation=False) for place, sample in enumerate(group)
        )

    async def play(self, sample: Sample, params: dict[str, Any], *, evaluation: bool) -> Sample | list[Sample]:
        """Generate one episode, then score it unless it was aborted."""
        extra = {"evaluation": evaluation} if self.hooks.generate_takes_evaluation else {}
        async with self._slots:
            played: Sample | list[Sample] = await self.hooks.generate(self.args, sample, params, **extra)
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

    def _drop_reason(self, group: Group, remaining: int, target: int) -> str | None:
        if self.hooks.group_filter is None:
            return None
        verdict = self.hooks.group_filter(self.args, group)
        if not hasattr(verdict, "keep"):  # a bare truth value, as older filters return
            return None if verdict else "unnamed"
        insufficient = verdict.keep_when_insufficient and remaining <= target
        return None if verdict.keep or insufficient else str(verdict.reason or "unnamed")


def sampling_params(args: Namespace) -> dict[str, Any]:
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


def seeded(args: Namespace, params: dict[str, Any], place: int) -> dict[str, Any]:
    """A copy for the sample at `place` of its group, with a seed of its own where sampling is deterministic."""
    seed = {"sampling_seed": args.rollout_seed + place} if args.sglang_enable_deterministic_inference else {}
    return params | seed


def flatten(groups: Iterable[Any]) -> list[Sample]:
    """The samples of groups, fan-out siblings included, in order."""
    return [sample for item in groups for sample in (flatten(item) if isinstance(item, list) else [item])]


async def gather(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order; when one fails or the caller is cancelled, the rest is cancelled and awaited first."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
