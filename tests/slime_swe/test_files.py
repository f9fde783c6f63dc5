from __future__ import annotations

import subprocess
import sys

import pytest

from slime_swe.errors import UserError
from slime_swe.files import FileError, append, cache_folder, locked, replace_file, write_file, writing


def test_a_file_is_replaced_whole_and_nothing_else_stays(tmp_path):
    path = tmp_path / "a.json"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_replacement_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    replace_file(path, b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_never_overwrites(tmp_path):
    write_file(tmp_path / "a", b"1")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "a", b"2")


def test_appending_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    assert append(path, b"one\n") == 4
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(FileError, match=r"can't write .*a.jsonl: No space left.*make room"), writing(path):
        append(path, b"two\n")
    assert path.read_bytes() == b"one\n"


def test_the_cache_is_where_the_user_says_or_below_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("x") == tmp_path / "slime-swe" / "x"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(cache_folder("x")) == "/home/somebody/.cache/slime-swe/x"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # as in a container that doesn't know its user
    with pytest.raises(UserError, match="no home folder, and caches need one: set HOME or XDG_CACHE_HOME"):
        cache_folder("x")


def test_a_lock_keeps_other_processes_out_and_is_freed(tmp_path):
    path = tmp_path / "lock"
    ask = [
        sys.executable,
        "-c",
        "import sys; from pathlib import Path; from slime_swe.files import locked\n"
        "with locked(Path(sys.argv[1]), wait=False): print('mine')",
        str(path),
    ]
    with locked(path):
        held = subprocess.run(ask, capture_output=True, text=True)
        assert "BlockingIOError" in held.stderr
    assert subprocess.run(ask, capture_output=True, text=True).stdout == "mine\n"
