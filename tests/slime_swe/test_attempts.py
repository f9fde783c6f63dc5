"""One process writes a run at a time; each start is counted; a process that was killed stops nobody."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys

import pytest

from slime_swe.attempts import HeldError, attempting, last_attempt, of_last_attempt, require_ended
from slime_swe.files import FileError
from tests.planted import ENVIRONMENT

HOLD = """
import os, subprocess, sys
from pathlib import Path
from slime_swe.attempts import attempting
with attempting(Path(sys.argv[1])) as attempt:
    child = subprocess.Popen(["sleep", "1000"], close_fds=False)
    print(attempt.number, child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "attempts.jsonl"


@pytest.fixture
def holder(path):
    """Another process, with a child of its own that outlives it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    number, child = process.stdout.readline().split()
    assert number == "1"
    yield process
    process.kill()
    os.kill(int(child), 9)
    process.communicate()


def test_each_start_is_counted_and_says_who_made_it(path):
    for number in (1, 2, 3):
        with attempting(path) as attempt:
            assert attempt.number == last_attempt(path) == number
            attempt.require_last()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["attempt"] for line in lines] == [1, 2, 3]
    assert {(line["host"], line["pid"]) for line in lines} == {(socket.gethostname(), os.getpid())}


def test_a_secret_of_the_environment_is_in_no_command(path, monkeypatch):
    name, secret = next(iter(ENVIRONMENT.items()))
    monkeypatch.setenv(name, secret)
    monkeypatch.setattr(sys, "orig_argv", ["python", "slime-swe", "train", f"slime.flags.wandb-key={secret}"])
    with attempting(path):
        command = json.loads(path.read_text())["command"]
    assert secret not in command and f"[{name} redacted]" in command


def test_a_running_process_keeps_others_out_and_is_named_with_what_to_do(path, holder):
    with pytest.raises(HeldError) as caught, attempting(path):
        pass
    said = str(caught.value)
    assert f"{path.parent} is written by process {holder.pid} on this machine since 20" in said
    assert "-c" in said and f"wait until it ends, or stop it with `kill {holder.pid}`" in said
    with pytest.raises(HeldError):
        require_ended(path)
    assert last_attempt(path) == 1, "who is refused is no attempt"


def test_a_killed_process_stops_nobody_though_its_child_lives(path, holder):
    holder.kill()
    holder.wait()
    require_ended(path)
    with attempting(path) as attempt:
        assert attempt.number == 2


def test_the_same_process_is_kept_out_too(path):
    with attempting(path), pytest.raises(HeldError), attempting(path):
        pass


def test_a_process_on_another_machine_is_named_with_its_machine(path):
    with attempting(path):
        path.write_text('{"attempt": 1, "host": "node7", "pid": 12, "since": "2026-01-31 12:00:00"}\n')
        with pytest.raises(HeldError, match=r"process 12 on node7 since .*`kill 12` there"):
            require_ended(path)


def test_a_fork_that_outlives_its_parent_is_pointed_out(path):
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom slime_swe.attempts import attempting\n"
        "kept = attempting(Path(sys.argv[1]))\nkept.__enter__()\n"
        "pid = os.fork()\nprint(pid, flush=True) if pid else time.sleep(1000)\nos._exit(0)"
    )
    done = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    child = int(done.stdout.readline())
    done.wait()
    try:
        with pytest.raises(HeldError, match=rf"That process is gone, and another one holds the lock: `fuser {path}`"):
            require_ended(path)
    finally:
        os.kill(child, 9)
        done.stdout.close()


@pytest.mark.parametrize(
    "left", [b'{"attempt":1}\n{"attempt":2,"ho', b'{"attempt":1}\n{"attempt":2}\n\0\0', b"", b"\n"]
)
def test_what_a_crash_left_in_the_file_is_passed_over(path, left):
    path.write_bytes(left)
    with attempting(path) as attempt:
        assert attempt.number == left.count(b"}") + 1
    assert last_attempt(path) == attempt.number
    assert path.read_bytes().endswith(b"}\n")


def test_a_run_whose_folder_was_removed_or_made_anew_is_noticed(path):
    with attempting(path) as attempt:
        shutil.rmtree(path.parent)
        with pytest.raises(HeldError, match="removed or replaced"):
            attempt.require_last()
        path.parent.mkdir()
        with attempting(path) as newer:
            assert newer.number == 1
        with pytest.raises(HeldError, match="removed or replaced"):
            attempt.require_last()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_said_and_a_later_attempt_is_noticed(path, number, monkeypatch, capsys):
    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with attempting(path) as attempt:
        assert f"{path.parent} has no locks ({os.strerror(number)})" in capsys.readouterr().err
        with attempting(path) as later:
            later.require_last()
        with pytest.raises(HeldError, match="attempt 1 stops, since a later one has begun"):
            attempt.require_last()


def test_a_place_that_can_not_be_written_is_named(tmp_path):
    with pytest.raises(FileError, match=r"can't write .*/nowhere/attempts.jsonl: No such file"):
        attempting(tmp_path / "nowhere" / "attempts.jsonl").__enter__()


def test_what_two_attempts_wrote_counts_once():
    written = [("a", 1), ("b", 1), ("c", None), ("b", 2), ("b", 2), ("c", None), ("a", 1), ("b", 1)]
    counted = of_last_attempt(written, lambda record: record[0], lambda record: record[1])
    assert counted == [("a", 1), ("c", None), ("b", 2), ("b", 2), ("c", None), ("a", 1)]
