import pytest

from slime_swe.files import FileError
from slime_swe.journal import Journal


def test_a_journal_is_cut_back_to_its_checkpoint(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl")
    assert journal.read() == [] and journal.size() == 0
    journal.append({"a": 1})
    size = journal.size()
    journal.append({"b": float("nan")})
    with journal.path.open("ab") as file:
        file.write(b'{"c": ')
    assert journal.read() == [{"a": 1}, {"b": None}]
    journal.cut(size)
    assert journal.read() == [{"a": 1}]
    with pytest.raises(FileError, match="records are missing"):
        journal.cut(size + 1)


def test_a_journal_that_is_not_what_the_checkpoint_saw_is_refused(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl")
    journal.append({"a": 1, "attempt": 1})
    journal.append({"b": "x" * 100, "attempt": 2})
    before = journal.path.read_bytes()
    with pytest.raises(FileError, match="end within a line"):
        journal.cut(journal.size() - 5, 2)
    with pytest.raises(FileError, match="end with a record of a later attempt"):
        journal.cut(journal.size(), 1)
    assert journal.path.read_bytes() == before
    journal.cut(journal.size(), 2)
    journal.cut(before.index(b"\n") + 1, 1)
    assert journal.read() == [{"a": 1, "attempt": 1}]
