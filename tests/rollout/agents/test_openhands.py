"""A copy of this machine's CPython, as an agent's layer has it: it runs where there is no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.rollout.agents.openhands import copy_python, find_python, own_python_command

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
MODULES = "ssl, sqlite3, ctypes, lzma, bz2, zlib, hashlib, json"


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """This interpreter as `python3.N` on the path, after one that does not run, as a shim of pyenv's."""
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    for folder in (broken, whole):
        folder.mkdir()
    (broken / f"python{VERSION}").write_text("#!/bin/sh\nexit 127\n")
    (broken / f"python{VERSION}").chmod(0o755)
    (whole / f"python{VERSION}").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setenv("PATH", f"{broken}:{whole}:{os.environ['PATH']}")


def test_the_copy_runs_by_itself_with_its_own_libraries(tmp_path, on_path):
    copy_python(VERSION, tmp_path / "python")
    (tmp_path / "run.py").write_text(
        f"import sys, {MODULES}\n"
        "mapped = {line.split()[-1] for line in open('/proc/self/maps') if '.so' in line}\n"
        "print(sys.prefix, sys.path, *sorted(mapped), sep='\\n')\n"
    )
    command = own_python_command(str(tmp_path / "python"), str(tmp_path / "run.py"))
    done = subprocess.run(["bash", "-c", command], env={}, capture_output=True, text=True, check=True)
    prefix, path, *mapped = done.stdout.splitlines()
    assert prefix == str(tmp_path / "python")
    assert sys.base_prefix not in path
    elsewhere = [name for name in mapped if not name.startswith(f"{tmp_path}/python/")]
    glibc = ("libc", "libm", "libdl", "librt", "libutil", "libpthread", "libresolv", "libnsl", "ld-linux")
    assert [name for name in elsewhere if not Path(name).name.startswith(glibc)] == []


def test_an_interpreter_that_does_not_run_is_passed_over(on_path):
    program, prefix, library = find_python(VERSION)
    assert (program, prefix) == (Path(sys.executable).resolve(), Path(sys.base_prefix))
    assert (library / "os.py").is_file()


def test_a_version_that_is_not_here_is_said_with_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"there is no python3\.99 on the path: install it \(uv python install 3\.99\)"):
        copy_python("3.99", tmp_path)
