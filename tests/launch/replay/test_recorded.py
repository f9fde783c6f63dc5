"""A journal is read rollout by rollout: what counts of it, and how much of it is in memory."""

from __future__ import annotations

import tracemalloc

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.replay.replayed import read_recorded
from slime_swe.rollout.journals import append_records, read_rollouts
from slime_swe.rollout.records import EPISODES, record_of, sample_of
from tests.launch.replay.made import Played, make_run, samples_of

GROUP = [Played(True, tokens=(200,)), Played(False, tokens=(100, 100))]


def test_a_rollout_that_two_attempts_have_played_counts_as_the_last_one_did(tmp_path):
    path = tmp_path / EPISODES
    for rollout, attempt, groups in ((0, 1, 1), (1, 1, 1), (1, 2, 3), (2, 2, 1)):
        append_records(path, samples_of([GROUP] * groups), rollout_id=rollout, attempt=attempt)
    found = [*read_recorded(path)]
    assert [(each.rollout, len(each.groups)) for each in found] == [(0, 1), (1, 3), (2, 1)]
    assert [*found[1].episodes] == [[0], [1, 2], [3], [4, 5], [6], [7, 8]]


def test_a_line_that_is_still_written_is_left_out_and_a_damaged_one_is_named(tmp_path):
    path = tmp_path / EPISODES
    append_records(path, samples_of([GROUP]), rollout_id=0, attempt=1)
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[0][:100])
    assert [len(records) for records in read_rollouts(path)] == [3]
    path.write_bytes(
        whole.replace(b'"status":"completed"', b'"status":1.5', 1).replace(b'"rollout_id":0', b'"rollout_id":"x"', 1)
    )
    with pytest.raises(UserError, match=r"episodes.jsonl, line 1 is no Record"):
        [*read_rollouts(path)]


def test_a_rollout_in_two_places_is_refused(tmp_path):
    path = tmp_path / EPISODES
    for rollout in (0, 1, 0):
        append_records(path, samples_of([GROUP]), rollout_id=rollout, attempt=1)
    with pytest.raises(UserError, match="rollout 0 do not stand together"):
        [*read_rollouts(path)]


def test_no_more_than_a_rollout_is_in_memory(tmp_path):
    peaks = []
    for rollouts in (4, 40):
        folder = make_run(tmp_path / str(rollouts), [[GROUP] * 8] * rollouts)
        tracemalloc.start()
        assert sum(len(recorded.groups) for recorded in read_recorded(folder / EPISODES)) == 8 * rollouts
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_staleness_counts_updates_of_the_weights_whatever_they_are_called(tmp_path):
    """SLiME counts from 1, and anew after each resumption; the embedded engine's first weights are `default`."""
    path = tmp_path / EPISODES
    played = (
        (0, 1, [["1"]]),
        (1, 1, [["1", "2"], ["2"]]),
        (2, 2, [["1"]]),
        (3, 2, [["2"], ["1"]]),
        (4, 2, [["x"], ["3"]]),
    )
    for rollout, attempt, groups in played:
        samples = samples_of([[Played(True, versions=names)] for names in groups])
        append_records(path, samples, rollout_id=rollout, attempt=attempt)
    found = [[*each.staleness.values()] for each in read_recorded(path)]
    assert found == [[0], [1, 0], [0], [0, 1], [None, 0]]
    other = make_run(tmp_path / "embedded", [[[Played(True)]], [[Played(True, versions=["default", "0"])]]])
    assert [[*each.staleness.values()] for each in read_recorded(other / EPISODES)] == [[0], [1]]


def test_a_sample_of_a_record_has_the_same_record(tmp_path):
    for sample in samples_of([[*GROUP, Played(False, broken=True)]]):
        assert record_of(sample_of(record_of(sample))) == record_of(sample)
