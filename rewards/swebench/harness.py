"""`Harness`: swebench in a process of its own (`worker.py`), started when first needed and again if it dies.

swebench takes half a gigabyte and pins numpy and pandas, so training never imports it: the process may have an
interpreter and an environment of its own. Requests and answers are JSON lines, matched by their ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from slime_swe.data_sources.task import HarnessOracle, Image, Task
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.rewards.grade import GraderError
from slime_swe.rollout.loop_scope import loop_scope

ANSWER_SECONDS = 120.0  # for a log to be parsed; a log that takes longer is an attack on a regular expression
RUN_SECONDS = 600.0  # for the official harness, beyond the time that the tests may take
CLOSE_SECONDS = 30.0  # for the process to remove the containers that it has started
_WORKER = Path(__file__).with_name("worker.py")
_OF_THIS_INTERPRETER = ("PYTHONPATH", "PYTHONHOME")
_LINE_BYTES = 1 << 28  # of one answer
_STDERR_BYTES = 4_000  # of the end of stderr, shown when the process dies
_GREETING = -1  # stands for the id of the first line, which answers no request


def oracle_of(task: Task) -> HarnessOracle:
    """Raises `UserError` where the task is graded in another way."""
    if not isinstance(task.oracle, HarnessOracle):
        raise UserError(f"task {task.id!r} is graded by a {type(task.oracle).__name__}, not by SWE-bench's harness")
    return task.oracle


def image_of(task: Task) -> Image:
    """Raises `UserError` where there is none."""
    if task.workspace.image is None:
        raise UserError(f"task {task.id!r} is graded by SWE-bench's harness, which needs an image: it names none")
    return task.workspace.image


def instance_of(task: Task) -> dict[str, Any]:
    """The fields of a dataset row that swebench's `make_test_spec` and grading read, as plain JSON types.

    Some log parsers read the id: where a corpus has renamed its tasks, `metadata["instance_id"]` keeps it.
    """
    oracle = oracle_of(task)
    return {
        "instance_id": str(task.metadata.get("instance_id", task.id)),
        "image": image_of(task).name,
        "repo": oracle.repo,
        "version": oracle.version,
        "FAIL_TO_PASS": list(oracle.fail_to_pass),
        "PASS_TO_PASS": list(oracle.pass_to_pass),
        "log_parser": oracle.log_parser,
        "eval_type": oracle.eval_type,
        "eval_script": oracle.eval_script,
    }


async def harness_for(python: str = "") -> Harness:
    """The running loop's harness in this interpreter's, or in another's environment."""
    scope = await loop_scope()
    return await scope.get(("harness", python), lambda: Harness(python))


class Harness:
    """Asks the process. Belongs to one event loop; every call raises `GraderError` where the process fails twice.

    Calls raise `UserError` where swebench is not installed, or does not have the instance's log parser.
    """

    def __init__(self, python: str = "") -> None:
        """`python`: an interpreter that has swebench 5; empty is the one that runs this."""
        self._python = python
        self._process: _Process | None = None
        self._starting = asyncio.Lock()
        self._runs = asyncio.Semaphore(os.cpu_count() or 1)
        self._ids = itertools.count()

    async def script(self, instance: dict[str, Any]) -> str:
        """The eval script as the harness runs it."""
        return str((await self._ask("script", instance=instance))["script"])

    async def report(self, instance: dict[str, Any], log: str) -> dict[str, Any]:
        """The harness's verdict on a log: `resolved`, `patch_successfully_applied`, and `tests_status` where the
        log could be read."""
        return dict((await self._ask("report", instance=instance, log=log))["report"])

    async def run(self, instance: dict[str, Any], patch: str, seconds: float) -> dict[str, Any]:
        """The harness's own run on Docker, under an id that was never used; an empty patch is not applied.

        `report` and `log`; or `unappliable`, why; or `timed_out` and `log`.
        """
        request = {"instance": instance, "patch": patch, "seconds": int(seconds), "run_id": uuid.uuid4().hex}
        async with self._runs:
            process = await self._start("run")
            try:
                async with asyncio.timeout(seconds + RUN_SECONDS):
                    answer = await process.ask({"id": 0, "op": "run", **request}, None)
            except TimeoutError as error:
                raise GraderError(f"the official harness took {RUN_SECONDS:.0f} s more than its tests may") from error
            except _ProcessDied as error:
                raise GraderError(f"the official harness died: {error}") from error
            finally:
                await asyncio.shield(process.close())  # which ends a run that nobody waits for any more
        return _checked(answer, instance)

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

    async def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        for last in (False, True):
            process = await self._started()
            try:
                answer = await process.ask({"id": next(self._ids), "op": op, **fields}, ANSWER_SECONDS)
                break
            except _ProcessDied as error:
                if last:
                    raise GraderError(f"swebench's process died: {error}") from error
        return _checked(answer, fields["instance"])

    async def _started(self) -> _Process:
        async with self._starting:
            if self._process is None or not self._process.alive:
                await self.close()
                self._process = await self._start()
            return self._process

    async def _start(self, *arguments: str) -> _Process:
        python = self._python or sys.executable
        inherited = dict(os.environ)
        if self._python:
            inherited = {name: value for name, value in inherited.items() if name not in _OF_THIS_INTERPRETER}
        try:
            process = await _Process.start((python, "-P", str(_WORKER), *arguments), inherited)
        except OSError as error:
            raise UserError(f"reward.harness_python={python} can't be run: {error.strerror}") from error
        try:
            greeting = await process.answer(_GREETING, ANSWER_SECONDS)
        except _ProcessDied as error:
            await process.close()
            raise GraderError(f"swebench's process did not start: {error}") from error
        if "missing" in greeting:
            await process.close()
            raise UserError(
                f"grading needs swebench 5, which {python} does not have ({greeting['missing']}): pip install "
                "'slime-swe[swebench]', or install it elsewhere and set reward.harness_python to that interpreter"
            )
        return process


def _checked(answer: dict[str, Any], instance: Mapping[str, Any]) -> dict[str, Any]:
    if "refused" in answer:
        raise UserError(f"task {instance['instance_id']!r} can't be graded: {answer['refused']}")
    if "error" in answer:
        raise GraderError(f"swebench failed: {answer['error']}")
    return answer


class _ProcessDied(InfrastructureError):
    """It ended, or was ended because it did not answer; the message is the end of its stderr."""


class _Process:
    """One child process. Its first line is its greeting; every other line answers a request."""

    def __init__(self, process: asyncio.subprocess.Process, stderr: Any) -> None:
        self._process = process
        self._stderr = stderr
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._expect(_GREETING)
        self._writing = asyncio.Lock()
        self._reader = asyncio.create_task(self._read(), name="harness answers")

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Raises `OSError` where the command can't be run."""
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env=environment,
            limit=_LINE_BYTES,
            start_new_session=True,  # Ctrl-C in a terminal is ours to handle: the process ends when its input does
        )
        return cls(process, stderr)

    @property
    def alive(self) -> bool:
        return not self._reader.done()

    async def ask(self, request: dict[str, Any], seconds: float | None) -> dict[str, Any]:
        """The answer. A process that takes longer is ended, since it answers nobody else meanwhile: `_ProcessDied`."""
        if not self.alive:
            raise _ProcessDied(self._stderr_tail())
        self._expect(request["id"])
        try:
            await self._send(request)
            return await self.answer(request["id"], seconds)
        finally:
            self._waiting.pop(request["id"], None)

    async def answer(self, request_id: int, seconds: float | None) -> dict[str, Any]:
        """Raises `_ProcessDied`."""
        try:
            return await asyncio.wait_for(self._waiting[request_id], seconds)
        except TimeoutError as error:
            self._process.kill()
            raise _ProcessDied(f"no answer in {seconds} s") from error

    async def close(self) -> None:
        """End it by the end of its input, and by force where it does not react."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), CLOSE_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self._reader
        self._stderr.close()

    def _expect(self, request_id: int) -> None:
        self._waiting[request_id] = asyncio.get_running_loop().create_future()

    async def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        async with self._writing:
            self._process.stdin.write(orjson.dumps(request) + b"\n")
            with contextlib.suppress(ConnectionError):  # it died: `_read` fails whatever waits for an answer
                await self._process.stdin.drain()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = orjson.loads(line)
            waiting = self._waiting.get(answer.get("id", _GREETING))
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(_ProcessDied(self._stderr_tail()))

    def _stderr_tail(self) -> str:
        if self._stderr.closed:
            return "it was closed"
        size = self._stderr.seek(0, 2)
        self._stderr.seek(max(0, size - _STDERR_BYTES))
        return self._stderr.read().decode(errors="replace") or f"exit code {self._process.returncode}"
