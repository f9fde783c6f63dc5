"""Whether a run runs, has ended or died, by its folder alone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.attempts import ATTEMPTS, HeldError, _between_machines, attempting
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.commands.watch import state_of
from slime_swe.launch.runs import attempt_with_status, record_end
from slime_swe.launch.slime.paths import DRIVERS
from slime_swe.saving import StoppedToResume
from slime_swe.status import STATUS, Status, StatusFile, read_status

HOLD = """
import sys
from pathlib import Path
from slime_swe.launch.runs import attempt_with_status
from slime_swe.status import StatusFile
with attempt_with_status(Path(sys.argv[1])) as attempt:
    StatusFile(Path(sys.argv[1]), attempt.number).on_phase("training")
    print("holds", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that makes an attempt at the run."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "holds\n"
        yield process
        process.kill()


def test_a_run_that_runs_has_its_phase_and_is_not_disturbed(tmp_path, holder):
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for _ in range(50):
        state = state_of(tmp_path)
        assert state.lasts and state.exit_code is None and state.status.phase == "training"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    holder.stdin.close()
    assert holder.wait() == 0


def test_a_killed_run_is_said_to_have_died_with_its_process_and_phase(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    state = state_of(tmp_path)
    assert state.lasts is False and state.exit_code == 1
    assert state.why.startswith(f"process {holder.pid} on {socket.gethostname()} died without a word, in the phase tra")


def test_a_run_that_was_killed_again_before_it_wrote_its_phase_has_no_phase_of_an_earlier_attempt(tmp_path, holder):
    holder.kill()
    holder.wait()
    with attempting(tmp_path / ATTEMPTS):
        pass
    state = state_of(tmp_path)
    assert state.attempt == 2 and state.status is None and "phase" not in state.why and state.exit_code == 1


def test_a_run_that_came_to_its_end_has_its_own_exit_code(tmp_path):
    for code in (0, 3):
        with attempt_with_status(tmp_path) as attempt:
            assert state_of(tmp_path).exit_code is None
            record_end(tmp_path, attempt, code)
        assert state_of(tmp_path).exit_code == code


@pytest.mark.parametrize(
    ("error", "code", "why"),
    [
        (UserError("no tasks"), 2, "no tasks"),
        (InfrastructureError("the server has ended"), 1, "the server has ended"),
        (ZeroDivisionError("by 0"), 1, "ZeroDivisionError: by 0"),
        (KeyboardInterrupt(), 130, "interrupted by SIGINT"),
        (
            StoppedToResume(3),
            75,
            "stopped after rollout 4 as its time was up, with a checkpoint of each step that had ended",
        ),
    ],
)
def test_a_run_that_failed_says_why_with_the_exit_code_of_the_command(error, code, why, tmp_path):
    with pytest.raises(type(error)), attempt_with_status(tmp_path) as attempt:
        StatusFile(tmp_path, attempt.number).on_phase("training")
        raise error
    state = state_of(tmp_path)
    assert (state.exit_code, state.why, state.status.phase) == (code, why, "training")


def test_a_process_that_lost_the_run_to_another_writes_nothing(tmp_path):
    with pytest.raises(HeldError), attempt_with_status(tmp_path):
        StatusFile(tmp_path, 2).on_phase("generation")
        raise HeldError("a later one has begun")
    assert read_status(tmp_path) == Status(2, "generation", since=read_status(tmp_path).since)


def test_a_run_under_slime_lasts_as_long_as_its_driver(tmp_path, holder):
    with attempting(tmp_path / DRIVERS):
        holder.kill()
        holder.wait()
        assert state_of(tmp_path).lasts and state_of(tmp_path).exit_code is None
    assert state_of(tmp_path).exit_code == 1


def test_a_finished_run_of_a_version_that_wrote_no_status_has_succeeded(tmp_path):
    with attempting(tmp_path / ATTEMPTS):
        pass
    assert state_of(tmp_path).exit_code == 1
    (tmp_path / "summary.json").write_text("{}")
    assert state_of(tmp_path).exit_code == 0


def test_a_folder_without_an_attempt_has_no_run(tmp_path):
    assert state_of(tmp_path).why == "the run has never begun"


def test_without_locks_a_process_is_looked_for_on_its_own_machine_and_in_doubt_elsewhere(tmp_path, holder, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert state_of(tmp_path).lasts is True
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    state = state_of(tmp_path)
    assert state.lasts is None and state.exit_code is None, "it may run or not"
    monkeypatch.undo()
    monkeypatch.setattr(fcntl, "flock", flock)
    holder.kill()
    holder.wait()
    assert state_of(tmp_path).lasts is False
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    StatusFile(tmp_path, 1).on_end(0)
    assert state_of(tmp_path).exit_code == 0, "what it wrote is believed everywhere"


MOUNTS = """\
22 1 0:20 / / rw,relatime - ext4 /dev/root rw
30 22 0:30 / /a\\040b rw - nfs4 server:/x rw,vers=4.2,local_lock=none
31 22 0:31 / /apart rw - nfs server:/x rw,vers=3,local_lock=all
32 22 0:32 / /old rw - nfs server:/x rw,nolock,vers=3
33 22 0:33 / /lustre rw - lustre server:/x rw,flock
34 22 0:34 / /lustre/here rw - lustre server:/x rw,localflock
35 22 0:35 / /sshfs rw - fuse.sshfs server:/x rw
"""


def test_mounts_whose_locks_other_machines_do_not_see(tmp_path):
    (tmp_path / "mounts").write_text(MOUNTS)
    seen = {
        name: _between_machines(Path(name, "run", ATTEMPTS), tmp_path / "mounts")
        for name in ("/", "/a b", "/apart", "/old", "/lustre", "/lustre/here", "/sshfs", "/apart2")
    }
    assert [name for name, shared in seen.items() if not shared] == ["/apart", "/old", "/lustre/here", "/sshfs"]
    assert _between_machines(tmp_path / ATTEMPTS, tmp_path / "no list")


def test_a_status_that_can_not_be_written_stops_nothing(tmp_path):
    status = StatusFile(tmp_path / "gone", 1)
    status.on_phase("training")
    status.on_end(0)
    assert read_status(tmp_path / "gone") is None
    (tmp_path / STATUS).write_text('{"attempt"')
    assert read_status(tmp_path) is None


def test_details_of_a_phase_are_written_once_a_second(tmp_path):
    status = StatusFile(tmp_path, 1)
    status.on_phase("evaluation")
    status.on_detail("heldout 1/9")
    assert json.loads((tmp_path / STATUS).read_bytes())["detail"] == ""
    status._written -= 1.0
    status.on_detail("heldout 2/9")
    status.on_detail("heldout 3/9")
    assert json.loads((tmp_path / STATUS).read_bytes())["detail"] == "heldout 2/9"
