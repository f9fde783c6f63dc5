"""`slime-swe tasks filter`: the tasks that some of their episodes solved, from the journals of runs and evaluations."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import orjson
import pytest

from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.slime_plugin import sample_of
from slime_swe.launch.cli import run
from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.rollout.journals import append_records
from slime_swe.rollout.records import EPISODES, EVALUATIONS, write_failure
from slime_swe.sample import Sample
from tests.data_sources.tasks import make_task

NAMES = ("never", "once", "most", "always", "rare")


def play(journal: Path, outcomes: dict[str, list[int | None]], *, rollout: int = 0, attempt: int = 1, **more) -> None:
    """Append episodes of two samples each; None for one that infrastructure broke."""
    samples: list[Sample] = []
    for group, (task, row) in enumerate(outcomes.items()):
        for outcome in row:
            index = len(samples)
            for part in range(2):
                sample = sample_of(make_task(task), index=index + part, group_index=group)
                sample.rollout_id, sample.status = index, Sample.Status.COMPLETED
                sample.tokens, sample.response_length, sample.loss_mask = [index, part], 1, [1]
                sample.metadata |= {"score": {"value": 1.0, "solved": outcome == 1}}
                samples.append(sample)
            if outcome is None:
                write_failure(samples[-1], "sandbox_error", "it died")
    append_records(journal, samples, rollout_id=rollout, attempt=attempt, **more)


def solved(count: int, of: int = 8) -> list[int | None]:
    return [int(place < count) for place in range(of)]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A run of the tasks of a file, 8 episodes each, of which infrastructure broke some."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_bytes(b"\n".join(orjson.dumps(make_task(name).to_dict()) for name in NAMES))
    made = create_run(resolve("tiny_cpu", ["run.name=a", "data.train=[mine.jsonl]"]))
    outcomes = {"never": solved(0), "once": solved(1), "most": [*solved(6, 7), None], "always": [*solved(7, 7), None]}
    play(made / EPISODES, outcomes | {"rare": [1, *[None] * 7]})
    return made


def filtered(capsys, *words: str) -> dict:
    assert run(["tasks", "filter", *words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_tasks_that_some_episodes_solved_are_a_list_that_training_takes(folder, capsys):
    assert run(["tasks", "filter", "a", "--solved", "1-7"]) == 0
    said, override = capsys.readouterr().out.splitlines()
    assert said == (
        "2 of 5 tasks were solved in 12.5% to 87.5% of their episodes, 1-7 of 8; left out: 1 never solved, "
        "1 always solved, 1 seen in fewer than 2 episodes (--min-episodes)"
    )
    assert Path("filtered.txt").read_text() == "most  # 6 of 7\nonce  # 1 of 8\n"
    (word,) = shlex.split(override)
    recipe = resolve("tiny_cpu", [word])
    assert [task.id for spec in recipe.data.train for task in load_tasks(spec)] == ["once", "most"]


def test_seven_of_seven_are_all_where_others_have_eight(folder, capsys):
    assert "always" not in filtered(capsys, "a", "--solved", "1-7")["kept"]
    assert [*filtered(capsys, "a", "--solved", "8-8", "--out", "all.txt")["kept"]] == ["always"]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--solved", "0-1"], ["never", "once"]),
        (["--solved", "10%-90%"], ["most", "once"]),
        (["--solved", "12.5% - 12.5%"], ["once"]),
        (["--solved", "0%-100%", "--min-episodes", "1"], sorted(NAMES)),
        (["--solved", "0%-100%", "--min-episodes", "8"], ["never", "once"]),
    ],
)
def test_ranges(folder, capsys, words, kept):
    assert [*filtered(capsys, "a", *words)["kept"]] == kept


def test_runs_add_up_and_of_what_two_attempts_played_the_last_one_counts(folder, capsys):
    play(folder / EPISODES, {"once": solved(8)}, rollout=1)
    play(folder / EPISODES, {"once": solved(0)}, rollout=1, attempt=2)
    other = create_run(resolve("tiny_cpu", ["run.name=b", "data.train=[mine.jsonl]"]))
    play(other / EPISODES, {"never": solved(3)})
    kept = filtered(capsys, "a", "b", "a", "--solved", "1%-99%")["kept"]
    assert kept == {"most": [6, 7], "never": [3, 16], "once": [1, 16]}


def test_an_evaluation_s_sets_are_those_that_it_has_played(folder, capsys):
    made = create_run(resolve("tiny_cpu", ["run.name=e", "data.eval={mine: mine.jsonl, heldout: 'synthetic:heldout'}"]))
    play(made / EVALUATIONS, {"never": solved(2, 4)}, rollout=-1, dataset="mine")
    found = filtered(capsys, "e", "--solved", "1-3")
    assert found["of"] == 4 and [*found["files"]] == [f"mine.jsonl?ids={Path('filtered.txt').resolve()}"]
    play(folder / EVALUATIONS, {"never": solved(1, 2)}, rollout=-1, dataset="mine")
    assert run(["tasks", "filter", "a", "--solved", "1-1", "--evaluation", "other"]) == 2
    assert "unknown name 'other'. Available: mine" in capsys.readouterr().err


def test_each_of_several_sets_has_a_file_of_its_own(folder, capsys):
    rest = [make_task(name) for name in ("x", "y")]
    Path("more.jsonl").write_bytes(b"\n".join(orjson.dumps(task.to_dict()) for task in rest))
    made = create_run(
        resolve("tiny_cpu", ["run.name=two", "data.train=[mine.jsonl, 'more.jsonl?limit=2&ids=old.txt']"])
    )
    Path("old.txt").write_text("x\ny\n")
    play(made / EPISODES, {"once": solved(1), "x": solved(2), "y": solved(8)})
    found = filtered(capsys, "two", "--solved", "1-7", "--out", "some.txt")
    here = Path.cwd()
    assert found["files"] == {
        f"mine.jsonl?ids={here}/some-1.txt": "some-1.txt",
        f"more.jsonl?limit=2&ids={here}/some-2.txt": "some-2.txt",
    }
    assert [[task.id for task in load_tasks(spec)] for spec in found["files"]] == [["once"], ["x"]]


def test_ids_that_a_line_can_t_hold_are_a_json_list(folder, capsys):
    made = create_run(resolve("tiny_cpu", ["run.name=odd", "data.train=[odd.jsonl]"]))
    Path("odd.jsonl").write_bytes(orjson.dumps(make_task("a/b#1").to_dict()))
    play(made / EPISODES, {"a/b#1": solved(1)})
    (spec,) = filtered(capsys, "odd", "--solved", "1-7")["files"]
    assert [task.id for task in load_tasks(spec)] == ["a/b#1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "needs a run and --solved, e.g. first --solved 1-7"),
        (["--solved", "1-7"], "needs a run and --solved"),
        (["b", "--solved", "1-7"], "there is no run 'b' in runs"),
        (["a", "--solved", "7-1"], "--solved 7-1 is no range: give counts"),
        (["a", "--solved", "7"], "is no range"),
        (["a", "--solved", "1.5-7"], "is no range"),
        (["a", "--solved", "1-70%"], "is no range"),
        (["a", "--solved", "10%-190%"], "is no range"),
        (["a", "--solved", "1-9"], "most tasks have 8 episodes, and 9 is more"),
        (["a", "--solved", "2-5"], "keeps no task: 0 of 5 tasks"),
        (["a", "--solved", "1-7", "--min-episodes", "99"], "5 seen in fewer than 99 episodes (--min-episodes)"),
        (["a", "--solved", "1-7", "--min-episodes", "0"], "--min-episodes 0 must be at least 1"),
        (["a", "--solved", "1-7", "--out", "mine.jsonl"], "mine.jsonl is there already"),
        (["empty", "--solved", "1-7"], "episodes.jsonl is not there yet"),
    ],
)
def test_what_can_t_be_filtered_is_said_and_nothing_is_written(folder, capsys, words, said):
    create_run(resolve("tiny_cpu", ["run.name=empty"]))
    before = sorted(Path.cwd().iterdir())
    assert run(["tasks", "filter", *words]) == 2
    assert said in capsys.readouterr().err
    assert sorted(Path.cwd().iterdir()) == before
