"""`slime-swe episodes`: a recorded trajectory reads as a conversation, and a list can be sorted and searched."""

from __future__ import annotations

import json

import msgspec
import orjson
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from slime_swe.launch.cli import run
from slime_swe.launch.commands.episodes import readable, row_of, runs
from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.rollout.records import EPISODES, EVALUATIONS, Record


@pytest.fixture
def tokenizer_file(tmp_path):
    words = ["[context]", "fix", "edited", "done"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[context]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def made(**values) -> Record:
    columns = {"index": 0, "group_index": 0, "trajectory": 0, "task": "t", "status": "completed", "reward": 1.0}
    return msgspec.convert(columns | values, Record)


@pytest.fixture
def record():
    return made(
        rollout_id=3, index=7, tokens=[0, 1, 2, 2, 3], response_length=4, loss_mask=[1, 0, 0, 1],
        episode={"patch": "--- a\n+++ b\n", "stop_reason": "submitted", "turns": 2},
        score={"value": 1.0, "solved": True, "components": {}, "evidence": {"outcome": "solved", "log": "x\ny"}},
    )  # fmt: skip


def test_runs_of_one_origin(record):
    assert list(runs(record)) == [(False, [0]), (True, [1]), (False, [2, 2]), (True, [3])]


def test_the_whole_trajectory(record, tokenizer_file):
    assert readable(record, tokenizer_file).splitlines() == [
        "rollout 3  index 7  task t  outcome solved  reward 1.0  turns 2  sampled 2  stop_reason submitted",
        "──── context · 1 tokens",
        "[context]",
        "──── policy · 1 tokens",
        "fix",
        "──── context · 2 tokens",
        "editededited",
        "──── policy · 1 tokens",
        "done",
        "──── patch",
        "--- a",
        "+++ b",
        "──── score 1.0",
        "outcome: solved",
        "log:",
        "x",
        "y",
    ]


def test_an_infrastructure_failure_says_what_broke(tokenizer_file):
    broken = made(infrastructure={"where": "sandbox_error", "detail": "it died"}, status="aborted")
    assert row_of(broken)["outcome"] == "broken"
    assert readable(broken, tokenizer_file).endswith("──── infrastructure failure\nsandbox_error: it died")


def line(number: int, solved: bool, **more) -> bytes:
    record = made(
        rollout_id=number, index=number, trajectory=number, task=f"t{number}", reward=[0.5, 1.0, -1.0][number],
        score={"value": 1.0, "solved": solved}, episode={"patch": "", "stop_reason": "submitted", "turns": 2}, **more,
    )  # fmt: skip
    return orjson.dumps(msgspec.to_builtins(record)) + b"\n"


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = create_run(resolve("tiny_cpu", ["run.name=a"]))
    (folder / EPISODES).write_bytes(b"".join(line(number, number == 1) for number in range(3)) + b'{"half')
    return folder


def listed(capsys, *words: str) -> list[int]:
    assert run(["episodes", "a", "--list", "--json", *words]) == 0
    return [row["index"] for row in json.loads(capsys.readouterr().out)]


def test_episodes_are_filtered_sorted_and_listed(recorded, capsys):
    assert listed(capsys) == [0, 1, 2], "the half-written record is left out"
    assert listed(capsys, "--sort", "reward") == [2, 0, 1]
    assert listed(capsys, "--solved") == [1]
    assert run(["episodes", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["index"] == 2
    assert run(["episodes", "a", "--no-solved", "--list"]) == 0
    assert [row.split() for row in capsys.readouterr().out.splitlines()] == [
        ["rollout", "index", "task", "outcome", "reward", "turns", "sampled", "stop", "reason"],
        ["0", "0", "t0", "not", "solved", "0.5", "2", "0", "submitted"],
        ["2", "2", "t2", "not", "solved", "-1.0", "2", "0", "submitted"],
    ]
    assert run(["episodes", "a", "--rollout", "9"]) == 2
    assert "--list" in capsys.readouterr().err


def test_an_evaluation_that_is_not_there_is_refused_with_those_that_are(recorded, capsys):
    assert run(["episodes", "a", "--evaluation", "heldout"]) == 2
    assert "is not there yet" in capsys.readouterr().err
    (recorded / EVALUATIONS).write_bytes(line(0, True, dataset="heldout"))
    assert listed(capsys, "--evaluation", "heldout") == [0]
    assert run(["episodes", "a", "--evaluation", "heldou", "--list"]) == 2
    assert "Did you mean 'heldout'" in capsys.readouterr().err
    (recorded / EPISODES).unlink()
    assert listed(capsys) == [0], "an evaluation of its own has no other episodes"
