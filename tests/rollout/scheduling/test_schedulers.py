"""What the schedulers promise, whatever ends when: each example is one run of random outcomes in a random order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_swe.rollout.scheduling.schedulers import (
    DynamicSampling,
    NothingInformative,
    Outcome,
    PacedAdmission,
    Scheduler,
)

STEPS = 8
OUTCOMES = (Outcome.INFORMATIVE, Outcome.UNIFORM, Outcome.BROKEN)


@dataclass
class Run:
    """Drives a scheduler for some steps. outcome: of a group, by number and attempt. duration: in ticks.

    while_training: groups begin and end also between a batch and the next version, as many as end meanwhile.
    """

    scheduler: Scheduler
    outcome: Callable[[int, int], Outcome]
    duration: Callable[[int, int], float]
    slots: int
    while_training: int = 0
    trained: list[list[int]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    begun_at: dict[int, int] = field(default_factory=dict)  # the version of its last beginning
    attempts: Counter[int] = field(default_factory=Counter)
    running: dict[int, float] = field(default_factory=dict)
    most_outstanding: int = 0
    most_untrained: Counter[bool] = field(default_factory=Counter)  # while a batch trains, and while none does
    again: list[int] = field(default_factory=list)
    fresh: int = 0
    now: float = 0.0

    def play(self, steps: int = STEPS) -> Run:
        for version in range(steps):
            while (batch := self.scheduler.take(version)) is None:
                assert self.advance(version), "no batch, nothing that runs, and nothing wanted"
            for group in batch.requeued:
                self.running.pop(group, None)
            requeued = set(batch.requeued)
            self.dropped = [group for group in self.dropped if group not in requeued]
            self.again = sorted(requeued | set(self.again))
            self.trained.append(list(batch.groups))
            for _ in range(self.while_training):
                self.advance(version, training=True)
        return self

    def advance(self, version: int, training: bool = False) -> bool:
        """Begin what is wanted, until one group ends. Whether one did."""
        while self.scheduler.wanted(version) > 0 and len(self.running) < self.slots:
            group = self.again.pop(0) if self.again else self.fresh
            self.fresh += group == self.fresh
            self.begin(group, version)
            untrained = len(self.attempts) - sum(map(len, self.trained)) - len(self.dropped)
            self.most_untrained[training] = max(self.most_untrained[training], untrained)
        self.most_outstanding = max(self.most_outstanding, len(self.running))
        if not self.running:
            return False
        group = min(self.running, key=self.running.__getitem__)
        self.now = self.running.pop(group)
        outcome = self.outcome(group, self.attempts[group])
        if outcome is Outcome.BROKEN:  # it has not ended, but begins anew
            self.begin(group, version)
            return True
        self.scheduler.end(group, outcome)
        if outcome is Outcome.UNIFORM:
            self.dropped.append(group)
        return True

    def begin(self, group: int, version: int) -> None:
        self.scheduler.begin(group, version)
        self.begun_at[group] = version
        self.attempts[group] += 1
        self.running[group] = self.now + self.duration(group, self.attempts[group])


def outcomes(seed: int, informative: float, broken: float) -> Callable[[int, int], Outcome]:
    def outcome(group: int, attempt: int) -> Outcome:
        if broken and attempt < 3 and random.Random(hash((seed, group, attempt))).random() < broken:
            return Outcome.BROKEN
        drawn = random.Random(hash((seed, group))).random()
        return Outcome.INFORMATIVE if drawn < informative else Outcome.UNIFORM

    return outcome


def durations(seed: int) -> Callable[[int, int], float]:
    return lambda group, attempt: random.Random(hash((seed, group, attempt))).lognormvariate(0, 1.5)


seeds = st.integers(0, 10**6)
rates = st.sampled_from([0.15, 0.5, 1.0])
sizes = st.sampled_from([1, 2, 5])
slots = st.sampled_from([1, 3, 40])


@given(seeds, rates, sizes, slots, st.sampled_from([1.0, 1.5, 4.0]))
@settings(max_examples=150, deadline=None)
def test_dynamic_sampling_is_a_function_of_the_outcomes_alone(seed, informative, size, slots, most):
    def play(times: int, places: int) -> Run:
        outcome = outcomes(seed, informative, broken=0.1)
        return Run(DynamicSampling(size, most, patience=1000), outcome, durations(times), places).play()

    run, other = play(seed, slots), play(seed + 1, 40)
    assert run.trained == other.trained
    # It is the informative groups in the order in which the data source hands them out, each once.
    last = run.trained[-1][-1]
    expected = [group for group in range(last + 1) if outcomes(seed, informative, 0)(group, 1) is Outcome.INFORMATIVE]
    assert [group for batch in run.trained for group in batch] == expected
    assert all(run.begun_at[group] == version for version, batch in enumerate(run.trained) for group in batch)


@given(seeds, rates, sizes, st.sampled_from([1.0, 1.5, 4.0]))
@settings(max_examples=100, deadline=None)
def test_no_more_is_begun_than_what_is_missing_needs(seed, informative, size, most):
    scheduler = DynamicSampling(size, most, patience=1000)
    run = Run(scheduler, outcomes(seed, informative, 0.0), durations(seed), slots=1000)
    run.play()
    assert run.most_outstanding <= size * most + 1
    if informative == 1.0:
        assert run.most_outstanding == size, "no over-sampling where every group is informative"
        assert set(run.attempts.values()) == {1}, "so nothing is given back"


@pytest.mark.parametrize("informative", (0.2, 0.4, 0.8))
def test_few_batches_need_a_second_wave(informative):
    """Groups take one tick each, so that the clock counts waves. Without the margin half of the batches need two."""
    scheduler = DynamicSampling(32, max_over_sampling=8.0)
    run = Run(scheduler, outcomes(0, informative, 0.0), lambda *_: 1.0, slots=1000).play(steps=100)
    assert run.now < 1.35 * 100


def test_a_cap_of_less_than_one_over_the_informative_share_needs_a_second_wave():
    scheduler = DynamicSampling(32, max_over_sampling=2.0)
    run = Run(scheduler, outcomes(0, 0.4, 0.0), lambda *_: 1.0, slots=1000).play(steps=100)
    assert run.now > 1.9 * 100


def test_what_never_is_informative_ends_the_run():
    with pytest.raises(NothingInformative, match="none of 10 groups"):
        Run(DynamicSampling(5, patience=2), lambda *_: Outcome.UNIFORM, durations(0), slots=3).play()


@given(seeds, rates, sizes, slots, st.integers(0, 3), st.integers(0, 1), st.sampled_from([0, 1, 20]))
@settings(max_examples=200, deadline=None)
def test_paced_groups_are_trained_once_and_in_time(seed, informative, size, slots, staleness, lag, while_training):
    lag = min(lag, staleness)
    scheduler = PacedAdmission(size, staleness, lag)
    run = Run(scheduler, outcomes(seed, informative, broken=0.1), durations(seed), slots, while_training).play()
    trained = [group for batch in run.trained for group in batch]
    assert len(trained) == len(set(trained)) == size * STEPS
    for version, batch in enumerate(run.trained):
        assert batch == sorted(batch)
        assert all(version >= run.begun_at[group] for group in batch)
        assert all(version - max(0, run.begun_at[group] - lag) <= staleness for group in batch)
    assert not set(trained) & set(run.dropped)
    assert scheduler.outstanding <= (staleness + 1) * size
    assert run.most_untrained[False] <= (staleness + 1) * size and run.most_untrained[True] <= staleness * size
    assert len(run.attempts) == len(trained) + len(run.dropped) + scheduler.outstanding, "nothing is lost"


@given(seeds, sizes, st.integers(1, 3), st.sampled_from([0, 1, 20]))
@settings(max_examples=100, deadline=None)
def test_slow_groups_are_trained_as_surely_as_quick_ones(seed, size, staleness, while_training):
    """Every informative group that began a bound ago has been trained, so none was left out for its length."""
    outcome = outcomes(seed, 0.5, broken=0.0)
    run = Run(PacedAdmission(size, staleness), outcome, durations(seed), 40, while_training).play()
    trained = {group for batch in run.trained for group in batch}
    old = [group for group, version in run.begun_at.items() if version <= STEPS - 1 - staleness]
    assert {group for group in old if outcome(group, 1) is Outcome.INFORMATIVE} <= trained


@given(seeds, rates, sizes, slots, st.sampled_from([0, 20]))
@settings(max_examples=60, deadline=None)
def test_without_staleness_paced_admission_is_dynamic_sampling(seed, informative, size, slots, while_training):
    outcome = outcomes(seed, informative, broken=0.0)
    paced = Run(PacedAdmission(size, 0), outcome, durations(seed), slots, while_training).play()
    dynamic = Run(DynamicSampling(size, 1.0, patience=1000), outcome, durations(seed + 1), slots).play()
    assert paced.trained == dynamic.trained
