"""What can be compared: journals of real records, harness reports, repetitions, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import orjson
import pytest

from slime_swe.data_sources.slime_plugin import sample_of
from slime_swe.errors import UserError
from slime_swe.launch.compare import repositories_of
from slime_swe.launch.compare.sources import matched, read_report, read_side, read_source
from slime_swe.launch.config import resolve
from slime_swe.launch.runs import create_run
from slime_swe.rollout.journals import append_records
from slime_swe.rollout.records import EVALUATIONS, write_failure
from slime_swe.sample import Sample
from tests.data_sources.tasks import make_task


def make_run(name: str, *overrides: str) -> Path:
    return create_run(resolve("tiny_cpu", [f"run.name={name}", *overrides]))


def evaluate(
    folder: Path, outcomes: dict[str, list[int | None]], *, rollout: int = -1, name: str = "mine", attempt: int = 1,
    seed: int = 0,
) -> None:  # fmt: skip
    """Append an evaluation as a run does: each episode of two samples, None for one that infrastructure broke."""
    samples = []
    for group, (task, row) in enumerate(outcomes.items()):
        for outcome in row:
            index = len(samples)
            for part in range(2):
                sample = sample_of(make_task(task), index=index + part, group_index=group)
                sample.rollout_id, sample.status = index, Sample.Status.COMPLETED
                sample.tokens, sample.response_length, sample.loss_mask = [seed, index, part], 2, [1, 1]
                sample.metadata |= {"score": {"value": 1.0, "solved": outcome == 1}}
                samples.append(sample)
            if outcome is None:
                write_failure(samples[-1], "sandbox_error", "it died")
    append_records(folder / EVALUATIONS, samples, rollout_id=rollout, dataset=name, attempt=attempt)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(source: str):
    return read_source(source, "runs")


def test_an_evaluation_is_its_sound_episodes_and_the_newest_is_taken(here):
    folder = make_run("a")
    evaluate(folder, {"x": [0, 0], "y": [0, 0]})
    evaluate(folder, {"x": [1, 0], "y": [None, 1], "z": [None]}, rollout=4)
    evaluate(folder, {"q": [1]}, rollout=3, name="other")
    found = read("a")
    assert found["mine"].outcomes == {"x": [1, 0], "y": [1]}
    assert (found["mine"].broken, found["mine"].rollout) == (2, 4)
    assert (found["other"].outcomes, found["other"].rollout) == ({"q": [1]}, 3)
    assert read("runs/a")["mine"].outcomes == found["mine"].outcomes
    assert read("a@-1")["mine"].outcomes == {"x": [0, 0], "y": [0, 0]} and list(read("a@3")) == ["other"]


def test_of_a_run_that_was_killed_the_last_attempt_counts(here):
    folder = make_run("a")
    evaluate(folder, {"x": [0, 0]}, rollout=4)
    evaluate(folder, {"x": [1, 1]}, rollout=4, attempt=2)
    assert read("a")["mine"].outcomes == {"x": [1, 1]}


def test_repetitions_count_together(here):
    for seed, name in enumerate("ab"):
        evaluate(make_run(name), {"x": [seed, 1], "y": [None]}, seed=seed)
    side = read_side("a,b", "runs")["mine"]
    assert (side.outcomes, side.broken) == ({"x": [0, 1, 1, 1]}, 2)


def test_the_same_episodes_are_no_repetition(here):
    for name in "ab":
        evaluate(make_run(name), {"x": [0, 1]})
    with pytest.raises(UserError, match=r"a and b hold the same episodes, token by token.* another run\.seed"):
        read_side("a,b", "runs")
    evaluate(make_run("longer"), {"x": [0, 1, 1], "y": [0, 0, 1]})
    with pytest.raises(UserError, match="a and longer hold the same episodes"):
        read_side("a,longer", "runs")
    for name, outcomes in {"one": {"x": [None, 1, 1, 0]}, "other": {"x": [0, 1, 1, None]}}.items():
        evaluate(make_run(name), outcomes, seed=1)
    with pytest.raises(UserError, match="one and other hold the same episodes"):
        read_side("one,other", "runs")
    evaluate(make_run("few"), {"x": [0, None, None, 1]}, seed=1)
    assert read_side("one,few", "runs")["mine"].outcomes == {"x": [1, 1, 0, 0, 1]}, "one of two is in both"
    for text in ("a,a", ",", ""):
        with pytest.raises(UserError, match="must name each source once"):
            read_side(text, "runs")


def test_sets_are_matched_by_name_or_as_the_only_ones_or_by_their_tasks(here):
    for name, sets in {"both": ("mine", "yours"), "one": ("mine",), "another": ("theirs",)}.items():
        for number, of in enumerate(sets):
            evaluate(make_run(name) if number == 0 else here / "runs" / name, {f"{of}-task": [1]}, name=of)
    (here / "report.json").write_text(json.dumps({"submitted_ids": ["yours-task", "p"], "resolved_ids": ["p"]}))
    sides = {name: read_side(name, "runs") for name in ("both", "one", "another", "report.json")}

    def names(a: str, b: str) -> list[str]:
        return [name for name, *_ in matched(sides[a], sides[b])]

    assert names("both", "both") == ["mine", "yours"] and names("both", "one") == ["mine"]
    assert names("one", "another") == ["mine and theirs"]
    assert names("both", "report.json") == names("report.json", "both") == ["yours"]
    assert names("report.json", "report.json") == ["reports"]
    for a, b in (("both", "another"), ("one", "report.json")):
        with pytest.raises(UserError, match=r"share no evaluation set: A has mine.* and B has"):
            matched(sides[a], sides[b])
    with pytest.raises(UserError, match="no evaluation set in common: one has mine; another has theirs"):
        read_side("one,another", "runs")


def test_what_is_no_evaluation_is_refused_with_what_there_is(here):
    evaluate(make_run("a"), {"x": [1]})
    make_run("empty")
    for source, said in {
        "empty": "holds no evaluation",
        "a@7": "there is no evaluation of rollout 7, but of -1",
        "a@last": "after the @ stands the number of a rollout",
        "b": "there is no run 'b'",
    }.items():
        with pytest.raises(UserError, match=said):
            read(source)


def report(path: Path, **content) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_a_report_of_the_harness(here):
    """As swebench 5 writes it: errors and empty patches are not solved, failures of its infrastructure are broken."""
    content = {
        "submitted_ids": ["a", "b", "c", "d", "e"], "completed_ids": ["a", "b"], "resolved_ids": ["a"],
        "unresolved_ids": ["b"], "error_ids": ["c", "e"], "empty_patch_ids": ["d"], "infra_failure_ids": ["e"],
    }  # fmt: skip
    found = read_report(report(here / "model.run.json", **content))
    assert found.outcomes == {"a": [1], "b": [0], "c": [0], "d": [0]}
    assert (found.name, found.broken) == ("", 1)
    assert read_report(report(here / "short.json", submitted=["a", "b"], resolved=["b"])).outcomes == {
        "a": [0],
        "b": [1],
    }


def test_what_is_no_report_is_refused(here):
    wrong = {
        "list": ([1], "needs the lists submitted_ids and resolved_ids"),
        "alone": ({"resolved": ["a"]}, "needs the lists submitted_ids and resolved_ids"),
        "numbers": ({"submitted": [1], "resolved": []}, "needs the lists"),
        "strange": ({"submitted": ["a"], "resolved": ["b"]}, "resolved_ids has 'b', which is not in submitted_ids"),
    }
    for name, (content, said) in wrong.items():
        (here / f"{name}.json").write_text(json.dumps(content))
        with pytest.raises(UserError, match=said):
            read(f"{name}.json")
    (here / "text.json").write_text("{")
    with pytest.raises(UserError, match=r"text\.json is no JSON"):
        read("text.json")


def test_a_repository_is_read_from_the_id_or_from_the_task(here):
    ids = ["django__django-11099", "scikit-learn__scikit-learn-1", "pylint-dev__pylint-7"]
    assert repositories_of(ids, []) == (
        dict(zip(ids, ("django/django", "scikit-learn/scikit-learn", "pylint-dev/pylint"), strict=True)), "",
    )  # fmt: skip
    tasks = [dataclasses.replace(make_task(name), metadata={"repo": f"o/{name[0]}"}) for name in ("a-1", "a-2", "b-1")]
    (here / "tasks.jsonl").write_bytes(b"\n".join(orjson.dumps(task.to_dict()) for task in tasks))
    folder = make_run("a", "data.eval={mine:tasks.jsonl}")
    assert repositories_of(["a-1", "b-1", ids[0]], [(folder, "mine")])[0] == {
        "a-1": "o/a", "b-1": "o/b", ids[0]: "django/django",
    }  # fmt: skip


def test_repositories_that_are_not_known_are_said_with_the_reason(here):
    folder = make_run("a", "data.eval={mine:gone.jsonl,calc:calc.jsonl}")
    (here / "calc.jsonl").write_bytes(orjson.dumps(make_task("calc").to_dict()))
    for places, said in {
        (): "the repositories of 1 of 2 tasks are not known (calc, ...): the ids do not name them",
        ((folder, "calc"),): "their records do not name them",
        ((folder, "mine"),): "can't read the task file gone.jsonl",
        ((folder, "nope"),): "has no data.eval.nope",
    }.items():
        known, why = repositories_of(["calc", "django__django-1"], places)
        assert known is None and said in why
