"""No secret of the environment is left in what is written: one of each kind that `detect-secrets` knows."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class

from slime_swe.redaction import redacted, secrets_of
from slime_swe.rollout.journals import append_records, read_records
from slime_swe.sample import Sample
from tests.planted import ENVIRONMENT, LINES, PLANTED

KINDS = get_mapping_from_secret_type_to_class()
NO_SECRETS = {"Public IP (ipv4)"}


def test_every_kind_is_planted():
    assert set(PLANTED) == set(KINDS) - NO_SECRETS


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_planted_is_recognised_before_and_is_gone_after(kind):
    name, value, _ = PLANTED[kind]
    plugin = KINDS[kind]()
    assert any(plugin.analyze_string(line) for line in LINES[kind].splitlines()), "or the test shows nothing"
    text = redacted(f"a{LINES[kind]}b", secrets_of(ENVIRONMENT))
    assert value not in text and "redacted]" in text
    alone = redacted(LINES[kind], secrets_of({name: value}))
    assert alone == PLANTED[kind][2].format(f"[{name} redacted]")


def test_the_longest_secret_is_replaced_first():
    secrets = secrets_of({"A_KEY": "12345678", "B_TOKEN": "1234567890", "C_SECRET": "0012345678"})
    assert (
        redacted("1234567890 0012345678 12345678", secrets) == "[B_TOKEN redacted] [C_SECRET redacted] [A_KEY redacted]"
    )


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("HF_TOKEN", "hf_abcdefgh", True),
        ("openai_apikey", "sk-abcdefgh", True),
        ("AWS_SECRET_ACCESS_KEY", "abcdefgh", True),
        ("MYSQL_PWD", "abcdefgh", True),
        ("TOKENIZERS_PARALLELISM", "abcdefgh", False),
        ("PWD", "/home/me/work", False),
        ("PATH", "/usr/bin:/bin", False),
        ("KEYBOARD", "abcdefgh", False),
        ("SHORT_KEY", "abcdefg", False),
        ("EMPTY_TOKEN", "", False),
    ],
)
def test_which_variables_are_secrets(name, value, is_secret):
    assert bool(secrets_of({name: value})) == is_secret


def test_a_secret_inside_json_text_and_in_a_key_is_replaced():
    secret = 'line one\n"line" two é'
    inner = json.dumps({"command": f"echo {secret}"}), json.dumps({"command": secret}, ensure_ascii=False)
    done = redacted({secret: [*inner, 3, None, 1.5]}, secrets_of({"A_SECRET": secret}))
    assert done == {
        "[A_SECRET redacted]": [
            '{"command": "echo [A_SECRET redacted]"}',
            '{"command": "[A_SECRET redacted]"}',
            3,
            None,
            1.5,
        ]
    }


@pytest.mark.parametrize("sign", ["+", "-", " "])
def test_a_secret_of_several_lines_is_replaced_in_a_diff(sign):
    key = ENVIRONMENT["SSH_PRIVATE_KEY"] + "\n"
    patch = "--- a/k\n+++ b/k\n@@ -0,0 +1,4 @@\n" + "".join(sign + line for line in key.splitlines(keepends=True))
    wanted = patch[: patch.index(sign + "-----BEGIN")] + f"{sign}[SSH_PRIVATE_KEY redacted]\n"
    secrets = secrets_of(ENVIRONMENT)
    assert redacted(patch, secrets) == wanted
    assert redacted(json.dumps({"command": patch}), secrets) == json.dumps({"command": wanted})


@dataclass
class Found:
    text: str


def test_a_secret_in_types_of_hooks_that_become_json_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "sk-verysecret-123")
    secret = "x sk-verysecret-123"
    kept = {"a": Found(secret), "b": np.array([secret]), "c": {1: [Found(secret)]}, "d": np.float32(0.5)}
    metadata = {"score": {"solved": True, "evidence": kept}, "tools": [{"function": Found(secret)}]}
    append_records(tmp_path / "episodes.jsonl", [Sample(index=0, response="r", metadata=metadata)])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert not [path for path in files if "verysecret" in path.read_text()]
    (record,) = read_records(tmp_path / "episodes.jsonl")
    hidden = "x [MY_API_KEY redacted]"
    assert record.score.evidence == {"a": {"text": hidden}, "b": [hidden], "c": {"1": [{"text": hidden}]}, "d": 0.5}


def test_records_hold_no_secret(tmp_path, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    shown = "\n".join(LINES.values())
    turns = [
        {"role": "tool", "text": shown, "start": 0, "end": 1},
        {"role": "assistant", "text": "", "start": 1, "end": 2, "calls": [
            {"id": "c", "name": "bash", "arguments": json.dumps({"command": shown})}]},
    ]  # fmt: skip
    metadata = {
        "episode": {"patch": "\n".join(f"+{line}" for line in shown.split("\n")), "detail": shown},
        "score": {"solved": True, "evidence": {"log": shown}},
        "infrastructure": {"where": "grader", "detail": shown},
        "turns": turns,
        "tools": [{"function": {"description": shown}}],
    }
    append_records(tmp_path / "episodes.jsonl", [Sample(index=0, response=f"x{shown}y", metadata=metadata)])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 3
    for path in files:
        content = path.read_text() + path.read_text().encode().decode("unicode_escape", errors="ignore")
        assert not [name for name, value in ENVIRONMENT.items() if value in content], path
    (record,) = read_records(tmp_path / "episodes.jsonl")
    assert "[OPENAI_API_KEY redacted]" in record.turns[0].text and "[SSH_PRIVATE_KEY redacted]" in record.response
    assert "[SSH_PRIVATE_KEY redacted]" in record.episode.patch
    assert metadata["turns"][0]["text"] == shown, "what is trained on is left as it is"
