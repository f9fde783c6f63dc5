"""`steps:FILE`: a task for each step of what `slime-swe sft` has written, from the episode's own tokens."""

from __future__ import annotations

import json
import math

import pytest

from slime_swe.data_sources.registry import absolute, load_tasks
from slime_swe.data_sources.steps import MOST_ALIKE, STEP, prompt_of, read_calls
from slime_swe.errors import UserError
from slime_swe.launch.cli import run
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.records import EPISODES


@pytest.fixture
def solved(recorded, tmp_path):
    out = tmp_path / "solved.jsonl"
    assert run(["sft", str(recorded), "--out", str(out)]) == 0
    return out


def changed(path, **fields):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | fields) + "\n" for line in lines))


def test_each_reply_with_calls_is_a_step_behind_the_tokens_before_it(solved, recorded):
    tasks = load_tasks(f"steps:{solved}")
    record = next(one for one in read_records(recorded / EPISODES) if one.solved)
    replies = [turn for turn in record.turns if turn.role == "assistant"]
    mine = [task for task in tasks if prompt_of(task)[1].tokens == record.tokens]
    assert [task.id.rpartition("-")[2] for task in mine] == ["step1", "step2", "step3"]
    for task, turn in zip(mine, replies, strict=True):
        prompt, line = prompt_of(task)
        assert prompt == record.tokens[: turn.start] and line.tools
        assert [*line.replies[int(task.id[-1]) - 1]] == [turn.start, turn.end]
        made = read_calls(task.oracle.calls)
        assert [(call.name, call.arguments) for call in made] == [
            (call.name, json.loads(call.arguments)) for call in turn.calls
        ]
        assert task.metadata[STEP]["file"] == str(solved)
    assert run(["validate", f"steps:{solved}"]) == 0, "gold solves, and nothing does not"


def test_a_reply_without_calls_is_no_step(solved):
    ids = [task.id for task in load_tasks(f"steps:{solved}")]
    assert len(ids) == len(set(ids)) == 3, "the other solved episode calls no tool"


def test_of_steps_that_are_alike_a_twentieth_is_taken(solved):
    (line, *_) = solved.read_text().splitlines()
    lines = [json.dumps(json.loads(line) | {"episode": f"e{number}"}) for number in range(30)]
    solved.write_text("".join(f"{one}\n" for one in lines))
    tasks = load_tasks(f"steps:{solved}")
    assert len(tasks) == 3 * 5 == 3 * math.ceil(90 * MOST_ALIKE), "90 steps of three kinds"
    assert [task.id for task in tasks[:3]] == [f"e0-step{number}" for number in (1, 2, 3)]


def test_its_file_is_named_by_an_absolute_path_for_other_processes(solved, monkeypatch):
    monkeypatch.chdir(solved.parent)
    assert absolute("steps:solved.jsonl?limit=2") == f"steps:{solved}?limit=2"
    assert [task.id for task in load_tasks("steps:solved.jsonl")] == [task.id for task in load_tasks(f"steps:{solved}")]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tokens": []}, "line 1 has no tokens, as an endpoint gives none"),
        ({"replies": [[5, 6], [8, 9]]}, "replies to train, and names the places of 2: write the file anew"),
        ({"episode": 3}, "line 1 is no line that `slime-swe sft` has written"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            "line 1 is no line that `slime-swe sft` has written",
        ),
    ],
)
def test_a_file_that_can_not_be_used_is_refused(solved, fields, said):
    changed(solved, **fields)
    with pytest.raises(UserError, match=said):
        load_tasks(f"steps:{solved}")


def test_a_file_that_is_not_there_or_changes_later_is_named(solved, tmp_path):
    with pytest.raises(UserError, match=r"there is no file .*none\.jsonl: `slime-swe sft RUN"):
        load_tasks(f"steps:{tmp_path}/none.jsonl")
    task = load_tasks(f"steps:{solved}")[0]
    changed(solved, episode="another")
    with pytest.raises(UserError, match="has changed since its steps were read"):
        prompt_of(task)
    solved.unlink()
    with pytest.raises(UserError, match=r"can't read .*, whose steps are trained on: No such file"):
        prompt_of(task)
