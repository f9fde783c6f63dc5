"""A recorded trajectory reads as a conversation, what the policy said apart from what it saw."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from launch.trajectory import line_of, readable, runs


@pytest.fixture
def tokenizer_file(tmp_path):
    words = ["[context]", "fix", "edited", "done"]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[context]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture
def record():
    return {
        "rollout_id": 3, "index": 7, "task": "t", "reward": 1.0, "infrastructure": None,
        "tokens": [0, 1, 2, 2, 3], "response_length": 4, "loss_mask": [1, 0, 0, 1],
        "episode": {"patch": "--- a\n+++ b\n", "stop_reason": "submitted", "turns": 2},
        "score": {"value": 1.0, "solved": True, "components": {}, "evidence": {"outcome": "solved", "log": "x\ny"}},
    }  # fmt: skip


def test_runs_of_one_origin(record):
    assert list(runs(record)) == [(False, [0]), (True, [1]), (False, [2, 2]), (True, [3])]


def test_the_whole_trajectory(record, tokenizer_file):
    assert readable(record, tokenizer_file).splitlines() == [
        "rollout 3  index 7  t  reward 1.0  solved  submitted  2 turns",
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


def test_an_infrastructure_failure_says_what_broke(record, tokenizer_file):
    broken = record | {"score": None, "infrastructure": {"where": "sandbox_error", "detail": "it died"}}
    assert "infrastructure failure" in line_of(broken)
    assert readable(broken, tokenizer_file).endswith("──── infrastructure failure\nsandbox_error: it died")
