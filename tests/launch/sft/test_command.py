"""`slime-swe sft` on a run that real plug-ins have recorded."""

from __future__ import annotations

import json

import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.launch.cli import run
from slime_swe.rollout.journals import read_records
from slime_swe.rollout.records import EPISODES, EVALUATIONS
from slime_swe.rollout.warm_start import read_recorded


@pytest.fixture
def sft(recorded, tmp_path, capsys):
    """`sft(*options) -> (lines, what it has said as JSON)`."""

    def write(*options: str):
        out = tmp_path / f"solved{len([*tmp_path.iterdir()])}.jsonl"
        assert run(["sft", str(recorded), "--out", str(out), "--json", *options]) == 0
        return [json.loads(line) for line in out.read_bytes().splitlines()], json.loads(capsys.readouterr().out)

    return write


def refused(capsys, *words: str) -> str:
    assert run(["sft", *words]) == 2
    return capsys.readouterr().err


def test_solved_episodes_have_their_recorded_tokens_and_messages(sft, recorded):
    lines, said = sft()
    solved = [one for one in read_records(recorded / EPISODES) if one.solved]
    assert [line["tokens"] for line in lines] == [one.tokens for one in solved]
    assert [line["loss_mask"] for line in lines] == [one.loss_mask for one in solved]
    assert said["episodes"] == len(solved) == 2 and said["left_out"] == {"not_solved": 3}
    assert said["trained_tokens"] == sum(sum(one.loss_mask) for one in solved)
    first = lines[0]["messages"]
    assert [message["role"] for message in first] == [turn.role for turn in solved[0].turns[: len(first)]]
    assert first[-1]["role"] == "assistant" and lines[0]["tools"]
    flags = [message["step_loss_mask"] for message in first if message["role"] == "assistant"]
    assert flags == [1] * len(flags)


def test_what_it_writes_is_what_a_warm_start_reads(sft, tmp_path):
    _, said = sft()
    episodes = read_recorded(tmp_path / "solved0.jsonl")
    assert sum(about.trained for one in episodes for about in one.abouts) == said["trained_tokens"]
    assert len({one.id for one in episodes}) == 2 and {one.task for one in episodes} == {"calc-1"}


def test_an_evaluation_s_episodes_are_chosen_by_its_name(sft, recorded):
    lines, said = sft("--evaluation", "heldout")
    solved = [one for one in read_records(recorded / EVALUATIONS) if one.solved]
    assert len(solved) == 2 and said["left_out"]["duplicate"] == 1
    assert [line["tokens"] for line in lines] == [solved[0].tokens]


def test_a_task_that_an_evaluation_shows_is_left_out(recorded, tmp_path, capsys):
    task = load_tasks("synthetic:heldout")[0].to_dict() | {"id": "CALC-1"}
    (tmp_path / "mine.jsonl").write_text(json.dumps(task) + "\n")
    out = tmp_path / "solved.jsonl"
    said = refused(capsys, str(recorded), "--out", str(out), "--against", f"{tmp_path}/mine.jsonl")
    assert "no episode is left to train" in said and "2 of a task that an evaluation shows" in said
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--per-task", "0"], "--per-task must be at least 1"),
        (["--similar", "0"], "--similar must be more than 0"),
        (["--error", "("], "is no regular expression"),
        (["--max-tokens", "1"], "2 of too many tokens"),
        (["--evaluation", "held"], "heldout"),
    ],
)
def test_what_can_t_be_is_refused(recorded, tmp_path, capsys, options, said):
    assert said in refused(capsys, str(recorded), "--out", str(tmp_path / "x.jsonl"), *options)


def test_a_file_is_not_written_over(recorded, tmp_path, capsys):
    (tmp_path / "x.jsonl").write_text("mine")
    assert "is there already" in refused(capsys, str(recorded), "--out", str(tmp_path / "x.jsonl"))
    assert (tmp_path / "x.jsonl").read_text() == "mine"
