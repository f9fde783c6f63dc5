"""The test files of the last tasks, as their eval scripts restore them: read once, for all patches of a task."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict

from rewards.swebench.evaluation import Evaluation, RestoredTests
from rollout.loop_scope import loop_scope

KEPT = 128  # tasks


async def restored_tests(evaluation: Evaluation) -> RestoredTests:
    """See `Evaluation.restored_tests`; the first caller's sandbox serves all."""
    scope = await loop_scope()
    kept = await scope.get("restored tests", lambda: contextlib.nullcontext(_Kept()))
    return await kept.of(evaluation)


class _Kept:
    def __init__(self) -> None:
        self._by_task: OrderedDict[tuple[str, str, tuple[str, ...]], asyncio.Future[RestoredTests]] = OrderedDict()

    async def of(self, evaluation: Evaluation) -> RestoredTests:
        key = (evaluation.image.name, evaluation.script, evaluation.oracle.protected)
        if key not in self._by_task:
            self._by_task[key] = asyncio.ensure_future(evaluation.restored_tests())
            while len(self._by_task) > KEPT:
                self._by_task.popitem(last=False)
        self._by_task.move_to_end(key)
        try:
            return await asyncio.shield(self._by_task[key])  # a cancelled caller must not break the others
        except BaseException:
            failed = self._by_task.get(key)
            if failed is not None and failed.done():
                del self._by_task[key]  # a failure is not remembered
            raise
