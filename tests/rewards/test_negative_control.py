"""What control runs say of a patch, whatever makes them."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from slime_swe.data_sources.task import Task, TestsOracle, Workspace
from slime_swe.rewards.altered_tests import FORMS
from slime_swe.rewards.canonical import digest
from slime_swe.rewards.grade import Trial
from slime_swe.rewards.negative_control import FEWEST_FORMS, FURTHER_RUNS, ControlRun, luck, with_negative_control
from slime_swe.rewards.withheld import Withheld
from slime_swe.sandbox.base import SandboxError

A, B, C = TESTS = ("t.py::a", "t.py::b", "t.py::c")
ORACLE = TestsOracle((A,), (B, C), (), "run", gold_patch="gold")
EARNED = Trial(dict.fromkeys(TESTS, True), True, "")


@dataclass
class Runs:
    """Control runs by what they report: for each run in turn, of each test `F`, `P`, or nothing `.`; `-` is a test that
    can't be mutated. Behind it, of each place in which test a compares, `v` right, `w` wrong, `.` missing, `g` right
    but guessable, `h` another such one, `x` the other of them; `s` and `o` in a place where what is expected is no
    literal, `?` of no type that has a text."""

    mine: list[str]
    gold: str = "FFF v"
    unpatched: str = "FFF"
    trial: Trial = EARNED
    believes: Callable[[int | None], bool] = lambda form: (
        form is None
    )  # which forms of a test pass; None is the true one
    forms: int = FURTHER_RUNS - 1  # that each test has
    gold_passes: frozenset[int] = frozenset()  # forms that pass with the gold patch
    alone: bool = True  # whether the gold patch passes the tests in question without the others
    only: set[tuple[str, ...]] = field(default_factory=set)
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    async def first(self) -> Trial:
        self.asked.append(("first", ()))
        return self.trial

    async def control(self, tests: Sequence[str]) -> ControlRun:
        self.asked.append(("control", tuple(tests)))
        return _run(self.mine.pop(0), tests)

    async def gold_control(self, tests: Sequence[str]) -> ControlRun:
        self.asked.append(("gold", tuple(tests)))
        return _run(self.gold, tests)

    async def unpatched_control(self, tests: Sequence[str]) -> ControlRun:
        self.asked.append(("unpatched", tuple(tests)))
        return _run(self.unpatched, tests)

    async def gold_altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
        self.asked.append(("gold altered", tuple(forms)))
        if not forms:
            return ControlRun(passed=frozenset(only if self.alone else only[1:]))
        return self._altered(forms, lambda form: form is None or form in self.gold_passes)

    async def altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
        self.asked.append(("altered", tuple(forms)))
        self.only.add(tuple(only))
        return self._altered(forms, self.believes)

    def _altered(self, forms: Mapping[str, int], passes: Callable[[int | None], bool]) -> ControlRun:
        functions = tuple(frozenset({test}) for test, form in forms.items() if form < self.forms)
        true = {test for test in TESTS if forms.get(test, self.forms) >= self.forms}
        passed = frozenset(test for test in TESTS if passes(None if test in true else forms[test]))
        return ControlRun(functions, frozenset(TESTS) - passed, passed)

    def count(self, kind: str) -> int:
        return sum(asked == kind for asked, _ in self.asked)


def _run(text: str, tests: Sequence[str]) -> ControlRun:
    reports, _, values = text.partition(" ")
    letters = {test: letter for test, letter in zip(TESTS, reports, strict=True) if test in tests}
    named = {letter: frozenset(test for test in letters if letters[test] == letter) for letter in "FP.-"}
    functions = tuple(frozenset({test}) for test in TESTS if test in letters and letters[test] != "-")
    wanted = {"g": digest(0), "x": digest(0), "h": digest(""), "v": "right", "w": "right", ".": "right"}
    withheld = tuple(Withheld(frozenset({A}), frozenset(wanted.get(value, "").split())) for value in values)
    given = {
        "v": "right",
        "g": digest(0),
        "x": digest(""),
        "h": digest(""),
        "w": "wrong",
        "s": "shown",
        "o": "other",
        "?": "?",
    }
    records = {n: frozenset({given[value]}) for n, value in enumerate(values) if value in given}
    return ControlRun(functions, named["F"], named["P"], withheld, records)


def task_of(oracle: TestsOracle = ORACLE, name: str = "t") -> Task:
    return Task(name, "", Workspace({}), oracle)


def judged(runs: Runs, oracle: TestsOracle = ORACLE) -> Trial:
    return asyncio.run(with_negative_control(task_of(oracle), runs))


@pytest.mark.parametrize(
    ("mine", "gold", "witness", "controls"),
    [
        (["FFF v"], "FFF v", (1, 2, 0, 0), 1),
        (["FFF v"], "...", (1, 2, 0, 0), 1),  # nothing came of the gold patch's control
        (["FFF gv"], "FFF gv", (1, 2, 0, 0), 1),
        (["FFF s"], "FFF s", (1, 2, 0, 0), 1),
        (["FFF o"], "FFF s", (0, 3, 0, 0), 1),  # another way to be right
        (["FFF ?"], "FFF ?", (0, 3, 0, 0), 1),
        (["FF- v"], "FF- v", (1, 1, 0, 1), 1),
        (["FFF"], "FFF", (0, 3, 0, 0), 1),
        (["... v"], "...", (1, 0, 2, 0), 1),  # the log names passes alone
        (["FFP v"], "FFP v", (1, 1, 0, 1), 1),  # a test that is expected to fail, or skipped
        (["FFF vw"], "FFF v?", (1, 2, 0, 0), 1),  # a value whose type has no plain form
        (["FFF ."], "FFF .", (0, 3, 0, 0), 1),  # a place that is not reached
        ([".F.", "F.."], ".F.", (0, 2, 1, 0), 2),  # the runner stops at the first failure
        (["-FF", "F.."], "-FF", (0, 3, 0, 0), 2),  # the one test that no function has the name of
        (["... .", "FFF v"], "FFF v", (1, 2, 0, 0), 2),  # an accident
    ],
)
def test_honest_work_is_believed(mine, gold, witness, controls):
    runs = Runs(list(mine), gold)
    trial = judged(runs)
    named = dict(zip(("values", "mutated", "silent", "none"), witness, strict=True))
    without_values = {} if witness[0] or mine[0][0] == "-" else {"luck": luck(FURTHER_RUNS - 1)}
    assert trial == replace(EARNED, details={**without_values, "witness": named})
    assert runs.count("control") == controls


def test_without_a_gold_patch_nothing_is_asked_of_it():
    runs = Runs(["..F v"])
    trial = judged(runs, replace(ORACLE, gold_patch=""))
    assert trial.details["witness"] == {"values": 1, "mutated": 1, "silent": 1, "none": 0}
    assert (runs.count("gold"), runs.count("unpatched")) == (0, 1)


@pytest.mark.parametrize(("mine", "unpatched", "believed"), [
    ("FFF v", "FFF v", 0), ("FFF vv", "FFF vw", 1), ("FFF vv", "FFF v", 1), ("FFF s", "FFF s", 0),
    ("FFF s", "FFF o", 1),
])  # fmt: skip
def test_what_the_unpatched_code_gives_is_no_witness_for_a_test_that_it_fails(mine, unpatched, believed):
    runs = Runs([mine], mine, unpatched)
    assert judged(runs).details["witness"]["values"] == believed
    assert runs.count("altered") == (0 if believed else FURTHER_RUNS)


def test_it_is_one_for_a_test_that_it_passes():
    oracle = replace(ORACLE, fail_to_pass=(B,), pass_to_pass=(A, C))
    assert judged(Runs(["FFF v"], unpatched="FFF v"), oracle).details["witness"]["values"] == 1


def test_a_case_that_fails_gives_another_value_and_is_not_held_against_those_of_its_function_that_pass():
    @dataclass
    class Parametrised(Runs):
        """Tests a and b are cases of one function, and a run of it has a record of what both give."""

        async def control(self, tests: Sequence[str]) -> ControlRun:
            return self._of(tests, {"right", "wrong"})

        async def gold_control(self, tests: Sequence[str]) -> ControlRun:
            return self._of(tests, {"right"})

        def _of(self, tests: Sequence[str], given: set[str]) -> ControlRun:
            cases = frozenset({A, B}) & frozenset(tests)
            withheld = (Withheld(cases, frozenset({"right"})),)
            return ControlRun((cases,), frozenset(), frozenset({C}), withheld, {0: frozenset(given)})

    oracle = replace(ORACLE, fail_to_pass=(A, B), pass_to_pass=(C,))
    trial = judged(Parametrised([], trial=Trial({A: True, B: False, C: True}, False, "")), oracle)
    assert (trial.rejected, trial.solved) == ("", False)


@pytest.mark.parametrize("other", ["silent", "passes"])
def test_cases_of_one_function_may_be_reported_in_different_ways_when_they_are_mutated(other):
    """A parser may not name one case of them where it fails, and one may pass all the same, as with the gold patch."""

    @dataclass
    class Cases(Runs):
        """Tests a and b are cases of one function. `forges`: b is reported as passed in every run."""

        forges: bool = False

        async def control(self, tests: Sequence[str]) -> ControlRun:
            return self._of(tests)

        async def gold_control(self, tests: Sequence[str]) -> ControlRun:
            return self._of(tests)

        async def gold_altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
            return self._of(tuple(forms))

        async def altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
            self.asked.append(("altered", tuple(sorted(forms))))
            run = self._of(tuple(forms))
            return replace(run, passed=run.passed | {B}) if self.forges else run

        def _of(self, mutated: Sequence[str]) -> ControlRun:
            passed = frozenset(TESTS) - frozenset(mutated) | ({B} if other == "passes" else set())
            return ControlRun((frozenset({A, B}), frozenset({C})), frozenset(mutated) - {B}, passed)

    oracle = replace(ORACLE, fail_to_pass=(A, B), pass_to_pass=(C,))
    runs = Cases([])
    trial = judged(runs, oracle)
    assert (trial.solved, trial.rejected) == (True, "")
    assert {tests for kind, tests in runs.asked if kind == "altered"} == {(), (A, B)}
    if other == "silent":
        assert judged(Cases([], forges=True), oracle).rejected == "forged"


def test_each_deciding_test_needs_a_witness_of_its_own():
    """Code that repairs one and forges the other, and knows the control, must guess which runs alter the other."""
    oracle = replace(ORACLE, fail_to_pass=(A, B), pass_to_pass=(C,))
    runs = Runs(["FFF v"])
    assert judged(runs, oracle).solved
    altered = [tests for kind, tests in runs.asked if kind == "altered"]
    assert sorted(altered) == [(), *[(B,)] * (FURTHER_RUNS - 1)]


@pytest.mark.parametrize(
    ("mine", "gold", "why"),
    [
        (["PFF v"], "FFF v", "these pass even when they are mutated, and not with the gold patch: t.py::a"),
        (["PP. v"], "..P .", "pass even when they are mutated, .*: t.py::a, t.py::b"),
        (["FFF w"], "FFF v", "these give other values where what they expect is withheld, .*: t.py::a"),
        (["FFF vw"], "FFF vv", "give other values .*: t.py::a"),
        (["FF. v", "FF. v"], "FFF v", "these are not reported as failed when they are mutated, .*: t.py::c"),
        (["FFF .", "FFF ."], "FFF v", "these are not reported .*: t.py::a"),
        (["... v", "... v"], "FFF v", "t.py::a, t.py::b, t.py::c"),
        (["... .", "FFP v"], "FFF v", "these pass even when they are mutated, .*: t.py::c"),
        (["FFF .", "FFF w"], "FFF v", "give other values .*: t.py::a"),
    ],
)
def test_what_passes_or_is_silent_or_wrong_where_the_gold_patch_is_not_is_forged(mine, gold, why):
    trial = judged(Runs(list(mine), gold))
    assert (trial.solved, trial.rejected) == (False, "forged")
    assert re.search(why, trial.details["rejection_reason"])


@pytest.mark.parametrize(("mine", "gold"), [("-FF", "-FF"), ("PFF", "PFF"), ("---", "---"), ("-.. ", "-..")])
def test_without_a_witness_for_a_deciding_test_there_is_no_reward(mine, gold):
    trial = judged(Runs([mine, mine], gold))
    assert (trial.solved, trial.rejected) == (False, "unwitnessed")
    assert "no FAIL_TO_PASS test could be altered" in trial.details["rejection_reason"]
    assert trial.details["witness"]["none"] >= 1


@pytest.mark.parametrize(("gold", "rewarded"), [("...", False), ("..P", True), ("..F", True)])
def test_rewritten_tests_that_are_not_built_with_the_gold_patch_either_are_no_witness(gold, rewarded):
    @dataclass
    class Rewritten(Runs):
        """The literals of the tests' files are other ones."""

        async def control(self, tests: Sequence[str]) -> ControlRun:
            return replace(await super().control(tests), rewritten=True)

    trial = judged(Rewritten(["...", "..."], gold, trial=Trial({A: True, B: True, C: False}, False, "")))
    assert (trial.rejected == "") == rewarded
    assert trial.details["witness"]["silent"] == (2 if rewarded else 0)


def test_a_value_that_is_easily_guessed_is_no_witness_and_yet_must_be_right():
    runs = Runs(["FFF g"], "FFF g")
    assert judged(runs).details["witness"] == {"values": 0, "mutated": 3, "silent": 0, "none": 0}
    assert runs.count("altered") == FURTHER_RUNS


@pytest.mark.parametrize(
    ("right", "unpatched", "witnessed"),
    [
        ("gghhghh", "", True), ("gghhghh", "ggggggg", True), ("gghhghh", "gghhghg", False),
        ("gghhghh", "hhgghgg", False),  # all are wrong, so that the opposite would do
        ("gghhghh", "gghhghh", False),
        ("ggggggg", "", False), ("gghh", "", False),  # a guess in 16
    ],
)  # fmt: skip
def test_many_values_that_are_easily_guessed_one_by_one_are_a_witness(right, unpatched, witnessed):
    runs = Runs([f"FFF {right}"], f"FFF {right}", f"FFF {unpatched}")
    assert judged(runs).details["witness"]["values"] == witnessed
    assert runs.count("altered") == (0 if witnessed else FURTHER_RUNS)
    wrong = right.replace("g", "x", 1)
    assert judged(Runs([f"FFF {wrong}"], f"FFF {right}")).rejected == "forged"


@pytest.mark.parametrize("deciding", [1, 2, 3])
def test_without_values_each_test_is_as_it_is_in_one_further_run_and_altered_in_the_others(deciding):
    oracle = replace(ORACLE, fail_to_pass=TESTS[:deciding], pass_to_pass=TESTS[deciding:])
    runs = Runs(["FFF"], "FFF")
    assert judged(runs, oracle).solved
    altered = [test for kind, tests in runs.asked if kind == "altered" for test in tests]
    assert runs.count("altered") == FURTHER_RUNS
    assert Counter(altered) == dict.fromkeys(TESTS[:deciding], FURTHER_RUNS - 1)
    for believes in (lambda _: True), (lambda _: False), (lambda form: form in (None, 3)):
        assert judged(Runs(["FFF"], "FFF", believes=believes), oracle).rejected == "forged"


@pytest.mark.parametrize("forms", [FURTHER_RUNS - 1, FEWEST_FORMS])
@pytest.mark.parametrize("constant", [True, False], ids=["by what it reads", "by a coin"])
def test_the_best_luck_is_the_stated_one(constant, forms):
    """A reader says of one form in as many as there are that it is true: of the same form always, or whatever comes."""
    rng, plays, texts = random.Random(0), 500, forms + 1

    def guessing() -> Callable[[int | None], bool]:
        known = {form: rng.randrange(texts) == 0 for form in (None, *range(forms))}
        return (lambda form: known[form]) if constant else lambda _: rng.randrange(texts) == 0

    oracle = replace(ORACLE, pass_to_pass=())
    trials = [judged(Runs(["F.."], "F..", forms=forms, believes=guessing()), oracle) for _ in range(plays)]
    stated = luck(forms)
    assert stated == {6: 0.057, 2: 0.148}[forms]
    assert {trial.details["luck"] for trial in trials if trial.solved} == {stated}
    difference = sum(trial.solved for trial in trials) - plays * stated
    assert abs(difference) < 6.5 * (plays * stated * (1 - stated)) ** 0.5, "two-sided, p < 1e-9"


@pytest.mark.parametrize(
    ("forms", "gold_passes", "failing", "gold_runs"),
    [
        (FORMS, (), 6, 6), (6, (), 6, 6), (5, (), 5, 6), (2, (), 2, 6), (1, (), 1, 6), (0, (), 0, 6),
        (FORMS, (0, 2), 6, 12), (FORMS, range(15), 3, 18), (FORMS, range(28), 2, 30), (FORMS, range(29), 1, 30),
    ],
)  # fmt: skip
def test_a_test_with_fewer_altered_forms_that_fail_is_a_weaker_witness_or_none(forms, gold_passes, failing, gold_runs):
    runs = Runs(["FFF"], "FFF", forms=forms, gold_passes=frozenset(gold_passes))
    trial, witnessed = judged(runs), failing >= FEWEST_FORMS
    assert (trial.solved, trial.rejected) == (witnessed, "" if witnessed else "unwitnessed")
    assert (runs.count("gold altered"), runs.count("altered")) == (1 + gold_runs, 1 + failing if witnessed else 0)
    assert trial.details["witness"] == {"values": 0, "mutated": 3 - (not witnessed), "silent": 0, "none": not witnessed}
    assert trial.details.get("luck") == (luck(failing) if witnessed else None)


def test_a_case_is_believed_by_the_forms_in_which_it_fails():
    """Cases a, b and c of one function, as of a file of data in which each form alters some: c fails in one alone."""
    failing = [{A, B}, {A}, {B}, {A, B}, {A}, {A, C}]

    class Data(Runs):
        def _altered(self, forms: Mapping[str, int], passes: Callable[[int | None], bool]) -> ControlRun:
            number = min(forms.values(), default=None)
            if number is None or number >= len(failing):
                return ControlRun(passed=frozenset(TESTS))
            failed = frozenset() if passes(number) else frozenset(failing[number])
            return ControlRun((frozenset(TESTS),), failed, frozenset(TESTS) - failed)

        async def control(self, tests: Sequence[str]) -> ControlRun:
            return ControlRun((frozenset(TESTS),), frozenset(tests))

    oracle = replace(ORACLE, fail_to_pass=TESTS, pass_to_pass=())
    trial = judged(Data([]), oracle)
    assert trial.solved
    assert trial.details["witness"] == {"values": 0, "mutated": 2, "silent": 0, "none": 1}
    assert trial.details["luck"] == luck(3), "b fails in three forms"
    for form in range(len(failing)):
        assert judged(Data([], believes=lambda seen, form=form: seen in (None, form)), oracle).rejected == "forged"


@pytest.mark.parametrize(("others", "believed"), [("fail", True), ("pass", False), ("are not there", False)])
def test_a_case_whose_name_is_altered_fails_by_its_other_name(others, believed):
    """As pytest names cases by their parameters: `t.py::a[1]` becomes `t.py::a[2]`."""
    case, forged = "t.py::a[1]", False

    class Renamed(Runs):
        async def control(self, tests: Sequence[str]) -> ControlRun:
            return ControlRun((frozenset({case}),), frozenset(tests))

        async def gold_control(self, tests: Sequence[str]) -> ControlRun:
            return await self.control(tests)

        async def gold_altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
            return self._by_other_names(forms, others)

        async def altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
            return self._by_other_names(forms, "pass" if forged else others)

        def _by_other_names(self, forms: Mapping[str, int], what: str) -> ControlRun:
            if not forms:
                return ControlRun(passed=frozenset({case}))
            named = frozenset({"t.py::a[2]"})
            failed, passed = (named if what == verdict else frozenset() for verdict in ("fail", "pass"))
            return ControlRun((frozenset({case}),), failed, passed)

    oracle = replace(ORACLE, fail_to_pass=(case,), pass_to_pass=())
    earned = replace(EARNED, tests={case: True})
    assert judged(Renamed([], trial=earned), oracle).rejected == ("" if believed else "unwitnessed")
    forged = True
    assert judged(Renamed([], trial=earned), oracle).rejected == ("forged" if believed else "unwitnessed")


def test_it_needs_none_where_another_has_one():
    oracle = replace(ORACLE, fail_to_pass=(A, B), pass_to_pass=(C,))
    assert judged(Runs(["FFF v"], forms=0), oracle).details["witness"] == {
        "values": 1,
        "mutated": 1,
        "silent": 0,
        "none": 1,
    }


def test_a_form_in_which_the_gold_patch_s_run_hangs_is_not_used():
    class Hanging(Runs):
        async def gold_altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
            run = await super().gold_altered(forms, only)
            return replace(run, failed=frozenset(), passed=frozenset()) if forms else run

    assert judged(Hanging(["FFF"], "FFF")).rejected == "unwitnessed"


@pytest.mark.parametrize(("alone", "only"), [(True, (A,)), (False, ())])
def test_further_runs_leave_other_tests_out_where_the_gold_patch_passes_without_them(alone, only):
    runs = Runs(["FFF"], "FFF", alone=alone)
    assert judged(runs).solved and runs.only == {only}
    runs = Runs(["FFF"], "FFF")
    assert judged(runs, replace(ORACLE, gold_patch="")).rejected == "unwitnessed", "there is none that could say"


def test_only_what_is_missing_is_mutated_again():
    runs = Runs(["F.P v", "FFP v"], "FFP v")
    judged(runs)
    assert [tests for asked, tests in runs.asked if asked == "control"] == [TESTS, (B,)]


def test_what_the_first_run_reports_as_failed_needs_no_witness():
    """A value that tests of one function expect counts only where all of them have passed."""
    oracle = replace(ORACLE, fail_to_pass=(A, B), pass_to_pass=(C,))
    trial = Trial({A: False, B: True, C: True}, False, "")
    assert judged(Runs(["PFF w"], "FFF v", trial=trial), oracle).rejected == ""


def test_the_control_ends_before_the_first_run_starts():
    class Slow(Runs):
        async def control(self, tests: Sequence[str]) -> ControlRun:
            run = await super().control(tests)
            await asyncio.sleep(0)
            self.asked.append(("the control has ended", ()))
            return run

    runs = Slow(["FFF v"])
    judged(runs)
    assert [kind for kind, _ in runs.asked[:3]] == ["control", "the control has ended", "first"]


def test_what_is_not_rewarded_takes_its_two_runs_and_no_more():
    trial = replace(EARNED, tests={A: False, B: True, C: True}, solved=False)
    runs = Runs(["..."], trial=trial)
    assert judged(runs) is trial
    assert [kind for kind, _ in runs.asked] == ["control", "first"], "the first run's results are parts of the score"


@dataclass
class Watched(Runs):
    """Runs that take a few turns of the event loop. open: the kinds of all that are open at once, of all gradings."""

    open: list[str] = field(default_factory=list)
    together: set[tuple[str, ...]] = field(default_factory=set)

    async def first(self) -> Trial:
        async with self._seen("first"):
            return await super().first()

    async def control(self, tests: Sequence[str]) -> ControlRun:
        async with self._seen("control"):
            return await super().control(tests)

    async def altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
        async with self._seen("altered"):
            return await super().altered(forms, only)

    @asynccontextmanager
    async def _seen(self, kind: str) -> AsyncIterator[None]:
        self.open.append(kind)
        self.together.add(tuple(sorted(self.open)))
        for _ in range(secrets.randbelow(8)):
            await asyncio.sleep(0)
        yield
        self.open.remove(kind)


def gradings(count: int, tasks: Sequence[Task], *mine: str) -> tuple[list[Trial], set[tuple[str, ...]]]:
    """The trials of so many patches, graded at once, and which kinds of runs were open together."""
    many = [Watched([*mine]) for _ in range(count)]
    for runs in many:
        runs.open, runs.together = many[0].open, many[0].together

    async def graded() -> list[Trial]:
        return await asyncio.gather(*(with_negative_control(tasks[n % len(tasks)], many[n]) for n in range(count)))

    return asyncio.run(graded()), many[0].together


@pytest.mark.parametrize("mine", [("FFF v",), ("... .", "FFF v")], ids=["one control", "once more"])
def test_no_run_that_has_the_values_is_beside_a_control_of_the_same_task(mine):
    trials, together = gradings(8, [task_of()], *mine)
    assert all(trial.solved for trial in trials)
    assert all(len(set(kinds)) == 1 for kinds in together), together
    assert ("control",) * 2 in together and ("first",) * 2 in together, "runs of one kind are beside each other"


def test_a_run_with_altered_tests_is_beside_no_other_of_the_same_task():
    trials, together = gradings(8, [task_of()], "FFF")
    assert all(trial.solved for trial in trials)
    assert {kinds for kinds in together if "altered" in kinds} == {("altered",)}


@pytest.mark.parametrize("endless", ["control", "first"])
def test_the_controls_of_the_gold_patch_and_of_the_unpatched_code_wait_for_nobody(endless):
    started = asyncio.Event()

    class Endless(Runs):
        async def control(self, tests: Sequence[str]) -> ControlRun:
            await self._reach("control")
            return await super().control(tests)

        async def first(self) -> Trial:
            await self._reach("first")
            return await super().first()

        async def _reach(self, kind: str) -> None:
            if kind == endless:
                started.set()
                await asyncio.Event().wait()

    class Followed(Runs):
        """A run of another patch begins after the first run, and does not end."""

        async def gold_control(self, tests: Sequence[str]) -> ControlRun:
            await started.wait()
            return await super().gold_control(tests)

        async def unpatched_control(self, tests: Sequence[str]) -> ControlRun:
            await started.wait()
            return await super().unpatched_control(tests)

    async def graded() -> Trial:
        runs = Followed(["FFF v"])
        grading = asyncio.create_task(with_negative_control(task_of(), runs))
        while runs.count("first") == 0:
            await asyncio.sleep(0)
        other = asyncio.create_task(with_negative_control(task_of(), Endless(["FFF v"])))
        trial = await grading
        other.cancel()
        assert (runs.count("gold"), runs.count("unpatched")) == (1, 1)
        return trial

    assert asyncio.run(graded()).solved


def test_tasks_do_not_wait_for_each_other():
    _, together = gradings(8, [task_of(name="t"), task_of(name="u")], "FFF v")
    assert any({"control", "first"} <= set(kinds) for kinds in together), together


def test_a_grading_that_fails_or_is_cancelled_lets_the_others_of_its_task_go_on():
    class Broken(Runs):
        async def first(self) -> Trial:
            raise SandboxError("no first")

    class Hanging(Runs):
        async def control(self, tests: Sequence[str]) -> ControlRun:
            return await asyncio.Event().wait()

    async def graded() -> Trial:
        with pytest.raises(SandboxError):
            await with_negative_control(task_of(), Broken(["FFF v"]))
        hanging = asyncio.create_task(with_negative_control(task_of(), Hanging([])))
        others = [asyncio.create_task(with_negative_control(task_of(), Runs(["FFF v"]))) for _ in range(2)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(other.done() for other in others), "their first runs wait for the control to end"
        hanging.cancel()
        trials = await asyncio.gather(*others)
        return trials[0]

    assert asyncio.run(graded()).solved


def test_a_run_that_fails_fails_the_grading():
    class Broken(Runs):
        async def first(self) -> Trial:
            raise SandboxError("no first")

    class Uncontrolled(Runs):
        async def control(self, tests: Sequence[str]) -> ControlRun:
            raise SandboxError("no control")

    for runs, why in (Broken(["FFF v"]), "no first"), (Uncontrolled([]), "no control"):
        with pytest.raises(SandboxError, match=why):
            judged(runs)
