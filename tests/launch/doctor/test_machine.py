"""Whatever a program does, asking it ends, and leaves nothing behind."""

from __future__ import annotations

import pytest

from slime_swe.launch.doctor import Machine, MachineError
from slime_swe.launch.ray.processes import lives
from tests.launch.doctor.machines import before_others, script
from tests.waiting import wait_for


@pytest.fixture
def ask(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", before_others(tmp_path))

    def ask(body: str, seconds: float = 30.0) -> str:
        script(tmp_path, "some-tool", body)
        return Machine(seconds).ask("some-tool")

    return ask


def test_what_is_printed_is_returned(ask):
    assert ask("echo out; echo err >&2") == "out\nerr\n"


def test_bytes_that_are_no_text_are_no_trouble(ask):
    assert ask(r"printf '\377\376ok'").endswith("ok")


def test_a_failure_says_what_was_printed(ask):
    with pytest.raises(MachineError, match=r"`some-tool` failed \(exit code 9\): no driver here"):
        ask("echo no driver here; exit 9")


def test_a_missing_program_is_named():
    with pytest.raises(MachineError, match="there is no program 'no-such-tool' on PATH"):
        Machine().ask("no-such-tool", "-v")


def test_a_program_of_no_known_format_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", before_others(tmp_path))
    (tmp_path / "some-tool").write_bytes(b"\x7fELF garbage")
    (tmp_path / "some-tool").chmod(0o755)
    with pytest.raises(MachineError, match="`some-tool` can't be run: Exec format error"):
        Machine().ask("some-tool")


@pytest.mark.parametrize(
    "body", ("sleep 600 & echo $! > {pid}; sleep 600", "echo $$ > {pid}; trap '' TERM; while :; do :; done")
)
def test_a_program_that_hangs_is_given_up_with_all_it_started(ask, tmp_path, body):
    with pytest.raises(MachineError, match=r"has not answered within 2 s"):
        ask(body.format(pid=tmp_path / "pid"), seconds=2)
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not lives(pid), "its end")  # its new parent may take a moment to collect it


def test_a_flood_is_cut_off(ask):
    with pytest.raises(MachineError, match=r"failed.*y y y y"):
        ask("yes")
