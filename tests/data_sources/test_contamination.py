"""What training shows of the evaluation: found, listed, allowed by name; and no alarm where there is nothing."""

from __future__ import annotations

import dataclasses
import random

import pytest

from slime_swe.data_sources.contamination import ContaminationError, find_overlaps, ngrams, require_clean
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Task
from tests.data_sources.tasks import GOLD, make_task
from tests.effort import FACTOR, assert_linear

WORDS = [f"word{number}" for number in range(4000)]
FORM = "Describe the problem. What did you do, what did you expect to happen, and what happened instead of it? "


def text(seed: object, words: int = 120) -> str:
    return " ".join(random.Random(str(seed)).choices(WORDS, k=words))


def patch(seed: object, path: str = "src/code.py", lines: int = 4) -> str:
    rng = random.Random(f"patch {seed}")
    body = "".join(
        f"-    {rng.choice(WORDS)} = {rng.random()}\n+    {rng.choice(WORDS)} = {rng.random()}\n" for _ in range(lines)
    )
    return f"--- a/{path}\n+++ b/{path}\n@@ -1,{lines} +1,{lines} @@\n{body}"


def task(name: str, statement: str | None = None, gold: str | None = None, **metadata: str) -> Task:
    made = make_task(name, gold_patch=patch(name) if gold is None else gold)
    return dataclasses.replace(made, statement=text(name) if statement is None else statement, metadata=metadata)


def found(training: list[Task], evaluation: list[Task]) -> list[tuple[str, str, str]]:
    return [(overlap.evaluated, overlap.trained, overlap.how) for overlap in find_overlaps(training, evaluation)]


def test_tasks_that_share_nothing():
    assert found([task(f"t{i}") for i in range(50)], [task(f"e{i}") for i in range(50)]) == []


def test_the_same_instance():
    assert found([task("Django__django-1", "a", "")], [task("django__django-1", "b", "")]) == [
        ("django__django-1", "Django__django-1", "instance")
    ]


def test_the_same_commit_also_where_its_hash_is_cut_short():
    commit = "2740fb4a" + "0" * 32
    train = [task("t1", repo="Pandas-dev/pandas", base_commit=commit), task("t2", repo="a/b", base_commit=commit)]
    assert found(train, [task("e", repo="pandas-dev/pandas", base_commit="2740fb4")]) == [("e", "t1", "commit")]
    assert found(train, [task("e", repo="pandas-dev/pandas", base_commit="2740fb5")]) == []
    assert found([task("t", repo="a/b", base_commit="22")], [task("e", repo="a/b", base_commit="22")]) == []


def test_the_same_issue_with_other_punctuation_and_a_little_more():
    issue = text("issue")
    train = [task("t", "> " + issue.upper().replace(" ", ",  ", 40) + "\n\n" + text("and more", 30))]
    assert found(train, [task("e", issue)]) == [("e", "t", "statement")]


def test_half_of_an_issue_is_enough_and_a_sentence_is_not():
    issue = text("issue", 200).split()
    most, few = " ".join(issue[:130]), " ".join(issue[:40])
    assert found([task("t", most + " " + text("rest", 70))], [task("e", " ".join(issue))]) == [("e", "t", "statement")]
    assert found([task("t", few + " " + text("rest", 160))], [task("e", " ".join(issue))]) == []


def test_a_form_that_many_issues_fill_in_is_no_overlap():
    evaluation = [task(f"e{i}", FORM + text(f"e{i}", 14)) for i in range(20)]
    training = [task(f"t{i}", FORM + text(f"t{i}", 14)) for i in range(20)]
    assert found(training, evaluation) == []
    assert found([*training, task("copy", evaluation[3].statement)], evaluation) == [("e3", "copy", "statement")]


def test_an_issue_that_is_twice_in_the_evaluation_is_still_found():
    evaluation = [task("e1", text("issue")), task("e2", text("issue"))]
    assert found([task("t", text("issue"))], evaluation) == [("e1", "t", "statement"), ("e2", "t", "statement")]


def test_short_statements():
    assert ngrams("Fix the bug, please.") == set()
    assert len(ngrams("one two three four five six seven eight")) == 1
    assert len(ngrams(text("x", 13))) == 1 and len(ngrams(text("x", 14))) == 2
    assert found([task("t", "Fix the bug.")], [task("e", "Fix the bug.")]) == []


def test_the_same_fix_at_another_place_of_the_file_and_indented_otherwise():
    gold = patch("fix")
    moved = gold.replace("@@ -1,4 +1,4 @@", "@@ -90,4 +91,4 @@").replace("    ", "\t").replace("src/", "lib/src/")
    assert found([task("t", gold=moved)], [task("e", gold=gold)]) == [("e", "t", "patch")]
    other_file = gold.replace("code.py", "other.py")
    assert found([task("t", gold=other_file)], [task("e", gold=gold)]) == []


def test_a_line_in_common_is_no_fix_in_common():
    gold, other = patch("one"), patch("two")
    shared = gold.splitlines()[3]
    assert found([task("t", gold=other + shared + "\n")], [task("e", gold=gold)]) == []
    assert found([task("t", gold="")], [task("e", gold="")]) == []


def test_only_the_first_finding_of_a_pair_is_listed():
    same = task("same", repo="a/b", base_commit="1" * 40)
    assert found([same], [same]) == [("same", "same", "instance")]


@pytest.mark.parametrize("split", ["heldout", "unseen"])
def test_the_synthetic_tasks_raise_no_alarm_though_one_generator_makes_them(split):
    assert find_overlaps(load_tasks("synthetic:train"), load_tasks(f"synthetic:{split}")) == []


def test_a_synthetic_task_that_was_moved_over_is_found():
    evaluation = load_tasks("synthetic:heldout")
    copies = [dataclasses.replace(t, id=f"mine-{i}") for i, t in enumerate(evaluation[::20])]
    overlaps = find_overlaps([*load_tasks("synthetic:train"), *copies], evaluation)
    assert [overlap.evaluated for overlap in overlaps] == [t.id for t in evaluation[::20]]


def test_overlap_is_refused_with_the_list_and_allowed_by_name():
    overlaps = find_overlaps([task("a"), task("b", gold=GOLD)], [task("a"), task("c", gold=GOLD), task("d")])
    with pytest.raises(ContaminationError) as caught:
        require_clean(overlaps, ["a"])
    assert "1 of the evaluation's tasks:\n  c: same patch as b in training\n" in str(caught.value)
    assert "'data.allow_overlap=[c]'" in str(caught.value)
    assert require_clean(overlaps, ["a", "c"]) == overlaps == require_clean(overlaps, ["*"])
    with pytest.raises(ContaminationError, match="names what does not overlap: d; leave it out"):
        require_clean(overlaps, ["a", "c", "d"])
    assert require_clean([], []) == []


def test_a_long_list_is_cut():
    tasks = [task(f"t{i}") for i in range(30)]
    with pytest.raises(ContaminationError) as caught:
        require_clean(find_overlaps(tasks, tasks), [])
    assert "show 30 of the evaluation's tasks" in str(caught.value)
    assert "t19: same" in str(caught.value) and "t20: same" not in str(caught.value)
    advice = str(caught.value).rpartition("data.allow_overlap=[")[2].partition("]")[0]
    assert len(require_clean(find_overlaps(tasks, tasks), advice.split(","))) == 30, "pasting it is enough"
    assert "… and 10 more" in str(caught.value)


def test_it_takes_time_in_proportion_to_the_tasks_and_not_to_their_pairs():
    most = FACTOR * 75
    training = [task(f"t{i}", text(f"t{i}", 250), patch(f"t{i}", lines=15)) for i in range(most)]
    evaluation = [task(f"e{i}", text(f"e{i}", 250), patch(f"e{i}", lines=15)) for i in range(most)]
    assert find_overlaps(training[:75], evaluation) == []
    assert_linear(lambda count: find_overlaps(training[:count], evaluation[:count]), most // FACTOR)
