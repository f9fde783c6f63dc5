"""An oracle of kind `diff`: a patch is worth its likeness to the gold patch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slime_swe.data_sources.diff import REWARDS, DiffOracle
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.task import Image, Task, Workspace
from slime_swe.errors import UserError
from slime_swe.patches import MAX_PATCH_BYTES, make_patch
from slime_swe.rewards.grade import GradingSettings, grade
from slime_swe.rewards.redteam.cases import TARGETS, Target, attacks
from slime_swe.rewards.redteam.gate import Player
from slime_swe.rewards.validation import Status, validate
from slime_swe.rollout.records import Score
from slime_swe.sandbox.pool import SandboxPool
from tests.effort import assert_linear

pytest.importorskip("cydifflib")
from slime_swe.rewards.diff import compare, likeness, shared_runs, similarity

FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef name():\n    return 'calc'\n",
    "user.py": "from calc import add\n\nprint(add(1, 2))\n",
    "notes.txt": "nothing\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n",
}
AFTER = FILES | {"calc.py": FILES["calc.py"].replace("a - b", "a + b"), "user.py": FILES["user.py"].replace("1", "4")}
GOLD = make_patch(FILES, AFTER)
HALF = make_patch(FILES, FILES | {"calc.py": AFTER["calc.py"]})
FRACTION = GradingSettings("fraction")


def task(reward="swe_rl", **values) -> Task:
    oracle = DiffOracle(**{"protected": ("test_calc.py",), "gold_patch": GOLD, "reward": reward, **values})
    return Task("calc", "add gives wrong sums", Workspace(FILES), oracle)


def with_changes(**changes: str) -> str:
    """The patch that writes these files; a name has its dot as an underscore."""
    return make_patch(FILES, FILES | {path.replace("_", "."): text for path, text in changes.items()})


async def value(patch: str, reward: str = "swe_rl", **values) -> float:
    return (await graded(patch, reward, **values)).value


async def graded(patch: str, reward: str = "swe_rl", mode: str = "fraction", **values) -> Score:
    return await grade(task(reward, **values), patch, None, GradingSettings(mode))


@pytest.mark.parametrize("reward", ["swe_rl", "code_repair_rl", "tokens"])
async def test_the_gold_patch_solves_and_no_patch_does_not(reward):
    assert (await validate(task(reward), None)).status is Status.SOUND
    assert [(await graded(GOLD, reward, mode)).value for mode in ("plus_minus", "binary", "fraction")] == [1, 1, 1]
    assert Task.from_dict(task(reward).to_dict()) == task(reward)


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("split", ["train", "heldout", "unseen"])
async def test_the_generated_tasks_validate_themselves(split, reward):
    found = [await validate(task, None, 1) for task in load_tasks(f"diff:{split}/{reward}")[:24]]
    assert {finding.status for finding in found} == {Status.SOUND}


async def test_swe_rl_is_the_mean_over_the_files_that_either_patch_changes():
    assert await value(HALF) == 0.5
    assert await value(make_patch(FILES, AFTER | {"new.py": "x\n"})) == pytest.approx(2 / 3)
    near = make_patch(FILES, AFTER | {"calc.py": FILES["calc.py"].replace("a - b", "a + b  # sum")})
    found = compare(task(), near).similarities
    assert 0.9 < found["calc.py"] < 1 and found["user.py"] == 1
    assert await value(near) == pytest.approx(sum(found.values()) / 2)
    hunk = "@@\n def add(a, b):\n-    return a - b\n"
    rest = "\n \n \n def name():\n"
    texts = [f"{hunk}+    return {text}{rest}" for text in ("a + b  # sum", "a + b")]
    assert found["calc.py"] == similarity(*texts)


async def test_a_malformed_answer_is_worth_minus_one_in_swe_rl_alone():
    malformed = ["", "@@ -1 +1 @@\n-x\n+y\n", GOLD.replace("a - b", "a * b"), "x" * (MAX_PATCH_BYTES + 1)]
    assert [await value(patch) for patch in malformed] == [-1.0] * 4
    assert [await value(patch, "code_repair_rl") for patch in malformed] == [0.0] * 4
    assert [(await graded(patch, mode="binary")).value for patch in malformed] == [0.0] * 4
    assert await value(make_patch(FILES, FILES | {"test_calc.py": ""})) == -1.0  # which counts for nothing


async def test_code_repair_rl_divides_by_the_larger_number_of_files_and_its_weights_are_fields():
    more = make_patch(FILES, AFTER | {"new.py": "x\n", "more.py": "x\n"})
    assert await value(HALF, "code_repair_rl") == 0.5
    assert await value(more, "code_repair_rl") == 0.5
    other = with_changes(calc_py=FILES["calc.py"].replace("a - b", "b - a"), notes_txt="x\n")
    share = compare(task(), other).similarities["calc.py"]
    for files in (0.0, 0.2, 1.0):
        weights = {"files_weight": files, "similarity_weight": 1 - files}
        assert await value(other, "code_repair_rl", **weights) == pytest.approx(((1 - files) * share + files) / 2)
    with pytest.raises(UserError, match=r"must add up to 1, got 1\.2"):
        Task.from_dict(task(files_weight=0.4).to_dict())


async def test_correctness_and_quality_are_apart_and_quality_grows_up_to_that_of_a_right_patch():
    steps = [FILES["calc.py"].replace("a - b", text) for text in ("max(a, 2)", "a * b", "a + b ", "a + b")]
    scores = [await graded(make_patch(FILES, AFTER | {"calc.py": step})) for step in steps]
    values = [score.value for score in scores]
    assert values == sorted(values) and values[-2] > 0.98
    assert [score.solved for score in scores] == [False] * 3 + [True]
    assert scores[0].components["similarity"] == values[0] and scores[0].components["file_match"] == 1.0


async def test_a_group_differs_by_how_far_its_likenesses_lie_apart_where_no_test_tells_them_apart():
    settings = GradingSettings("fraction", least_spread=0.2)
    scores = [await grade(task("swe_rl"), patch, None, settings) for patch in (HALF, "", "no patch")]
    assert [score.spread for score in scores] == [0.2] * 3


CHEATS = {
    "constant": with_changes(fix_py="def fix():\n    return True\n"),
    "empty": "",
    "copied input": with_changes(calc_copy_py=FILES["calc.py"], user_copy_py=FILES["user.py"]),
    "overlong": with_changes(calc_py=FILES["calc.py"] + "x = 1\n" * 50_000),
    "oracle-quoting": with_changes(gold_patch=GOLD, answer_json='{"same_as_gold": true, "quality": 1.0}\n'),
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("reward", ["swe_rl", "code_repair_rl", "tokens"])
async def test_a_cheat_raises_no_reward(cheat, reward):
    score = await graded(CHEATS[cheat], reward)
    assert not score.solved and score.value < 0.12, score
    assert cheat == "overlong" or score.value <= 0


GRAMS = {
    "return a + b": 1.0,
    "# sums\n    return a + b  # of both": 1.0,  # comments count for nothing
    "return a + c": 0.0,
    "return 'return a + b'": 0.0,
    'return """\n    return a + b\n    """': 0.0,
    "return 3": 0.0,
    "return a + b + a": 2 / 4,  # one run of three in common with one
}


@pytest.mark.parametrize("body", GRAMS)
async def test_tokens_pays_the_runs_of_four_tokens_that_both_patches_write(body):
    gold = with_changes(calc_py=FILES["calc.py"].replace("a - b", "a + b"))
    answer = with_changes(calc_py=FILES["calc.py"].replace("return a - b", body))
    assert await value(answer, "tokens", gold_patch=gold) == pytest.approx(GRAMS[body])


async def test_tokens_are_those_of_added_lines_and_doing_nothing_is_worth_nothing():
    assert await value(HALF, "tokens") > 0
    assert await value(with_changes(notes_txt=FILES["calc.py"]), "tokens") == 0
    assert [await value(patch, "tokens") for patch in ("", "@@ -1 +1 @@\n-x\n+y\n")] == [0.0, 0.0]
    assert await value(with_changes(calc_py=FILES["calc.py"] + "'" * 100_000 + '"' * 100_000), "tokens") == 0


@pytest.mark.parametrize("text", ['"""', "'''", '\\"""\n', '"\\', "'", "\\'''"])
def test_the_runs_of_open_strings_are_found_in_time_that_grows_with_the_text(text):
    """A backslash at the end closes nothing."""
    assert_linear(lambda size: shared_runs({"a.py": text * size + "\\"}, {"a.py": "x"}), 500, text)


async def test_a_longer_answer_is_worth_less():
    wrong = FILES["calc.py"].replace("a - b", "b - a")
    for padding in ("x = 1\n", "# more "):
        values = [await value(with_changes(calc_py=wrong + padding * times)) for times in (0, 10, 100, 1000, 10_000)]
        assert values == sorted(values, reverse=True) and values[-1] < 0.05


async def test_files_of_an_image_are_compared_by_the_patches_text():
    inside = replace(task(), workspace=Workspace({}, Image("x:1")))
    scores = [await grade(inside, patch, None, FRACTION) for patch in (GOLD, HALF, with_changes(notes_txt="x\n"))]
    assert [(score.solved, score.value) for score in scores] == [(True, 1.0), (False, 0.5), (False, 0.0)]


LINES = (
    "--- a/a.py\n+++ b/a.py\n@@ -8,3 +8,3 @@\n     def run(self):\n-        x = 1\n+        x = 2\n         return x\n"
)
BYTES = "diff --git a/a b/a\nindex 0000000..1111111 100644\nGIT binary patch\nliteral 3\nKcmZQ%Vqjoo\n\n"
MOVED = "diff --git a/old.py b/new.py\nsimilarity index 100%\nrename from old.py\nrename to new.py\n"


@pytest.mark.parametrize(
    ("gold", "patch", "same"),
    [
        (LINES, LINES, True),
        (LINES, LINES.replace("-8,3 +8,3", "-2,3 +2,3"), False),  # the same method of the other class
        (LINES, "--- a/a.py\n+++ b/a.py\n@@ -9 +9 @@\n-        x = 1\n+        x = 2\n", True),  # with less context
        (BYTES, BYTES, True),
        (BYTES, BYTES.replace("KcmZQ%Vqjoo", "KcmZQ%VrXGx"), False),
        (MOVED, MOVED, True),
        (MOVED, MOVED.replace("old.py", "other.py"), False),
        ("--- a/a.py\n+++ b/a.py\n@@ -1,0 +2 @@\n+x\n", "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,3 @@\n a\n+x\n b\n", True),
    ],
)
def test_patches_of_an_image_are_the_same_where_they_do_the_same_in_the_same_places(gold, patch, same):
    inside = replace(task(gold_patch=gold), workspace=Workspace({}, Image("x:1")))
    assert compare(inside, patch).same is same


async def test_a_gold_patch_of_protected_files_alone_is_solved_by_nothing():
    empty = task(gold_patch=make_patch(FILES, FILES | {"test_calc.py": "x\n"}))
    assert not (await grade(empty, empty.oracle.gold_patch, None, FRACTION)).solved
    assert (await validate(empty, None)).status is Status.UNSOUND


def test_the_likeness_of_a_patch_that_can_not_be_applied_is_none():
    assert (likeness(task(), GOLD), likeness(task(), HALF), likeness(task(), "@@ x\n")) == (1.0, 0.5, 0.0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gold_patch": ""}, "gold_patch must be what patches are compared with"),
        ({"fail_to_pass": ["a::b"]}, "are not for an oracle of kind 'diff'"),
        ({"reward": "swe"}, "swe_rl"),
    ],
)  # fmt: skip
def test_an_oracle_that_can_not_grade_is_refused(values, said):
    record = task().to_dict()
    record["oracle"] |= values
    with pytest.raises(UserError, match=said):
        Task.from_dict(record)


class _Compared(Target):
    """The gate's repository, graded by the gold patch alone."""

    def task(self, image=None, *, slow=False):
        made = TARGETS["log"].task(image, slow=slow)
        return replace(made, oracle=DiffOracle(protected=made.oracle.protected, gold_patch=made.oracle.gold_patch))


async def test_none_of_the_integrity_gates_attacks_is_taken_for_the_gold_patch():
    """Those that are patches; scripts end as patches too, and nothing of a patch is run."""
    chosen = [case for case in attacks() if case.patch and not case.only]
    assert len(chosen) > 5
    async with SandboxPool("local") as sandboxes:
        player = Player(_Compared("diff", "compared", DiffOracle(gold_patch="x")), sandboxes, GradingSettings(), 0)
        rows = [await player.play(case) for case in chosen]
    assert {row.verdict for row in rows} == {"held"}
