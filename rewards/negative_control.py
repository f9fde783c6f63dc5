"""The negative control of a log: a second run of the same code whose tests withhold what they expect, and must fail.

A runner's log is written by the process that runs the code under test. That code can write there what it likes, or make
the tests pass by other means than being right. So a log that would be rewarded is believed only with a *witness* for
the tests that it says have passed:

| witness | what the control run shows of a test |
| --- | --- |
| `values` | the code gave what the test expects and its file does not hold (`rewards.withheld`) |
| `mutated` | the test was mutated (`rewards.mutation`) and was reported as failed, and so it was in further runs |
| `silent` | it was mutated and was not reported, as it is not with the gold patch, and so it was in further runs |

**Values.** Code that tells the control from the first run gains nothing: it would have to give right answers that it has
not seen. What is expected is a literal, or what the gold patch's own control gives in the same place. Luck is to
guess the values; those that are easily guessed (`True`, `0`, `[]`) must be right, and are no witness one by one. Nor
are, of a FAIL_TO_PASS test, those that the unpatched code gives: code that leaves the fault alone gives them too. All
guessable values of a test together are a witness if they are hard to guess: for code that knows what the unpatched code
gives in each place, and how often another value is right, the probability must be 0.057 or less.

**Mutated tests** show less: code that can tell the runs apart forges the first and fails honestly in the control. So if
a FAIL_TO_PASS test has no value for its witness, further runs are made, `FURTHER_RUNS` at most, in which nothing is
withheld and nothing in a test's text shows whether it is the true one (`rewards.altered_tests`). In one of them, which is
drawn, the test is as it is. In each of the others it has an altered form, in which the gold patch fails it. All must be
reported as they are. These runs may leave out what decides nothing: tracebacks, and other tests, if the gold patch
passes without them.

Code that can't tell the true form from n others is believed once in n + 1 plays at most: it has to say of one form that
it is true, and of no other. If it tosses a coin in each run, or decides by a hash of what it reads, it is believed with
a probability of (1 - 1/(n + 1)) ** n / (n + 1) at most (`luck`): 0.057 with six forms, 0.148 with two. The hash is why
the true form is in one run alone: in a random half of the runs, the same guess would be right again and again, and
believed with 0.098.

Fewer runs would not do:

- Many tests give many guesses a run, but each of them one: code that is right but for one test would win by one guess.
- Copies of a test in one run, or runs that see each other's, have the true form in common. If one false form stood for
  all of them, a single guess at which of two is true would do.

A test that fails in fewer than `FEWEST_FORMS` altered forms has no such witness. The gold patch is run in each form, of
all tests in the same runs, once for all patches of a task; without a gold patch there is none.

**No witness** for any FAIL_TO_PASS test: no reward (`unwitnessed`). Rewritten literals may keep tests from being built;
where the gold patch's control reports nothing, silence is none.

**Order.** The control runs to its end before the first run starts: no sandbox of this grading holds the values until
then. Gradings of the same task take turns (`GroupLock`): while one's control runs, no other's first run does, of any
patch, so none can send the values to it. A further run is beside no other run of the task: code that sees two forms of a
test knows more than code that sees one. The gold patch and the unpatched code are trusted: their controls wait for nobody.
Turns are taken within one event loop, as all gradings of a group are.

What the gold patch's control does not show either is not held against a patch: a runner may stop at the first failure
or report passes alone, a test may be expected to fail, a value may be of a type that has no plain form. Where something
is missing that the gold patch shows, the control is run once more, since a process may die by accident, and so it is
for the FAIL_TO_PASS tests alone if it shows nothing of them. No process of the first run lives by then.

Not covered:

- Code that knows what a test expects, because its agent has seen the test or can guess what it says.
- Code that knows which of a test's forms is likely: it knows English, or the style of the file, or that `True` is
  expected more often than `False`, or is right in the part of the test that is altered (`rewards.altered_tests`).
- Tests that are not found as functions of Python files. The literals of their files are rewritten, once, and code that
  tosses a coin, to forge or to fail honestly, is believed once in four plays at best.
- PASS_TO_PASS tests without values: they are mutated in the control alone, which code can recognise.
- A value of a type that has no plain form and is equal to a literal, where the gold patch's is plain: it is not believed.
- Values that outlive the first run's processes and their sandbox, in a state of the machine that a later control of
  the same task reads (one more look at what was missing, or another patch's control). Such a state is not one that a
  process holds: a lock, a socket and an open file end with it.
- Values that reach a control from elsewhere while it runs: from the sandbox of an agent that has been told them, or
  from a run of the task in another process or on another machine. Sandboxes must share nothing that carries them.
"""  # noqa: E501 (a table's row)

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
from collections import Counter
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

from slime_swe.data_sources.task import Oracle, Task
from slime_swe.rewards.altered_tests import FORMS
from slime_swe.rewards.grade import Trial
from slime_swe.rewards.shared import GroupLock, lock_of
from slime_swe.rewards.withheld import GUESSABLE, Records, Withheld

FURTHER_RUNS = 7  # further runs of a test without values at most: in one of them it is the true one
FEWEST_FORMS = 2  # altered forms that a test without values needs
_FORMS_USED = FURTHER_RUNS - 1

_NONE: frozenset[str] = frozenset()
T = TypeVar("T")


@dataclass(frozen=True)
class ControlRun:
    """A run with mutated tests (ids), and what its log reports of all tests.

    functions: the mutated tests, those of one function together. withheld: the values that were, by number; records:
    what was given in their place. rewritten: no test could be mutated, and their files have other literals.
    timed_out: the run reached its time limit, so that it says less than it might.
    """

    functions: tuple[frozenset[str], ...] = ()
    failed: frozenset[str] = _NONE
    passed: frozenset[str] = _NONE
    withheld: tuple[Withheld, ...] = ()
    records: Records = field(default_factory=dict)
    rewritten: bool = False
    timed_out: bool = False

    @property
    def mutated(self) -> frozenset[str]:
        return frozenset().union(*self.functions)

    @property
    def reports(self) -> bool:
        """Say whether the run has reported or recorded anything."""
        return bool(self.failed or self.passed or self.records)


class ControlledRuns(Protocol):
    """The runs of one patch. All raise `PatchError`, `GraderError`, `SandboxError`."""

    async def first(self) -> Trial:
        """Run the tests as they are."""
        ...

    async def control(self, tests: Sequence[str]) -> ControlRun:
        """Run with these tests mutated where that can be, and their values withheld."""
        ...

    async def gold_control(self, tests: Sequence[str]) -> ControlRun:
        """Make the control run with the gold patch, which must not be empty. It may be cached."""
        ...

    async def unpatched_control(self, tests: Sequence[str]) -> ControlRun:
        """Make the control run without a patch. It may be cached."""
        ...

    async def altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
        """Run with these tests in the altered forms of these numbers, and all others as they are. A test that has no
        such form is not among the run's `functions`. only: others than these may be left out; empty for none."""
        ...

    async def gold_altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
        """Make the altered run with the gold patch, which must not be empty. It may be cached."""
        ...


@dataclass(frozen=True)
class _Findings:
    """The findings of a control run on the tests that the first run reports as passed."""

    values: frozenset[str] = _NONE
    mutated: frozenset[str] = _NONE
    silent: frozenset[str] = _NONE
    missing: frozenset[str] = _NONE
    passed: frozenset[str] = _NONE
    wrong: frozenset[str] = _NONE

    @property
    def witnessed(self) -> frozenset[str]:
        return self.values | self.mutated | self.silent

    @property
    def strong(self) -> frozenset[str]:
        return self.values | self.mutated

    def without(self, tests: frozenset[str]) -> _Findings:
        """Return the findings without what mutated tests show of these."""
        return replace(self, mutated=self.mutated - tests, silent=self.silent - tests)

    def and_again(self, again: _Findings) -> _Findings:
        """Return the findings with those of a second run. What is missing in it too stays so."""
        values, mutated = self.values | again.values, self.mutated | again.mutated
        return _Findings(
            values, mutated, (self.silent | again.silent) - mutated, again.missing, again.passed, again.wrong
        )


async def with_negative_control(task: Task, runs: ControlledRuns) -> Trial:
    """Return the first run's trial, rejected where its control shows that it is forged, or shows nothing. Raises what
    the runs do.

    There are two runs, one after the other; one more if something is missing, and `FURTHER_RUNS` more where a
    FAIL_TO_PASS test has no value. The first run is made whatever the control shows, since its results are parts of
    the score.
    """
    oracle, runs = task.oracle, _InTurn(runs, await lock_of(task))
    run = await runs.control((*oracle.fail_to_pass, *oracle.pass_to_pass))
    trial = await runs.first()
    if not trial.share(oracle.fail_to_pass) or trial.quality == 0:
        return trial
    return await _judged(oracle, trial, run, runs)


@dataclass(frozen=True)
class _InTurn:
    """The runs of one patch, each made beside no run of the task that could tell it something."""

    runs: ControlledRuns
    lock: GroupLock

    async def first(self) -> Trial:
        async with self.lock.held("first"):
            return await self.runs.first()

    async def control(self, tests: Sequence[str]) -> ControlRun:
        async with self.lock.held("control"):
            return await self.runs.control(tests)

    async def gold_control(self, tests: Sequence[str]) -> ControlRun:
        return await self.runs.gold_control(tests)

    async def unpatched_control(self, tests: Sequence[str]) -> ControlRun:
        return await self.runs.unpatched_control(tests)

    async def altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
        async with self.lock.held(object()):  # a group of its own
            return await self.runs.altered(forms, only)

    async def gold_altered(self, forms: Mapping[str, int], only: Sequence[str]) -> ControlRun:
        return await self.runs.gold_altered(forms, only)


def uncontrolled(trial: Trial) -> Trial:
    """Return the trial of a log that is believed without a witness; it says so."""
    passed = sum(trial.tests.values())
    return replace(trial, details={**trial.details, "witness": {"uncontrolled": passed}})


async def _judged(oracle: Oracle, trial: Trial, run: ControlRun, runs: ControlledRuns) -> Trial:
    deciding = frozenset(oracle.fail_to_pass)
    passed = frozenset(name for name, passed in trial.tests.items() if passed)
    found = await _findings(oracle, passed, run, tuple(trial.tests), runs)
    if reason := _forged(found):
        return _rejected(trial, found, "forged", reason)
    if again := found.missing or (_NONE if deciding & found.strong else deciding & passed):
        again = again.union(*(group for group in run.functions if group & again))  # a record is of all its cases
        names = tuple(name for name in trial.tests if name in again)
        found = found.and_again(await _findings(oracle, passed, await runs.control(names), names, runs))
        if reason := _forged(found) or _some("are not reported as failed when they are mutated", found.missing):
            return _rejected(trial, found, "forged", reason)
    functions = [group for group in run.functions if group & deciding]
    left = (deciding - found.values) & frozenset().union(*functions)
    reported, silent = left & found.mutated, left & found.silent
    if reported | silent and not run.rewritten:
        forms: _Forms = {}
        only = sorted(frozenset().union(*functions)) if oracle.gold_patch.strip() else []
        if only:
            if not (await runs.gold_altered({}, only)).passed.issuperset(only):
                only = []  # they need the others
            most = FORMS // 2 if deciding & found.values else FORMS
            forms = await _failing_forms(functions, reported, silent, only, runs, most)
        times = _times_unmet(form for chosen in forms.values() for form in chosen)
        believed = frozenset(test for test in reported | silent if times[test] >= FEWEST_FORMS)
        found = found.without((reported | silent) - believed)
        forms = {group: chosen for group, chosen in forms.items() if group & believed}
        if reason := await _altered_runs(forms, passed, only, runs):
            return _rejected(trial, found, "forged", reason)
        if believed:
            trial = replace(trial, details={**trial.details, "luck": luck(min(times[test] for test in believed))})
    if deciding and not deciding & found.witnessed:
        reason = (
            "no FAIL_TO_PASS test could be altered unnoticed so that it fails, or has a value that could be withheld: "
            "reward.negative_control=false believes the log"
        )
        return _rejected(trial, found, "unwitnessed", reason)
    return _with(trial, found)


def luck(forms: int) -> float:
    """Return the highest probability of being believed, for code that takes a text for the true one by a hash of it,
    of a test with so many altered forms."""
    return round(1 / (forms + 1) * (1 - 1 / (forms + 1)) ** forms, 3)


async def _findings(
    oracle: Oracle, passed: frozenset[str], run: ControlRun, names: Sequence[str], runs: ControlledRuns
) -> _Findings:
    """Compare a run with the controls of the gold patch and of none, as far as they say anything of it. Where no test
    decides, what is right is the unpatched code."""
    if not oracle.fail_to_pass:
        return _compared(passed, run, await runs.unpatched_control(names), ControlRun(), _NONE)
    wanted = [runs.gold_control(names)] if oracle.gold_patch.strip() else []
    wanted += [runs.unpatched_control(names)] if run.withheld else []
    known = iter(await _together(wanted))
    gold = next(known) if oracle.gold_patch.strip() else ControlRun()
    return _compared(passed, run, gold, next(known, ControlRun()), frozenset(oracle.fail_to_pass))


def _compared(
    passed: frozenset[str], run: ControlRun, gold: ControlRun, unpatched: ControlRun, deciding: frozenset[str]
) -> _Findings:
    """Compare a run with other controls. What is the same with the gold patch is not held against a patch."""
    mutated = run.mutated & passed
    unreported = mutated - run.failed - run.passed
    built = gold.reports or not run.rewritten  # rewritten tests may not even compile, with any code
    right: set[str] = set()
    wrong: set[str] = set()
    unrecorded: set[str] = set()
    guessed: dict[str, Counter[_Guessed]] = {}  # of each test, what is right and easily guessed
    for number, place in enumerate(run.withheld):
        if not place.tests <= passed:
            continue
        given, shown = run.records.get(number, _NONE), gold.records.get(number, _NONE)
        if given and given in (shown, place.digests):
            before = unpatched.records.get(number, _NONE)
            if "?" not in given and not given <= GUESSABLE:
                right |= place.tests - (deciding if before == given else _NONE)
            elif len(given) == 1:
                [value] = given
                for test in place.tests:
                    guessed.setdefault(test, Counter())[before if test in deciding else _NONE, value] += 1
        elif shown and shown <= place.digests:
            (wrong if given else unrecorded).update(place.tests)
    right |= {test for test, values in guessed.items() if _all_guessed(values) <= luck(_FORMS_USED)}
    return _Findings(
        values=frozenset(right - wrong - unrecorded),
        mutated=mutated & run.failed,
        silent=unreported - gold.failed - gold.passed if built else _NONE,
        missing=(unreported & gold.failed) | unrecorded,
        passed=mutated & run.passed - gold.passed,
        wrong=frozenset(wrong),
    )


_Guessed = tuple[frozenset[str], str]  # what the unpatched code gives in a place, and what is right there


def _all_guessed(values: Counter[_Guessed]) -> float:
    """Return the probability that code guesses all values, knowing what the unpatched code gives in each place, and how
    often another one is right then, and not where."""
    places: Counter[frozenset[str]] = Counter()
    for (before, _), times in values.items():
        places[before] += times
    return math.prod((times / places[before]) ** times for (before, _), times in values.items())


@dataclass(frozen=True)
class _Form:
    """An altered form of the tests of one function, and what the gold patch's run reports of them, and of cases that
    have other names in it as failed. unmet: those that can't be met in this form, as it shows. A case that is not
    reported by its own name is one of them if all that have other names fail."""

    number: int
    failed: frozenset[str]
    passed: frozenset[str]
    unmet: frozenset[str]


_Forms = Mapping[frozenset[str], Sequence[_Form]]  # of the tests of each function


async def _failing_forms(
    functions: Sequence[frozenset[str]],
    reported: frozenset[str],
    silent: frozenset[str],
    only: Sequence[str],
    runs: ControlledRuns,
    most: int,
) -> _Forms:
    """Find altered forms of each function that has such tests, `FURTHER_RUNS` - 1 at most, in which the gold patch
    fails one that is `reported` so in the control, or does not pass one that is `silent` there.

    All functions are altered in the first runs of the gold patch, each in a form of its own, so that they are the same
    runs for all patches. There are more if some tests fail in few forms, and in the second half of the forms only if
    they fail in fewer than `FEWEST_FORMS`. A form in which the gold patch hangs fails no test. most: how many forms are
    tried, about.
    """
    found: dict[frozenset[str], list[_Form]] = {group: [] for group in functions if group & (reported | silent)}
    ended: set[frozenset[str]] = set()  # of these there are no more forms
    for first in range(0, most, _FORMS_USED):
        times = _FORMS_USED if first < FORMS // 2 else FEWEST_FORMS
        wanted = [group for group in found if group not in ended and not _each_fails(found[group], times)]
        if not wanted:
            break
        altered = wanted if first else functions
        numbers = range(first, min(first + _FORMS_USED, FORMS))
        made = await _together(
            runs.gold_altered({test: number for group in altered for test in sorted(group)}, only) for number in numbers
        )
        for number, run in zip(numbers, made, strict=True):
            for group in wanted:
                if not group <= run.mutated:
                    ended.add(group)
                    continue
                renamed = _renamed(group, run)
                known = (
                    run.passed if renamed and not renamed & run.passed else run.passed | (group & reported) - run.failed
                )
                if unmet := group & (reported | silent) - known:
                    found[group].append(_Form(number, (group | renamed) & run.failed, group & run.passed, unmet))
    return {group: _chosen(forms) for group, forms in found.items() if forms}


def _renamed(group: frozenset[str], run: ControlRun) -> frozenset[str]:
    """Return the cases of a function whose altered parameters are part of their names."""
    functions = {test.partition("[")[0] for test in group}
    return frozenset(test for test in run.failed | run.passed if test.partition("[")[0] in functions) - group


def _each_fails(forms: Sequence[_Form], times: int) -> bool:
    """Say whether each test that fails in any of these forms does so at least `times` times."""
    return bool(forms) and min(_times_unmet(forms).values()) >= times


def _times_unmet(forms: Iterable[_Form]) -> Counter[str]:
    return Counter(test for form in forms for test in form.unmet)


def _chosen(forms: Sequence[_Form]) -> Sequence[_Form]:
    """Choose up to `FURTHER_RUNS` - 1 forms, each the one that fails most of the tests that few chosen ones fail."""
    chosen: list[_Form] = []
    while len(chosen) < min(len(forms), _FORMS_USED):
        times = _times_unmet(chosen)
        left = [form for form in forms if form not in chosen]
        chosen.append(max(left, key=lambda form: sum(1 / (1 + times[test]) for test in form.unmet)))
    return chosen


async def _altered_runs(forms: _Forms, passed: frozenset[str], only: Sequence[str], runs: ControlledRuns) -> str:
    """Say why the log is not believed of the tests that `passed` in the first run; empty where it is. In one of the
    runs, which is drawn for each function, its tests are as they are and must be reported as passed. In each of the
    others they have an altered form, and must be reported as with the gold patch: as failed, as passed, or, where its
    log leaves a test out, not as passed. A function with fewer forms than another has some of them again.

    Tests of one function differ in this: a log parser may cut a failed test's name where a passed one's goes on
    (`test_echo[a - b]`), and a runner may stop at the first of them that fails.
    """
    drawn: dict[frozenset[str], list[_Form | None]] = {}
    most = max(map(len, forms.values()), default=0)
    for group, found in forms.items():
        drawn[group] = [None, *itertools.islice(itertools.cycle(found), most)]
        secrets.SystemRandom().shuffle(drawn[group])
    for number in range(1 + most if drawn else 0):
        chosen = {group: turns[number] for group, turns in drawn.items()}
        run = await runs.altered(
            {test: form.number for group, form in chosen.items() if form for test in sorted(group)}, only
        )
        wrong: set[str] = set()
        for group, form in chosen.items():
            fails, passes = (form.failed, form.passed) if form else (_NONE, group)
            wrong |= (fails - run.failed) | (passes - run.passed) | ((group - passes) & run.passed)
        if wrong := wrong & passed.union(*(form.failed for form in chosen.values() if form)):
            return _some("are not reported as they are, altered or not, in further runs", wrong)
    return ""


async def _together(runs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of runs at once; if one fails, the others are cancelled."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        return [await task for task in tasks]
    finally:
        await _end(*tasks)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _forged(found: _Findings) -> str:
    return _some("pass even when they are mutated", found.passed) or _some(
        "give other values where what they expect is withheld", found.wrong
    )


def _some(what: str, tests: Collection[str]) -> str:
    return f"these {what}, and not with the gold patch: {', '.join(sorted(tests))}" if tests else ""


def _with(trial: Trial, found: _Findings) -> Trial:
    """Return the trial with the number of tests that each witness stands for."""
    passed = {name for name, passed in trial.tests.items() if passed}
    witness = {
        "values": len(found.values),
        "mutated": len(found.mutated - found.values),
        "silent": len(found.silent - found.mutated - found.values),
        "none": len(passed - found.witnessed),
    }
    return replace(trial, details={**trial.details, "witness": witness})


def _rejected(trial: Trial, found: _Findings, outcome: Literal["forged", "unwitnessed"], reason: str) -> Trial:
    trial = _with(trial, found)
    return replace(trial, solved=False, rejected=outcome, details={**trial.details, "rejection_reason": reason})
