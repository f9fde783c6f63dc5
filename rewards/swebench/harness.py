"""`Harness`: swebench in processes of its own (`worker.py`), started when first needed and again if they die.

swebench takes half a gigabyte and pins numpy and pandas, so training never imports it: the process may have an
interpreter and an environment of its own. Requests and answers are JSON lines, one at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shlex
import sys
import tempfile
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

import orjson

from slime_swe.data_sources.task import HarnessOracle, Image, Task
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.patches import PatchError, header_paths, require_few_folders
from slime_swe.rewards.grade import GraderError
from slime_swe.rewards.guard import Guard, folders_of
from slime_swe.rewards.room import put, speaks_of_a_full_disk
from slime_swe.rollout.loop_scope import opened_once
from slime_swe.sandbox.base import ExecResult, Sandbox

ANSWER_SECONDS = 300.0  # for the process to answer; it gives up a log after a tenth of it, of processor time
RUN_SECONDS = 600.0  # for the official harness, beyond the time that the tests may take
CLOSE_SECONDS = 30.0  # for the process to remove the containers that it has started
_WORKER = Path(__file__).with_name("worker.py")
_OF_THIS_INTERPRETER = ("PYTHONPATH", "PYTHONHOME")
_LINE_BYTES = 1 << 28  # of one answer
_STDERR_BYTES = 4_000  # of the end of stderr, shown when the process dies


def oracle_of(task: Task) -> HarnessOracle:
    assert isinstance(task.oracle, HarnessOracle), task.oracle
    return task.oracle


def image_of(task: Task) -> Image:
    """Return the image of a task. Raises `UserError` where there is none."""
    if task.workspace.image is None:
        raise UserError(f"task {task.id!r} is graded by SWE-bench's harness, which needs an image: it names none")
    return task.workspace.image


def instance_of(task: Task) -> dict[str, Any]:
    """Return the fields of a dataset row that swebench's `make_test_spec` and grading read, as plain JSON types.

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
    """Return the running loop's harness in this interpreter's, or in another's environment."""
    return await opened_once(("harness", python), lambda: Harness(python))


class Harness:
    """A client of the process, for one event loop. Every call raises `GraderError` where the process fails twice.

    Calls raise `UserError` where swebench is not installed, or does not have the instance's log parser.
    """

    def __init__(self, python: str = "") -> None:
        """`python`: an interpreter that has swebench 5; empty is the one that runs this."""
        self._python = python
        self._process: _Process | None = None
        self._asking = asyncio.Lock()
        self._runs = asyncio.Semaphore(os.cpu_count() or 1)
        self._free: list[_Process] = []  # that have made a run, and may make another

    async def script(self, instance: dict[str, Any]) -> str:
        """Return the eval script as the harness runs it."""
        return str((await self._ask("script", instance=instance))["script"])

    async def report(self, instance: dict[str, Any], log: str) -> dict[str, Any]:
        """Return the harness's verdict on a log: `resolved`, `patch_successfully_applied`, and `tests_status` where the
        log could be read; `unreadable`, why, where the harness fails at it.

        A log goes by a file: as JSON one of 32 MiB would keep the event loop for 0.2 s.
        """
        try:
            with tempfile.NamedTemporaryFile("w", prefix="slime-swe-log-", encoding="utf-8", errors="replace") as file:
                await asyncio.to_thread(_write, file, log)
                return dict((await self._ask("report", instance=instance, log=file.name))["report"])
        except OSError as error:
            raise GraderError(f"the log can't be written to a file: {error}") from error

    async def run(self, instance: dict[str, Any], patch: str, seconds: float) -> dict[str, Any]:
        """Make the harness's own run on Docker, under an id that was never used; an empty patch is not applied.

        The answer has `report` and `log`; or `unappliable`, why; or `timed_out` and `log`.
        """
        request = {"instance": instance, "patch": patch, "seconds": int(seconds), "run_id": uuid.uuid4().hex}
        async with self._runs:
            process, answer = self._free.pop() if self._free else await self._start(), None
            try:
                async with asyncio.timeout(seconds + RUN_SECONDS):
                    answer = await process.ask({"op": "run", **request}, None)
            except TimeoutError as error:
                raise GraderError(f"the official harness took {RUN_SECONDS:.0f} s more than its tests may") from error
            except _ProcessDied as error:
                raise GraderError(f"the official harness died: {error}") from error
            finally:
                if answer is None:
                    await asyncio.shield(process.close())  # which ends a run that nobody waits for any more
            self._free.append(process)
        return _checked(answer, instance)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for process in (*self._free, *([self._process] if self._process else [])):
            await process.close()

    async def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        async with self._asking:
            try:
                answer = await self._ask_once({"op": op, **fields})
            except _ProcessDied:
                try:
                    answer = await self._ask_once({"op": op, **fields})
                except _ProcessDied as error:
                    raise GraderError(f"swebench's process died: {error}") from error
        return _checked(answer, fields["instance"])

    async def _ask_once(self, request: dict[str, Any]) -> dict[str, Any]:
        self._process = process = self._process or await self._start()
        try:
            return await process.ask(request, ANSWER_SECONDS)
        except _ProcessDied:
            self._process = None
            await process.close()
            raise

    async def _start(self) -> _Process:
        python = self._python or sys.executable
        inherited = {**os.environ, "PYTHONUTF8": "1"}  # the harness opens logs as the locale says
        if self._python:
            inherited = {name: value for name, value in inherited.items() if name not in _OF_THIS_INTERPRETER}
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `_Process.close`)
        try:
            process = _Process(
                await asyncio.create_subprocess_exec(
                    python, "-P", str(_WORKER), stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE, stderr=stderr, env=inherited, limit=_LINE_BYTES,
                    start_new_session=True,  # Ctrl-C in a terminal is ours to handle: it ends when its input does
                ), stderr,
            )  # fmt: skip
        except OSError as error:
            stderr.close()
            raise UserError(f"reward.harness_python={python} can't be run: {error.strerror}") from error
        try:
            greeting = await process.answer(None, ANSWER_SECONDS)
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


def _write(file: Any, text: str) -> None:
    file.write(text)
    file.flush()


def _checked(answer: dict[str, Any], instance: Mapping[str, Any]) -> dict[str, Any]:
    if "refused" in answer:
        raise UserError(f"task {instance['instance_id']!r} can't be graded: {answer['refused']}")
    if "error" in answer:
        raise GraderError(f"swebench failed: {answer['error']}")
    return answer


class _ProcessDied(InfrastructureError):
    """The process ended, or was ended because it did not answer. The message is the end of its stderr."""


class _Process:
    """One child process. Its first line is its greeting, which has no id; every other line answers a request."""

    def __init__(self, process: asyncio.subprocess.Process, stderr: IO[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout
        self._stderr = stderr
        self._ids = itertools.count()

    async def ask(self, request: dict[str, Any], seconds: float | None) -> dict[str, Any]:
        """Return the answer to one request, after the end of the one before. Raises `_ProcessDied`."""
        number = next(self._ids)
        self._stdin.write(orjson.dumps({"id": number, **request}) + b"\n")
        with contextlib.suppress(ConnectionError):  # it died: there is no answer to read
            await self._stdin.drain()
        return await self.answer(number, seconds)

    async def answer(self, number: int | None, seconds: float | None) -> dict[str, Any]:
        """Read the line of this id; one that a cancelled caller left unread goes. A process that takes longer is ended,
        since it answers nobody else meanwhile. Raises `_ProcessDied`."""
        try:
            async with asyncio.timeout(seconds):
                while line := await self._stdout.readline():
                    answer: dict[str, Any] = orjson.loads(line)
                    if answer.get("id") == number:
                        return answer
        except TimeoutError as error:
            self._process.kill()
            raise _ProcessDied(f"no answer in {seconds} s") from error
        size = self._stderr.seek(0, 2)
        self._stderr.seek(max(0, size - _STDERR_BYTES))
        raise _ProcessDied(self._stderr.read().decode(errors="replace") or f"exit code {self._process.returncode}")

    async def close(self) -> None:
        """End the process by the end of its input, and by force where it does not react."""
        self._stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), CLOSE_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._stderr.close()


# Apply a patch in a sandbox of the task's image, by the commands that the harness tries, in its order.
#
# Nothing that the policy wrote has run in that sandbox. Two things differ from the harness. Changes that
# `rewards.guard` names are ignored, unless the gold patch changes the same file. And GNU patch, which accepts more than
# git, gets no patch that names a path in `.git` or behind a link of the repository, makes a link, or holds what could
# be a command of an ed script, indented or not.
PATCH = "/tmp/patch.diff"
_GIT = "git -c safe.directory='*'"
_BY_GIT = ("apply --verbose", "apply --verbose --3way", "apply --verbose --reject")
_BY_PATCH = "patch --batch --forward --fuzz=5 -p1 -i"
# A link, or a whole line that GNU patch takes for a command of ed (its pch.c, `get_ed_command_letter`).
_BY_GIT_ALONE = re.compile(
    r"^[ \tX]*(new (file )?mode 120000|\d+(,\d+)?([acdi]|s/\.//)[ \t\r]*$)", re.MULTILINE | re.ASCII
)
_RESET = f"{_GIT} checkout -- . ; {_GIT} clean -fd"
_LIST = f"{_GIT} ls-files --stage -z"
_LINK = "120000"  # its mode
_GUARDED, _KEPT = "/tmp/.guarded", "/tmp/.kept"  # the paths of guarded files; those files as the image has them
_SECONDS = 300.0  # for guarded files to be kept or put back


@dataclass(frozen=True)
class Applied:
    """An applied patch. command: the first that took it. ignored: the paths at which it counts for nothing."""

    command: str
    ignored: list[str]


async def apply_in(sandbox: Sandbox, oracle: HarnessOracle, patch: str) -> Applied:
    """Apply a patch. Raises `PatchError` where no command takes it, or what it did can't be undone where it has to be;
    `GraderError` where the repository can't be read; `UnwrittenError`."""
    try:
        content = patch.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise PatchError(f"the patch is no text: {error}") from error
    await put(sandbox, PATCH, content)
    listed = await sandbox.exec(_LIST)
    if listed.exit_code != 0 or listed.truncated:
        raise GraderError(f"the image's repository can't be listed: {listed.output[-500:]!r}")
    commands, guarded = await asyncio.to_thread(_plan, oracle, patch, listed.output)
    if not guarded:
        return Applied(await _first_that_takes_it(sandbox, commands), [])
    await put(sandbox, _GUARDED, "".join(f"{path}\0" for path in guarded).encode("utf-8", "surrogateescape"))
    kept = await _put_back(sandbox, "keep")
    if kept.exit_code != 0:
        raise GraderError(f"the image's files can't be kept: {_tail(kept)}")
    command = await _first_that_takes_it(sandbox, commands)
    restored = await _put_back(sandbox, "restore")
    if restored.exit_code != 0:
        raise PatchError(f"the files that are not the patch's to change can't be put back: {_tail(restored)}")
    return Applied(command, sorted(set(filter(None, restored.output.split("\0")))))


def _plan(oracle: HarnessOracle, patch: str, listed: str) -> tuple[list[str], list[str]]:
    """Return the commands that may be tried on this patch, in this order; and the paths to put back, of those that it
    may name: more than it changes. Raises `PatchError`."""
    entries = (entry.partition("\t") for entry in listed.split("\0") if entry)
    modes = {path: about[: len(_LINK)] for about, _, path in entries}
    links = {path for path, mode in modes.items() if mode == _LINK}
    paths, guard = header_paths(patch), Guard(modes, oracle.protected)
    require_few_folders(paths)
    behind = _behind(links, paths)  # no file that git would change
    named = paths - behind - header_paths(oracle.gold_patch)
    guarded = sorted(path for path in named if guard(path) and ".." not in PurePosixPath(path).parts)
    return _commands(patch, paths, by_git_alone=bool(behind)), guarded


def _behind(links: Collection[str], paths: Collection[str]) -> set[str]:
    return {path for path in paths if not folders_of(path).isdisjoint(links)} if links else set()


def _commands(patch: str, paths: Collection[str], *, by_git_alone: bool = False) -> list[str]:
    by_git = [f"{_GIT} {way}" for way in _BY_GIT]
    in_git = any(part.lower() == ".git" for path in paths for part in PurePosixPath(path).parts)
    return by_git if by_git_alone or in_git or _BY_GIT_ALONE.search(patch) else [*by_git, _BY_PATCH]


async def _first_that_takes_it(sandbox: Sandbox, commands: Collection[str]) -> str:
    said: list[str] = []
    for command in commands:
        if said:
            await sandbox.exec(_RESET)  # a failed attempt leaves what it had done by then
        result = await sandbox.exec(f"{command} {PATCH}")
        if result.exit_code == 0:
            return command
        said.append(_tail(result))
    if (await sandbox.exec(f"{_GIT} apply --check --reverse {PATCH}")).exit_code == 0:
        return "all of them together"  # the last one's leavings are the whole patch, as the harness checks too
    raise PatchError(next(filter(speaks_of_a_full_disk, said), said[-1]))


def _tail(result: ExecResult) -> str:
    return result.output[-2_000:].strip()


async def _put_back(sandbox: Sandbox, what: str) -> ExecResult:
    """Run `put_back.sh`. what: `keep` or `restore`, as the script says."""
    script = resources.files(__package__).joinpath("put_back.sh").read_text(encoding="utf-8")
    command = shlex.join(["bash", "-c", script, "put_back", what, _GUARDED, _KEPT])
    return await sandbox.exec(command, timeout=_SECONDS)
