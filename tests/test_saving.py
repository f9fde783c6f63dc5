"""When a run saves beside its interval, and when it stops, by a clock that the test sets."""

from __future__ import annotations

import pytest

from slime_swe.saving import STOP_BY, Due, Saves, request_stop, stop_by, withdraw_request

SAVE, GO_ON, STOP = Due(save=True, stop=False), Due(save=False, stop=False), Due(save=True, stop=True)


class Clock:
    """Minutes that pass when the test says so, as seconds."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def after(self, minutes: float) -> float:
        return self.now + 60 * minutes


class Run:
    """Steps and saves of a run, each taking as many minutes as is said."""

    def __init__(self, folder, minutes: float = 0) -> None:
        self.clock = Clock()
        self.saves = Saves(folder, 60 * minutes, self.clock)

    def step(self, minutes: float, *, save: float = 0) -> Due:
        self.clock.now = self.clock.after(minutes)
        due = self.saves.after_step()
        if due.save:
            self.clock.now = self.clock.after(save)
            self.saves.on_saved()
        return due


@pytest.mark.parametrize(
    ("step", "rollouts"), [(1, 45), (15, 3), (19, 2), (20, 2), (22, 2), (23, 1), (39, 1), (45, 1), (100, 1)]
)
def test_a_checkpoint_comes_before_it_would_be_late(step, rollouts, tmp_path):
    """With steps of one length it is the number of rollouts that the planner counts, and never one more."""
    run = Run(tmp_path, 45)
    steps = [run.step(step) for _ in range(4 * rollouts)]
    assert [number + 1 for number, due in enumerate(steps) if due.save] == [rollouts * n for n in (1, 2, 3, 4)]
    assert not any(due.stop for due in steps)


def test_steps_of_several_lengths_are_expected_to_take_as_long_as_the_longest_of_the_last_three(tmp_path):
    run = Run(tmp_path, 45)
    assert run.step(30) == SAVE, "the first has the start in it, and 30 more would be late"
    assert [run.step(minutes) for minutes in (10, 10, 10)] == [GO_ON] * 3
    assert run.step(10) == SAVE
    assert [run.step(20), run.step(5)] == [GO_ON, GO_ON], "25 and 20 more are just in time"
    assert run.step(1) == SAVE
    assert [run.step(5) for _ in range(8)] == [GO_ON] * 8


def test_without_an_interval_of_time_nothing_is_due(tmp_path):
    run = Run(tmp_path)
    assert {run.step(600) for _ in range(9)} == {GO_ON}


def test_a_run_saves_and_stops_before_the_time_that_it_is_given(tmp_path):
    """Of 100 minutes with steps of 20, the fifth ends just in time. Were it longer, the fourth would be lost."""
    run = Run(tmp_path)
    request_stop(tmp_path, run.clock.after(100))
    assert [run.step(20) for _ in range(5)] == [GO_ON, GO_ON, GO_ON, SAVE, STOP]
    assert run.clock.now <= stop_by(tmp_path)


def test_a_save_must_end_in_time_too(tmp_path):
    run = Run(tmp_path, 1)
    request_stop(tmp_path, run.clock.after(100))
    steps = [run.step(20, save=5)]
    while not steps[-1].stop:
        steps.append(run.step(20, save=5))
    assert steps == [SAVE, SAVE, SAVE, STOP]
    assert run.clock.now <= stop_by(tmp_path) < run.clock.after(25)


def test_no_step_that_ended_is_lost_where_one_takes_up_to_twice_as_long_as_the_others(tmp_path):
    for longest in range(20, 40):
        folder = tmp_path / str(longest)
        folder.mkdir()
        run, saved = Run(folder, 45), 0
        request_stop(folder, run.clock.after(300))
        for number in range(1, 20):
            ended = run.clock.after(longest if number >= 12 else 20)
            if ended > stop_by(folder):
                assert saved == number - 1, "the step that time cut is the only one that is made again"
                break
            due = run.step(longest if number >= 12 else 20)
            saved = number if due.save else saved
            if due.stop:
                break
        assert saved >= 10


def test_a_run_that_is_asked_stops_after_the_step_that_runs(tmp_path):
    run = Run(tmp_path, 45)
    assert run.step(1) == GO_ON
    request_stop(tmp_path)
    assert run.step(1) == STOP
    withdraw_request(tmp_path)
    assert run.step(1) == GO_ON and stop_by(tmp_path) is None
    withdraw_request(tmp_path)


@pytest.mark.parametrize(("text", "by"), [("0\n", 0.0), ("", 0.0), ("later", 0.0), ("1790000000\n", 1790000000.0)])
def test_what_a_shell_writes_is_read_and_an_unfinished_line_asks_for_the_end_of_this_step(text, by, tmp_path):
    (tmp_path / STOP_BY).write_text(text)
    assert stop_by(tmp_path) == by
