"""Parts of a task set: by instance, repository, date and share."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_swe.data_sources.registry import load_tasks, place, with_options
from slime_swe.errors import UserError
from tests.data_sources.tasks import make_task

FIXTURE = Path(__file__).parent / "fixtures" / "swebench"
VERIFIED = f"swebench:verified?folder={FIXTURE}"


def ids(spec: str) -> list[str]:
    return [task.id for task in load_tasks(spec)]


def many(split: str):
    repos = [f"owner/repo{number}" for number in range(40)]
    return [
        dataclasses.replace(make_task(f"task-{number}"), metadata={"repo": repos[number % 40]}) for number in range(400)
    ]


MANY = "tests.data_sources.test_selection.many:all"


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ("repo=django/django", ["django__django-1", "django__django-2"]),
        ("repo=Django/Django,sympy/sympy", ["django__django-1", "django__django-2", "sympy__sympy-3"]),
        ("id=sympy__sympy-3, django__django-1", ["django__django-1", "sympy__sympy-3"]),
        ("before=2021-06-01", ["django__django-1"]),
        ("after=2021-06-01", ["django__django-2", "sympy__sympy-3"]),
        ("after=2021-01-01&before=2022-01-31", ["django__django-2"]),
        ("before=2021-06-01T13:00:00%2B00:00", ["django__django-1", "django__django-2"]),
        ("repo=django/django&limit=1", ["django__django-1"]),
        ("repo=django/django&expect=2", ["django__django-1", "django__django-2"]),
        ("not_repo=Sympy/Sympy,no/such", ["django__django-1", "django__django-2"]),
        ("patch_lines=2-2&patch_files=-1&tests=2-", ["django__django-1", "sympy__sympy-3"]),
        ("tests=-1", ["django__django-2"]),
        ("difficulty=<15 MIN fix", ["django__django-2"]),
        ("not_id=sympy__sympy-3,django__django-1", ["django__django-2"]),
        ("statement=11-13", ["django__django-2", "sympy__sympy-3"]),
    ],
)
def test_what_is_left(options, left):
    assert ids(f"{VERIFIED}&{options}") == left


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("repo=flask/flask", "no task is of flask/flask; there are: django/django, sympy/sympy"),
        ("id=none,sympy__sympy-3", "1 of 2 ids are not in it: none"),
        ("not_id=none,sympy__sympy-3", "1 of 2 ids are not in it: none"),
        ("statement=9", "statement=9 must be a range"),
        ("ids=/no/such/list", "can't read the list of ids /no/such/list: No such file"),
        ("before=yesterday", "before must be a date such as 2022-01-31, got 'yesterday'"),
        ("before=2000-01-01", "is empty: what follows the \\? leaves none of its 3 tasks"),
        ("part=0.5", "must be two shares"),
        ("patch_lines=9", "patch_lines=9 must be a range such as 1-100, 1- or -100"),
        ("tests=5-2", "tests=5-2 must be a range"),
        ("patch_files=-", "must be a range"),
        ("patch_lines=100-", "leaves none of its 3 tasks"),
        ("patch_files=2-", "leaves none of its 3 tasks"),
        ("difficulty=easy", "no task is of difficulty easy; there are: <15 min fix"),
        ("part=0.5-0.2", "the first is smaller"),
        ("part=0-1&by=date", "by=date must be one of instance, repo"),
        ("limit=0", "limit=0 must be a whole number of at least 1"),
        ("expect=201", "holds 3 tasks, not the 201 that are expected"),
    ],
)
def test_what_can_not_be_chosen(options, message):
    with pytest.raises(UserError, match=message):
        load_tasks(f"{VERIFIED}&{options}")


def test_a_task_that_does_not_say_its_date_is_not_dropped_in_silence():
    with pytest.raises(UserError, match="task 'synthetic-heldout-0000' does not say its created_at"):
        load_tasks("synthetic:heldout?before=2022-01-01")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_list_of_instances(tmp_path, as_json):
    wanted = [task.id for task in many("")[::2]][:201]
    lines = ["# the instances of a paper", "", *(f"  {name}  # why" for name in wanted)]
    (tmp_path / "ids").write_text(json.dumps(wanted) if as_json else "\n".join(lines))
    assert ids(f"{MANY}?ids={tmp_path}/ids&expect=200") == wanted


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1, 2]", b"[", b"# nothing"])
def test_a_list_that_is_none(tmp_path, content):
    (tmp_path / "ids").write_bytes(content)
    with pytest.raises(UserError, match="the list of ids"):
        load_tasks(f"{MANY}?ids={tmp_path}/ids")


def test_shares_of_instances_are_disjoint_complete_and_stable():
    train, held_out = ids(f"{MANY}?part=0-0.8"), ids(f"{MANY}?part=0.8-1")
    assert not set(train) & set(held_out)
    assert sorted(train + held_out) == sorted(ids(MANY))
    assert 290 <= len(train) <= 350
    assert ids(f"{MANY}?part=0-0.8") == train
    assert ids(f"{MANY}?part=0-0.8&seed=1") != train
    assert set(ids(f"{MANY}?part=0-0.5")) <= set(train), "a larger share holds the smaller one"


def test_shares_of_repositories_keep_a_repository_whole():
    def repos(spec: str) -> set[str]:
        return {str(task.metadata["repo"]) for task in load_tasks(spec)}

    train, held_out = repos(f"{MANY}?part=0-0.8&by=repo"), repos(f"{MANY}?part=0.8-1&by=repo")
    assert not train & held_out and len(train | held_out) == 40


@given(st.text(), st.text())
def test_every_key_has_a_place(key, seed):
    assert 0 <= place(key, seed) < 1
    assert place(key, seed) == place(key, seed)


def test_places_are_what_they_were():
    """Splits that people have published would change with them."""
    assert place("django__django-1", "0") == pytest.approx(0.4469079331182755)


def test_by_the_difficulty_that_a_corpus_says():
    fixtures = FIXTURE.parent / "swerebench"
    assert ids(f"swerebench:v2?folder={fixtures}&difficulty=Medium,medium") == ["example__toy-7"]
    with pytest.raises(UserError, match="no task is of difficulty easy; there are: medium"):
        load_tasks(f"swerebench:v2?folder={fixtures}&difficulty=easy")


def test_a_filter_of_all_sets_gives_way_to_a_set_s_own():
    assert with_options("a/b.jsonl", {"tests": "1-9"}) == "a/b.jsonl?tests=1-9"
    assert with_options("swegym:train?tests=2-&limit=3", {"tests": "1-9", "not_repo": "a/b"}) == (
        "swegym:train?tests=2-&not_repo=a/b&limit=3"
    )
    assert with_options("no set", {"tests": "1-9"}) == "no set", "which is said where it is loaded"
    assert ids(with_options(VERIFIED, {"difficulty": "<15 min fix", "patch_lines": "1-"})) == ["django__django-2"]
