"""`Follower`: each line is given once, whatever its writer does to the file meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from slime_swe.errors import UserError
from slime_swe.files import replace_file
from slime_swe.journal import Journal
from slime_swe.launch.commands.watch import Follower


def record(rollout: int, attempt: int = 1, **more) -> dict:
    return {"kind": "train", "rollout_id": rollout, "attempt": attempt, **more}


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "metrics.jsonl"


def append(path: Path, *records: dict) -> None:
    for each in records:
        Journal(path).append(each)


def seen(follower: Follower) -> list[tuple[int, int]]:
    return [(line["attempt"], line["rollout_id"]) for line in follower.new()]


def test_a_file_that_is_not_there_yet_is_waited_for(path):
    follower = Follower(path)
    assert not seen(follower)
    append(path, record(0), record(1))
    assert seen(follower) == [(1, 0), (1, 1)] and not seen(follower)


def test_a_half_written_line_waits_for_its_end(path):
    follower, line = Follower(path), orjson.dumps(record(0)) + b"\n"
    path.write_bytes(line[:9])
    assert not seen(follower)
    path.write_bytes(line)
    assert seen(follower) == [(1, 0)]


def test_what_was_read_is_not_read_again(path, monkeypatch):
    append(path, *(record(number, filler="x" * 1000) for number in range(50)))
    follower, read, pread = Follower(path), [], os.pread
    monkeypatch.setattr(os, "pread", lambda *given: (found := pread(*given), read.append(len(found)))[0])
    assert len(seen(follower)) == 50
    read.clear()
    append(path, record(50))
    assert seen(follower) == [(1, 50)] and sum(read) < 2000, "the last line and the new one"


def test_a_resumed_run_s_file_is_cut_back_and_what_stays_is_not_given_again(path):
    append(path, record(0), record(1))
    kept = Journal(path).size()
    append(path, record(2), record(3))
    follower = Follower(path)
    assert len(seen(follower)) == 4
    Journal(path).cut(kept)
    assert not seen(follower)
    append(path, record(2, attempt=2))
    assert seen(follower) == [(2, 2)]
    Journal(path).cut(kept)
    append(path, *(record(number, attempt=3) for number in (2, 3, 4)))  # between two looks, and longer than before
    assert seen(follower) == [(3, 2), (3, 3), (3, 4)]


def test_a_file_that_is_replaced_gives_its_new_lines_alone(path):
    """As `engine=slime_cpu` does it: it adds the trainer's figures to lines that were there."""
    append(path, record(0), record(1))
    follower = Follower(path)
    assert len(seen(follower)) == 2
    lines = [record(0, loss=0.5), record(1, loss=0.25), record(2)]
    replace_file(path, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    assert seen(follower) == [(1, 2)]


def test_a_line_whose_bytes_come_late_is_waited_for_and_a_damaged_one_is_said(path):
    """Over NFS a file's length may be seen before its bytes, which are then zeros."""
    line = orjson.dumps(record(0)) + b"\n"
    path.write_bytes(b"\0" * (len(line) - 1) + b"\n")
    follower = Follower(path)
    assert not seen(follower)
    path.write_bytes(line)
    assert seen(follower) == [(1, 0)]
    with path.open("ab") as file:
        file.write(b"no json\n")
    assert not seen(follower) and not seen(follower)
    with pytest.raises(UserError, match=r"metrics\.jsonl has a line that is no JSON"):
        follower.new()
