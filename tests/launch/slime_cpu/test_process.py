"""A job's process, followed to its end: nothing that it has started outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slime_swe.errors import InfrastructureError
from slime_swe.launch.ray.processes import lives
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu.process import ended, follow
from tests.waiting import wait_for

WRITER = """
import os, signal, sys, time
read, write = os.pipe()
if os.fork() == 0:  # as Megatron's writers are forked, and in a session of its own, as Ray's daemons are
    os.setsid()
    open("pid", "w").write(str(os.getpid()))
    os.write(write, b"1")
    time.sleep(1000)
os.read(read, 1)
END
"""


def job(folder, end: str) -> Job:
    return Job((sys.executable, "-c", WRITER.replace("END", end)), {}, {}, {}, folder, SLIME.manifest)


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(0)", 0), ("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", -9)],
)
def test_what_a_job_leaves_ends_with_it(tmp_path, end, code):
    left = []

    def on_exit() -> None:
        left.append(lives(int((tmp_path / "pid").read_text())))

    assert asyncio.run(ended(job(tmp_path, end), tmp_path / "log", on_exit=on_exit)) == code
    assert left == [True], "it is told before what it has left is stopped"
    assert not lives(int((tmp_path / "pid").read_text()))
    assert lives(os.getpid())


def test_a_job_that_is_stopped_leaves_nothing(tmp_path):
    async def stopped() -> None:
        running = asyncio.create_task(follow(job(tmp_path, "time.sleep(1000)"), tmp_path / "log", lambda: None))
        pid = tmp_path / "pid"
        await asyncio.to_thread(wait_for, lambda: pid.exists() and pid.read_text(), "the job")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(stopped())
    assert not lives(int((tmp_path / "pid").read_text()))


STUBBORN = """
import asyncio
from pathlib import Path
from slime_swe.launch.ray.processes import interrupting
from slime_swe.launch.slime_cpu import process
from tests.launch.slime_cpu.test_process import job
process.STOP = 2.0
end = "signal.signal(signal.SIGTERM, signal.SIG_IGN); open('ready', 'w'); time.sleep(1000)"
with interrupting():  # as every command: a shell that runs tests in the background has Ctrl-C ignored
    asyncio.run(process.follow(job(Path.cwd(), end), Path("log"), lambda: None))
"""


def test_a_second_ctrl_c_leaves_nothing_either(tmp_path):
    root = Path(__file__).parents[3]
    environment = os.environ | {"PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    with subprocess.Popen(
        [sys.executable, "-c", STUBBORN], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    ) as run:
        wait_for((tmp_path / "ready").exists, "the job")
        for _ in range(2):
            run.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert run.wait(30) != 0
    assert not lives(int((tmp_path / "pid").read_text()))
    assert not any(str(tmp_path) in folder_of(process) for process in Path("/proc").glob("[0-9]*"))


def folder_of(process: Path) -> str:
    try:
        return str((process / "cwd").readlink())
    except OSError:
        return ""


def test_a_failure_shows_the_end_of_the_log(tmp_path):
    with pytest.raises(InfrastructureError, match=r"(?s)code 7; .*log \(\d+ MiB free\) ends with:.*last words"):
        asyncio.run(follow(job(tmp_path, "print('last words'); sys.exit(7)"), tmp_path / "log", lambda: None))
