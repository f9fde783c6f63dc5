from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from slime_swe.rewards.redteam import proof
from slime_swe.rewards.redteam.cases import TARGETS, attacks
from slime_swe.rewards.redteam.gate import Result, Row
from slime_swe.sandbox.docker import client
from slime_swe.sandbox.image import host as host_image

NEEDED = TARGETS["log"].attacks


def row(name: str, verdict: str = "held") -> Row:
    return Row("attack", "own", name, "log", verdict, "failed", 0.0, "failed test_add", 0.1)  # type: ignore[arg-type]


ROWS = tuple(row(case.name) for case in attacks()[:NEEDED])


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_gate_that_has_passed_is_not_played_again(capsys):
    path = proof.proof_path("no.such.backend", "log")
    proof.save(Result("no.such.backend", "log", ROWS), path)
    proof.require_integrity("no.such.backend", "log")
    assert capsys.readouterr().err == ""
    assert json.loads(path.read_text())["attacks"] == NEEDED


def test_a_fingerprint_is_of_the_sandbox_the_code_and_the_machine(monkeypatch, tmp_path):
    before = proof.fingerprint("bubblewrap")
    assert proof.fingerprint("bubblewrap") == before
    assert proof.fingerprint("subprocess") != before
    assert proof.fingerprint("docker:a") != proof.fingerprint("docker:b")
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap
    assert proof.fingerprint("bubblewrap") != before


class Daemon(BaseHTTPRequestHandler):
    """A Docker daemon, as far as it says what it is."""

    facts: ClassVar[dict[str, str]] = {"engine": "1", "security": "name=seccomp", "image": "sha256:a"}

    def do_GET(self):
        answers = {
            "version": {"ApiVersion": "1.41", "Components": [{"Name": "Engine", "Version": self.facts["engine"]}]},
            "info": {"SecurityOptions": [self.facts["security"]]},
            "json": {"Id": self.facts["image"]},
        }
        answer = json.dumps(answers.get(self.path.rpartition("/")[2], {})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words):
        pass


@pytest.fixture
def daemon(monkeypatch):
    pytest.importorskip("docker")
    monkeypatch.setattr(Daemon, "facts", dict(Daemon.facts))
    with ThreadingHTTPServer(("127.0.0.1", 0), Daemon) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_address[1]}")
        client.connect.cache_clear()
        yield Daemon.facts
        client.connect.cache_clear()
        server.shutdown()


@pytest.mark.parametrize("fact", Daemon.facts)
def test_docker_and_the_image_are_part_of_docker_s_fingerprint_alone(daemon, fact):
    sandboxes = ("docker:a", "overlay", "bubblewrap")
    before = [proof.fingerprint(sandbox) for sandbox in sandboxes]
    assert [proof.fingerprint(sandbox) for sandbox in sandboxes] == before
    daemon[fact] += "b"
    assert [proof.fingerprint(sandbox) == old for sandbox, old in zip(sandboxes, before, strict=True)] == [
        False, True, True,
    ]  # fmt: skip


def test_without_a_daemon_there_is_a_fingerprint_all_the_same(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    client.connect.cache_clear()
    assert proof.fingerprint("docker") != proof.fingerprint("docker:a")
    client.connect.cache_clear()


def test_the_packages_that_the_host_image_is_made_of_count(monkeypatch):
    before = [proof.fingerprint(sandbox) for sandbox in ("overlay", "overlay:dir:/a", "bubblewrap")]
    monkeypatch.setattr(host_image.digest, "__defaults__", (("bash",),))
    after = [proof.fingerprint(sandbox) for sandbox in ("overlay", "overlay:dir:/a", "bubblewrap")]
    assert [new == old for new, old in zip(after, before, strict=True)] == [False, True, True]


def test_a_backend_of_the_person_s_own_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "own_backend_of_a_test.py"
    module.write_text("x = 1\n")
    before = proof.fingerprint("own_backend_of_a_test.open")
    module.write_text("x = 2\n")
    assert proof.fingerprint("own_backend_of_a_test.open") != before


def test_a_refusal_names_what_got_past_and_what_to_do():
    result = Result("subprocess", "log", (*ROWS, row("network-http", "rewarded"), row("kill-everything", "broken")))
    assert not result.passed
    text = proof.refusal(result)
    assert "network-http: rewarded" in text and "kill-everything: broken" in text
    assert "slime-swe integrity subprocess --grader log" in text and "--ignore-integrity" in text


def test_counts_are_of_cases_and_few_attacks_prove_nothing():
    assert Result("a", "log", ROWS).passed
    assert not Result("a", "log", ROWS[1:]).passed
    record = Result("a", "log", (*ROWS, row("x", "rewarded"))).to_dict()
    assert (record["attacks"], record["rewarded"], record["benign_cases"]) == (NEEDED + 1, 1, 0)
    assert len(record["rows"]) == NEEDED + 1


def test_a_cache_that_can_not_be_written_is_no_error(tmp_path, monkeypatch, capsys):
    (tmp_path / "slime-swe").write_text("a file in the way")
    proof.save(Result("a", "log", ROWS), proof.proof_path("subprocess", "log"))
    said = capsys.readouterr().err
    assert f"could not be kept in {tmp_path / 'slime-swe' / 'integrity'} (Not a directory)" in said
    assert "set XDG_CACHE_HOME to a folder that can be written" in said
