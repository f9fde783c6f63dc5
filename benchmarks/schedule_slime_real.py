"""SLiME's own rollout loops on simulated machines: only what samples, grades and stops its engines is replaced.

Needs SLiME and its packages to be importable (`docs/slime_on_a_cpu.md`).
"""

from __future__ import annotations

import argparse
import functools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from slime.rollout import fully_async_rollout, sglang_rollout
from slime.utils.types import Sample

from benchmarks import schedule_slime
from benchmarks.schedule_slime import Hooks
from slime_swe.launch.plan.simulation import Ledger

HERE = "benchmarks.schedule_slime_real"


async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    done = await args.hooks.generate(sample.group_index, sample.index)
    sample.status = Sample.Status.COMPLETED if done else Sample.Status.ABORTED
    sample.response = "said" if done else ""
    return sample


async def reward(args: Any, sample: Sample) -> float:
    solved: float = await args.hooks.reward(sample.group_index, sample.index)
    return solved


def informative(args: Any, samples: list[Sample]) -> bool:
    return len({sample.reward for sample in samples}) > 1


class Source:
    """SLiME's data source: groups in order, those first that were put back. A sample's index is its place in it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._back: deque[list[Sample]] = deque()
        self._fresh = 0

    def get_samples(self, number: int) -> list[list[Sample]]:
        return [self._back.popleft() if self._back else self._new() for _ in range(number)]

    def add_samples(self, groups: list[list[Sample]]) -> None:
        self._back.extend(groups)

    def _new(self) -> list[Sample]:
        self._fresh += 1
        return [Sample(group_index=self._fresh - 1, index=member, prompt="") for member in range(self._size)]


async def slime_sync(ledger: Ledger, batch_size: int, steps: int) -> None:
    with simulated(ledger):
        await schedule_slime.slime_sync(ledger, batch_size, steps, RealSlime)


async def slime_fully_async(ledger: Ledger, batch_size: int, steps: int) -> None:
    with simulated(ledger):
        await schedule_slime.slime_fully_async(ledger, batch_size, steps, RealSlime)


class RealSlime:
    """`schedule_slime.Loops` by SLiME's own code."""

    def __init__(self, ledger: Ledger, batch_size: int) -> None:
        self._source = Source(ledger.size)
        self._args = _arguments(ledger, batch_size)
        self._args.hooks = Hooks(ledger, lambda: bool(sglang_rollout.GenerateState(self._args).aborted))
        self._worker = functools.cache(
            lambda: fully_async_rollout.AsyncRolloutWorker(self._args, self._source, concurrency=ledger.slots)
        )
        self._rollouts = 0

    async def rollout(self) -> list[int]:
        output, _ = await sglang_rollout.generate_rollout_async(self._args, self._rollouts, self._source.get_samples)
        self._rollouts += 1
        return _numbers(output.samples)

    async def worker(self) -> None:
        await self._worker()._loop()

    async def collect(self) -> list[int]:
        with mock.patch.object(fully_async_rollout, "_get_global_worker", lambda *_: self._worker()):
            groups = await fully_async_rollout._generate_rollout_async(self._args, self._rollouts, self._source)
        self._rollouts += 1
        return _numbers(groups)


@contextmanager
def simulated(ledger: Ledger) -> Iterator[None]:
    """SLiME's connections to its engines lead to the simulated ones."""

    async def workers(url: str) -> dict[str, list[dict[str, str]]]:
        return {"workers": [{"url": "simulated"}]}

    async def abort(urls: list[str]) -> None:
        ledger.engine.abort()

    def nothing(*_: Any, **__: Any) -> None:
        return None

    replaced: dict[str, Any] = {
        "load_tokenizer": nothing,
        "load_processor": nothing,
        "get": workers,
        "abort_servers_until_idle": abort,
        "tqdm": functools.partial(sglang_rollout.tqdm, disable=True),
    }
    with mock.patch.multiple(sglang_rollout, **replaced):
        sglang_rollout.GenerateState.clear_instances()
        try:
            yield
        finally:
            sglang_rollout.GenerateState.clear_instances()


def _arguments(ledger: Ledger, batch_size: int) -> argparse.Namespace:
    return argparse.Namespace(
        rollout_global_dataset=True,
        rollout_batch_size=batch_size,
        over_sampling_batch_size=batch_size,
        n_samples_per_prompt=ledger.size,
        sglang_server_concurrency=ledger.slots,
        rollout_num_engines=1,
        sglang_dp_size=1,
        sglang_router_ip="simulated",
        sglang_router_port=0,
        hf_checkpoint="",
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=1,
        rollout_stop=None,
        rollout_stop_token_ids=None,
        rollout_skip_special_tokens=False,
        partial_rollout=False,
        mask_offpolicy_in_partial_rollout=False,
        group_rm=False,
        custom_generate_function_path=f"{HERE}.generate",
        custom_rm_path=f"{HERE}.reward",
        dynamic_sampling_filter_path=f"{HERE}.informative",
        rollout_sample_filter_path=None,
        rollout_all_samples_process_path=None,
    )


def _numbers(groups: list[list[Sample]]) -> list[int]:
    return sorted(group[0].group_index for group in groups)
