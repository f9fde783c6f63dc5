"""Ownership of processes by a mark in their environment, and telling that a Ray runs already."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from slime_swe.launch.ray.processes import MARK, lives, owned, running_ray, stop_owned
from tests.waiting import wait_for

DAEMON = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
"""

pytestmark = pytest.mark.xdist_group("ray")  # these see each other's Ray


@pytest.fixture
def mark():
    mark = uuid.uuid4().hex
    yield mark
    stop_owned(mark, grace=0.2)


def start(mark: str, *command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env={**os.environ, MARK: mark})


def test_only_processes_with_the_mark_are_owned_and_stopped(mark):
    other = start(uuid.uuid4().hex, "sleep", "1000")
    ours = start(mark, "sleep", "1000")
    wait_for(lambda: owned(mark), "the process")
    assert owned(mark) == [ours.pid]
    assert stop_owned(mark, grace=5) == []
    assert ours.wait(10) != 0
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_daemon_that_left_its_session_and_ignores_sigterm_is_stopped_too(mark):
    start(mark, sys.executable, "-c", DAEMON).wait(20)
    (daemon,) = owned(mark)
    assert lives(daemon)
    assert stop_owned(mark, grace=0.3) == []
    assert not lives(daemon)


def test_an_ended_process_that_nobody_waited_for_lives_no_more():
    process = subprocess.Popen(["true"])
    wait_for(lambda: not lives(process.pid), "the end")
    process.wait()


def test_a_running_ray_is_said_with_its_address(mark):
    if running_ray():
        pytest.skip("a Ray runs on this machine")
    sleeper = 'exec -a /somewhere/raylet "$0" -c "import time; time.sleep(1000)" --gcs-address=10.0.0.1:6379'
    process = start(mark, "bash", "-c", sleeper, sys.executable)
    wait_for(running_ray, "the process")
    assert running_ray() == (process.pid, "10.0.0.1:6379")
    stop_owned(mark, grace=5)
    process.wait(10)
    assert running_ray() is None
