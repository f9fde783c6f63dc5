"""`Harness`: swebench in a process of its own, started when first needed and again if it dies.

swebench takes half a gigabyte and pins numpy and pandas, so training never imports it: the process may have an
interpreter and an environment of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from data_sources.arguments import ArgumentError
from rewards.score import GraderError
from rewards.swebench.process import HarnessProcess, ProcessDied
from rollout.loop_scope import loop_scope

ANSWER_SECONDS = 120.0  # for a log to be parsed; a log that takes longer is an attack on a regular expression
RUN_SECONDS = 600.0  # for the official harness, beyond the time that the tests may take
_WORKER = Path(__file__).with_name("worker.py")
_OF_THIS_INTERPRETER = ("PYTHONPATH", "PYTHONHOME")


async def harness_for(python: str = "") -> Harness:
    """The running loop's harness in this interpreter's, or in another's environment."""
    scope = await loop_scope()
    return await scope.get(("harness", python), lambda: Harness(python))


class Harness:
    """Asks the process. Belongs to one event loop; every call raises `GraderError` where the process fails twice.

    Calls raise `ArgumentError` where swebench is not there, or knows nothing of the instance's log parser.
    """

    def __init__(self, python: str = "") -> None:
        """`python`: an interpreter that has swebench 5; empty is the one that runs this."""
        self._python = python
        self._process: HarnessProcess | None = None
        self._starting = asyncio.Lock()
        self._runs = asyncio.Semaphore(os.cpu_count() or 1)
        self._ids = itertools.count()

    async def script(self, instance: dict[str, Any]) -> str:
        """The eval script as the harness runs it."""
        answer = await self._ask("script", ANSWER_SECONDS, instance=instance)
        return str(answer["script"])

    async def report(self, instance: dict[str, Any], log: str) -> dict[str, Any]:
        """The harness's verdict on a log: `resolved`, `patch_successfully_applied`, and where it could be read
        `tests_status`."""
        answer = await self._ask("report", ANSWER_SECONDS, instance=instance, log=log)
        return dict(answer["report"])

    async def run(self, instance: dict[str, Any], patch: str, seconds: float) -> dict[str, Any]:
        """The harness's own run on Docker, under an id that was never used; an empty patch is not applied.

        `report` and `log`; or `unappliable`, why; or `timed_out` and `log`.
        """
        request = {"instance": instance, "patch": patch, "seconds": int(seconds), "run_id": uuid.uuid4().hex}
        try:
            async with self._runs, asyncio.timeout(seconds + RUN_SECONDS):
                return await self._ask("run", None, **request)
        except TimeoutError as error:
            raise GraderError(f"the official harness took {RUN_SECONDS:.0f} s more than its tests may") from error

    async def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            await process.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, op: str, limit: float | None, **fields: Any) -> dict[str, Any]:
        for last in (False, True):
            process = await self._started()
            try:
                answer = await process.ask({"id": next(self._ids), "op": op, **fields}, limit)
                break
            except ProcessDied as error:
                if last:
                    raise GraderError(f"swebench's process died: {error}") from error
        if "refused" in answer:
            raise ArgumentError(f"task {fields['instance']['instance_id']!r} can't be graded: {answer['refused']}")
        if "error" in answer:
            raise GraderError(f"swebench failed: {answer['error']}")
        return answer

    async def _started(self) -> HarnessProcess:
        async with self._starting:
            if self._process is None or not self._process.alive:
                await self.close()
                self._process = await self._start()
            return self._process

    async def _start(self) -> HarnessProcess:
        python = self._python or sys.executable
        inherited = dict(os.environ)
        if self._python:
            inherited = {name: value for name, value in inherited.items() if name not in _OF_THIS_INTERPRETER}
        try:
            process = await HarnessProcess.start([python, "-P", str(_WORKER)], inherited)
        except OSError as error:
            raise ArgumentError(f"reward.harness_python={python} can't be run: {error.strerror}") from error
        try:
            greeting = await process.greeting(ANSWER_SECONDS)
        except ProcessDied as error:
            await process.close()
            raise GraderError(f"swebench's process did not start: {error}") from error
        if "missing" in greeting:
            await process.close()
            raise ArgumentError(
                f"grading needs swebench 5, which {python} does not have ({greeting['missing']}): pip install "
                "'slime-swe[swebench]', or install it elsewhere and set reward.harness_python to that interpreter"
            )
        return process
