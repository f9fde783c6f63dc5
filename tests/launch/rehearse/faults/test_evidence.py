"""What is read of a run's folder is what a resumption makes of it; a small disk is full when it is filled."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from slime_swe.data_sources.slime_plugin import state_path
from slime_swe.errors import InfrastructureError
from slime_swe.launch.rehearse.faults import Drill
from slime_swe.launch.rehearse.faults.injection import BYTES, FullDisk, Processes, fill, small_disk
from slime_swe.launch.rehearse.faults.outcome import NONE, Left
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.paths import CHECKPOINTS, cut_back
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu.process import follow
from slime_swe.rollout.journals import append_records
from slime_swe.rollout.records import EPISODES, write_failure
from slime_swe.rollout.retention import METADATA, TRACKER
from slime_swe.sample import Sample

GROUP = 2


def played(run, rollout: int, attempt: int = 1) -> None:
    samples = [
        Sample(index=index, group_index=index // GROUP, reward=0.0, metadata={})
        for index in range(rollout * GROUP, (rollout + 1) * GROUP)
    ]
    write_failure(samples[-1], "sandbox", "it is gone")
    append_records(run / EPISODES, samples, rollout_id=rollout, attempt=attempt)
    step = run / f"dumps/step_{rollout}.pt"
    step.parent.mkdir(exist_ok=True)
    step.touch()


def saved(run, rollout: int, *, metadata: bool = True, state: bool = True, tracker: str | None = None) -> None:
    folder, found = run / CHECKPOINTS, run / CHECKPOINTS / f"iter_{rollout:07d}"
    found.mkdir(parents=True)
    if metadata:
        (found / METADATA).touch()
    if state:
        path = state_path(folder, rollout)
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (folder / TRACKER).write_text(str(rollout) if tracker is None else tracker)


def test_episodes_and_steps_are_those_of_the_folder(tmp_path):
    played(tmp_path, 0)
    played(tmp_path, 1)
    left = Left.of(tmp_path)
    assert [(one.rollout, one.group, one.trajectory) for one in left.episodes] == [
        (0, 0, 0),
        (0, 0, 1),
        (1, 1, 2),
        (1, 1, 3),
    ]
    assert [(one.broken, one.removed) for one in left.episodes] == [(False, False), (True, True)] * 2
    assert sorted(left.steps) == [0, 1] and left.checkpoint == NONE


def test_the_same_episode_of_another_attempt_is_another_record(tmp_path):
    for attempt in (1, 2):
        played(tmp_path, 0, attempt)
    records = [one.record for one in Left.of(tmp_path).episodes]
    assert len(set(records)) == len(records) == 2 * GROUP


INTERRUPTED = {  # a save that a kill has cut short -> the checkpoint that is left
    "before the tracker": ({"metadata": False, "state": False, "tracker": "0"}, 0),
    "while the tracker was written": ({"state": False, "tracker": ""}, 0),
    "before the data source's state": ({"state": False}, 0),
    "not at all": ({}, 1),
}


@pytest.mark.parametrize("moment", INTERRUPTED)
def test_the_checkpoint_is_the_one_that_a_resumption_goes_on_from(tmp_path, moment):
    given, checkpoint = INTERRUPTED[moment]
    played(tmp_path, 0)
    saved(tmp_path, 0)
    played(tmp_path, 1)
    saved(tmp_path, 1, **given)
    before = Left.of(tmp_path)
    assert before.checkpoint == checkpoint
    cut_back(tmp_path)
    after = Left.of(tmp_path)
    assert after.checkpoint == checkpoint
    assert list(after.episodes) == [one for one in before.episodes if one.rollout <= checkpoint]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_takes_nothing_until_there_is_room_and_keeps_what_it_had(tmp_path):
    run = tmp_path / "run"
    disk = FullDisk(Drill("disk", "save"), run)
    with disk.prepared():
        (run / "before").write_bytes(b"kept")
        disk.inject(Processes("none"))
        with pytest.raises(OSError, match="No space left"):
            (run / "more").write_bytes(bytes(8192))
        disk.mend()
        (run / "after").write_bytes(bytes(BYTES // 2))
    assert not os.path.ismount(run)
    assert (run / "before").read_bytes() == b"kept"
    assert sorted(path.name for path in run.iterdir()) == ["after", "before", "more"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_run_that_a_full_disk_ended_is_said_to_have_no_room(tmp_path):
    """Its log lies on the same disk, and so lacks the error."""
    run = tmp_path / "run"
    program = (sys.executable, "-c", "import sys; print('x' * 10000); sys.exit(3)")
    with small_disk(run), pytest.raises(InfrastructureError, match=r"ended with code \d+; .*slime.log \(0 MiB free\)"):
        fill(run)
        asyncio.run(follow(Job(program, {}, {}, {}, run, SLIME.manifest), run / "slime.log", lambda: None))
