"""One `Job` as a process of this machine, followed until it ends: the runner of `engine=slime_cpu` and rehearsals."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slime_swe.errors import InfrastructureError
from slime_swe.files import free_space
from slime_swe.launch.ray.processes import MARK, deferring, stop_owned
from slime_swe.launch.slime.job import Job
from slime_swe.saving import TRY_AGAIN

POLL = 2.0  # seconds between looks at what the run has written
STOP = 20.0  # seconds that Ray gets to end its processes, and then what it has left
TAIL = 3000  # characters of the log in an error message


async def follow(job: Job, log: Path, poll: Callable[[], None]) -> int:
    """Run a job, its output into `log`, calling `poll` meanwhile. Raises `InfrastructureError` where it fails.

    Returns its exit code: 0, or 75 where it has stopped to be resumed.
    """
    code = await ended(job, log, poll)
    if code not in (0, TRY_AGAIN):
        text = log.read_text(errors="replace")[-TAIL:]
        room = free_space(log)  # a full disk took the lines that would say so
        raise InfrastructureError(f"{job.program[-1]} ended with code {code}; {log} ({room}) ends with:\n{text}")
    return code


async def ended(
    job: Job, log: Path, poll: Callable[[], None] = lambda: None, on_exit: Callable[[], None] = lambda: None
) -> int:
    """Run the job until it ends, and return its exit code; negative for the signal that ended it. What it has started
    ends with it, also daemons and what a killed process has forked: Megatron's writers of checkpoints wait for ever for
    the rank that they write for. `on_exit` is called as soon as it has ended by itself, before the others are
    stopped."""
    mark = job.environment.get(MARK) or uuid.uuid4().hex
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *job.argv,
            cwd=job.directory,
            env=os.environ | dict(job.environment) | {MARK: mark},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a terminal's Ctrl-C comes here, and Ray is then stopped as one
        )
    try:
        while process.returncode is None:
            poll()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), POLL)
        on_exit()
    finally:
        with deferring():  # a second Ctrl-C would leave what the first is stopping
            await _stop(process)
            await asyncio.to_thread(stop_owned, mark, STOP)
    return process.returncode


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End SLiME's driver, and with it its own Ray, where it still runs."""
    if process.returncode is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP)
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
