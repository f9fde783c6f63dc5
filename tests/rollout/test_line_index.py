"""A journal's index finds one line without the others, and is never believed where it does not fit the journal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_swe.errors import UserError
from slime_swe.journal import LineIndex
from slime_swe.rollout.journals import append_records, read_record, read_records, read_summaries
from slime_swe.sample import Sample


def index_of(path: Path, parsed: list[bytes] | None = None) -> LineIndex[str]:
    """An index of lines of text; parsed: gets each line that had to be looked at."""

    def about(line: bytes, where: str) -> str:
        if parsed is not None:
            parsed.append(line)
        return line.decode().strip()

    return LineIndex(path, about, str)


def check(path: Path) -> None:
    """The index says what the journal holds: each whole line once, in order, at its place."""
    *lines, _ = path.read_bytes().split(b"\n")
    index = index_of(path)
    found = index.read()
    assert [about for _, about in found] == [line.decode().strip() for line in lines]
    assert [index.line(place) for place, _ in found] == [line + b"\n" for line in lines]


DAMAGE = ("none", "cut journal", "cut within a line", "lose index", "cut index", "half a line", "other writer")
STEPS = st.lists(st.tuples(st.sampled_from(DAMAGE), st.integers(0, 99), st.integers(1, 3)), max_size=8)


@pytest.fixture(scope="module")
def quick_disk():
    """Writes that no test of this module can lose: it is the machine that would have to fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@settings(deadline=None, max_examples=150)
@given(STEPS)
def test_the_index_fits_whatever_has_happened_to_either_file(quick_disk, tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("run") / "episodes.jsonl"
    for number, (damage, place, count) in enumerate(steps):
        index = index_of(path)
        index.append([b"line %d of %d\n" % (line, number) for line in range(count)])
        content, known = path.read_bytes(), index.path.read_bytes()
        ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
        if damage == "cut journal":
            os.truncate(path, [0, *ends][place % (len(ends) + 1)])
        elif damage == "cut within a line":
            os.truncate(path, place % (len(content) + 1))
        elif damage == "lose index":
            index.path.unlink()
        elif damage == "cut index":
            os.truncate(index.path, place % (len(known) + 1))
        elif damage == "half a line":
            with index.path.open("ab") as file:
                file.write(known[: place % len(known)])
        elif damage == "other writer":
            with path.open("ab") as file:
                file.write(b"by another version %d\n" % place)
        check(path)
    index_of(path).append([b"the last\n"])
    check(path)
    looked_at: list[bytes] = []
    index_of(path, looked_at).read()
    assert looked_at == [], "after an append the index has every line"


def test_one_of_many_lines_is_read_without_the_others(tmp_path):
    """With the others overwritten, so that nobody can have read them."""
    path = tmp_path / "episodes.jsonl"
    append_records(path, [Sample(index=i, reward=i / 8, metadata={"task": {"id": f"t{i}"}}) for i in range(40)])
    append_records(path, [Sample(index=40)], rollout_id=1)
    summaries = read_summaries(path)
    assert [summary.index for _, summary in summaries] == [*range(41)]
    wanted, summary = summaries[17]
    assert (summary.task, summary.reward, summary.outcome) == ("t17", 17 / 8, "solved")
    with path.open("r+b") as file:
        for place, _ in summaries[:-1]:
            if place != wanted:
                file.seek(place.start)
                file.write(b"x" * (place.length - 1))
    assert read_record(path, wanted).index == 17
    assert [again for _, again in read_summaries(path)] == [summary for _, summary in summaries]
    with pytest.raises(UserError, match=r"has changed since episodes.index was written: remove .*episodes.index"):
        read_record(path, summaries[3][0])


KILLED = """
import os, signal, sys
from pathlib import Path
from slime_swe import journal as line_index
from slime_swe.rollout.journals import append_records
from slime_swe.sample import Sample
path = Path(sys.argv[1])
append_records(path, [Sample(index=i) for i in range(3)])
appended = line_index.append
def append_and_die(file, content):
    appended(file, content)
    if file == path:
        os.kill(os.getpid(), signal.SIGKILL)
line_index.append = append_and_die
append_records(path, [Sample(index=i) for i in range(3, 9)])
"""


def test_a_kill_between_the_two_writes_loses_nothing(tmp_path):
    path = tmp_path / "episodes.jsonl"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "episodes.index").read_bytes().count(b"\n") == 3, "the index was not reached"
    assert [summary.index for _, summary in read_summaries(path)] == [*range(9)]
    os.truncate(path, read_summaries(path)[5][0].end)  # as a resumed run does
    append_records(path, [Sample(index=70), Sample(index=71)])
    summaries = read_summaries(path)
    assert [summary.index for _, summary in summaries] == [0, 1, 2, 3, 4, 5, 70, 71]
    assert [read_record(path, place) for place, _ in summaries] == list(read_records(path))
    assert (tmp_path / "episodes.index").read_bytes().count(b"\n") == 8


def test_journals_of_earlier_versions_have_no_index_and_no_turns(tmp_path):
    path = tmp_path / "episodes.jsonl"
    append_records(path, [Sample(index=4, metadata={"turns": [{"role": "user", "text": "x", "start": 0, "end": 0}]})])
    old = path.read_bytes().replace(b'"turns":[{"role":"user","text":"x","start":0,"end":0}],"tools":null', b"")
    path.write_bytes(old.replace(b",}", b"}"))
    (tmp_path / "episodes.index").unlink()
    ((place, summary),) = read_summaries(path)
    assert summary.index == 4 and read_record(path, place).turns is None


def test_a_folder_that_takes_no_index_still_takes_the_journal(tmp_path):
    path = tmp_path / "episodes.jsonl"
    (tmp_path / "episodes.index").mkdir()
    append_records(path, [Sample(index=1)])
    append_records(path, [Sample(index=2)])
    assert [summary.index for _, summary in read_summaries(path)] == [1, 2]
