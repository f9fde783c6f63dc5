from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slime_swe.data_sources.slime_plugin import TaskDataSource, task_of
from slime_swe.data_sources.task import TOGETHER
from slime_swe.errors import UserError
from slime_swe.sample import Sample
from tests.data_sources.tasks import make_task


def seven(split: str):
    return [make_task(f"task-{i}") for i in range(7)]


def one(split: str):
    return [make_task("only")]


def three(split: str):
    return [make_task(f"{split}-{i}") for i in range(3)]


def make_args(folder, **changes) -> Namespace:
    values = {
        "swe_tasks": ["tests.data_sources.test_slime_plugin.seven:x"],
        "n_samples_per_prompt": 2,
        "rollout_seed": 5,
        "rollout_shuffle": True,
        "save": str(folder),
        "load": str(folder),
    }
    return Namespace(**{**values, **changes})


def ids(groups) -> list[str]:
    return [group[0].metadata["task"]["id"] for group in groups]


def test_groups_hold_one_task_and_indices_count_up(tmp_path):
    source = TaskDataSource(make_args(tmp_path))
    groups = [*source.get_samples(2), *source.get_samples(1)]
    flat = [sample for group in groups for sample in group]
    assert [sample.index for sample in flat] == [sample.rollout_id for sample in flat] == [0, 1, 2, 3, 4, 5]
    assert [sample.group_index for sample in flat] == [0, 0, 1, 1, 2, 2]
    assert all(group[0].metadata["task"]["id"] == group[1].metadata["task"]["id"] for group in groups)
    assert flat[0].prompt == task_of(flat[0]).statement
    assert flat[0].metadata is not flat[1].metadata
    assert flat[0].status is Sample.Status.PENDING
    assert len(source) == 7


def test_an_epoch_has_each_task_once_and_the_next_another_order(tmp_path):
    source = TaskDataSource(make_args(tmp_path))
    first, second = ids(source.get_samples(7)), ids(source.get_samples(7))
    assert sorted(first) == sorted(second) == [f"task-{i}" for i in range(7)]
    assert first != second
    assert ids(TaskDataSource(make_args(tmp_path)).get_samples(14)) == first + second
    assert ids(TaskDataSource(make_args(tmp_path, rollout_seed=6)).get_samples(7)) != first
    assert ids(TaskDataSource(make_args(tmp_path, rollout_shuffle=False)).get_samples(3)) == [
        "task-0",
        "task-1",
        "task-2",
    ]


def test_more_than_an_epoch_at_once(tmp_path):
    source = TaskDataSource(make_args(tmp_path, swe_tasks="tests.data_sources.test_slime_plugin.one:x"))
    assert ids(source.get_samples(5)) == ["only"] * 5


def test_several_task_sets_are_joined(tmp_path):
    specs = ["tests.data_sources.test_slime_plugin.seven:x", "tests.data_sources.test_slime_plugin.one:x"]
    assert len(TaskDataSource(make_args(tmp_path, swe_tasks=specs))) == 8


def test_requeued_groups_come_first(tmp_path):
    source = TaskDataSource(make_args(tmp_path))
    groups = source.get_samples(3)
    source.add_samples(groups[1:])
    again = source.get_samples(3)
    assert again[:2] == groups[1:]
    assert again[2][0].index == 6
    for unknown in (Sample(), Sample(group_index=9)):
        with pytest.raises(UserError, match="a group was given back that was never handed out"):
            source.add_samples([[unknown]])


def test_groups_come_back_as_they_first_were(tmp_path):
    """Whatever has been written into their samples, and if an episode has become several of them."""
    source = TaskDataSource(make_args(tmp_path))
    (group,) = source.get_samples(1)
    played = [[sample, Sample(index=-9, group_index=0)] for sample in group]
    group[0].metadata["episode"], group[0].tokens = {"patch": ""}, [1]
    source.add_samples([played])
    (again,) = source.get_samples(1)
    assert [(sample.index, sample.tokens, [*sample.metadata]) for sample in again] == [
        (index, [], ["task"]) for index in (0, 1)
    ]


def test_tasks_that_are_quarantined_are_handed_out_no_more(tmp_path):
    source = TaskDataSource(make_args(tmp_path))
    source.quarantine("task-3")
    assert "task-3" not in ids(source.get_samples(12))
    source.save(0)
    resumed = TaskDataSource(make_args(tmp_path))
    resumed.load(0)
    assert "task-3" not in ids(resumed.get_samples(12))
    for number in range(7):
        resumed.quarantine(f"task-{number}")
    with pytest.raises(UserError, match="infrastructure failed on all 7 tasks"):
        resumed.get_samples(1)


def pairs(split: str):
    """Five pairs, whose halves are far apart, and a task of its own."""
    halves = [replace(make_task(f"{half}{i}"), metadata={TOGETHER: f"pair-{i}"}) for half in "ab" for i in range(5)]
    return [*halves, make_task("own-0")]


PAIRS = {"swe_tasks": "tests.data_sources.test_slime_plugin.pairs:x"}


def are_together(names: list[str]) -> bool:
    return all(names[names.index(f"a{i}") + 1] == f"b{i}" for i in range(5))


@pytest.mark.parametrize("shuffle", [True, False])
def test_tasks_that_belong_together_follow_each_other_in_every_epoch(tmp_path, shuffle):
    source = TaskDataSource(make_args(tmp_path, **PAIRS, rollout_shuffle=shuffle))
    epochs = [ids(source.get_samples(11)) for _ in range(20)]
    assert all(are_together(names) and sorted(names) == sorted(epochs[0]) for names in epochs)
    assert (len({tuple(names) for names in epochs}) > 10) == shuffle


def test_they_do_so_in_a_run_that_is_resumed(tmp_path):
    whole = ids(TaskDataSource(make_args(tmp_path, **PAIRS)).get_samples(44))
    for stop in range(1, 33):
        source = TaskDataSource(make_args(tmp_path, **PAIRS))
        before = ids(source.get_samples(stop))
        source.save(stop)
        resumed = TaskDataSource(make_args(tmp_path, **PAIRS))
        resumed.load(stop)
        assert before + ids(resumed.get_samples(44 - stop)) == whole


def test_they_do_so_within_their_set_where_sets_are_mixed(tmp_path):
    specs = [PAIRS["swe_tasks"], "tests.data_sources.test_slime_plugin.seven:x"]
    source = TaskDataSource(make_args(tmp_path, swe_tasks=specs, swe_weights=[1, 1]))
    names = [name for name in ids(source.get_samples(22)) if not name.startswith("task")]
    assert are_together(names)


def test_what_belongs_together_is_quarantined_together(tmp_path):
    source = TaskDataSource(make_args(tmp_path, **PAIRS))
    source.quarantine("b3")
    assert {"a3", "b3"} & {*ids(source.get_samples(22))} == set()


def test_a_checkpoint_holds_what_its_rollout_had_left(tmp_path):
    source = TaskDataSource(make_args(tmp_path))
    source.get_samples(3)
    source.end_rollout(0, unfinished=[1])
    following = source.get_samples(2)
    source.end_rollout(1)
    source.save(0)
    resumed = TaskDataSource(make_args(tmp_path))
    resumed.load(0)
    assert [group[0].group_index for group in resumed.get_samples(3)] == [1, 3, 4]
    assert following[0][0].group_index == 3


def test_a_state_may_be_written_before_its_checkpoint_and_goes_if_none_follows(tmp_path):
    """As of SLiME's `train_async.py`: each rollout's state is there while it is trained, and `save` comes a rollout
    later, where a checkpoint was made."""
    source = TaskDataSource(make_args(tmp_path))
    for rollout in range(6):
        source.get_samples(2)
        source.end_rollout(rollout)
        source.save_ahead(rollout)
        resumed = TaskDataSource(make_args(tmp_path))
        resumed.load(rollout)
        assert resumed.get_samples(1)[0][0].group_index == 2 * rollout + 2
        if rollout == 3:
            source.save(2)
    there = sorted(int(path.stem.rpartition("_")[2]) for path in tmp_path.rglob("task_data_source_*.json"))
    assert there == [2, 4, 5]
    resumed = TaskDataSource(make_args(tmp_path))
    resumed.load(2)
    assert resumed.get_samples(1)[0][0].group_index == 6, "the checkpoint's own, whatever was handed out since"


MIXED = [
    "tests.data_sources.test_slime_plugin.seven:x",
    *(f"tests.data_sources.test_slime_plugin.three:{c}" for c in "ab"),
]


def set_of(task_id: str) -> int:
    return {"t": 0, "a": 1, "b": 2}[task_id[0]]


def mixed(folder, weights, **changes) -> TaskDataSource:
    return TaskDataSource(make_args(folder, swe_tasks=MIXED[: len(weights)], swe_weights=weights, **changes))


weights_of_sets = st.lists(st.floats(0.01, 100), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(weights_of_sets, st.integers(1, 12), st.integers(0, 99))
def test_a_weight_is_a_share_of_the_groups_and_not_a_probability(tmp_path, weights, batch, seed):
    """After any number of batches, each set has had its share to within less than one group, whatever the seed."""
    source = mixed(tmp_path, weights, rollout_seed=seed)
    counts = [0] * len(weights)
    for rollout in range(1, 16):
        for task_id in ids(source.get_samples(batch)):
            counts[set_of(task_id)] += 1
        exact = [rollout * batch * weight / sum(weights) for weight in weights]
        assert all(abs(count - share) < 1 for count, share in zip(counts, exact, strict=True))


def test_each_set_has_epochs_of_its_own(tmp_path):
    """The small set is gone through three times while the large one is gone through once, every task as often."""
    source = mixed(tmp_path, [0.4, 0.6])
    handed_out = ids(source.get_samples(15))
    large, small = ([task for task in handed_out if set_of(task) == which] for which in (0, 1))
    assert (len(large), len(small)) == (6, 9)
    assert len(set(large)) == 6
    epochs = [small[start : start + 3] for start in (0, 3, 6)]
    assert all(sorted(epoch) == ["a-0", "a-1", "a-2"] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1, "each epoch has an order of its own"
    assert ids(mixed(tmp_path, [4, 6]).get_samples(15)) == handed_out, "weights are proportions"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(weights_of_sets, st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3), st.booleans()), max_size=10))
def test_shares_hold_whatever_a_schedule_gives_back_and_wherever_a_run_is_resumed(tmp_path, weights, rollouts):
    """A schedule that carries groups over, or samples ahead of what it trains, plays the same groups in another order:
    those that are played by the end are the first so many numbers, so stale groups take nothing from a share."""
    source, played, carried = mixed(tmp_path, weights), set(), []
    for number, (size, unfinished, is_killed) in enumerate(rollouts):
        groups = [*carried, *source.get_samples(size)]
        carried = groups[len(groups) - min(unfinished, len(groups)) :]
        played |= {group[0].group_index for group in groups[: len(groups) - len(carried)]}
        source.end_rollout(number, unfinished=[group[0].group_index for group in carried])
        source.save(number)
        if is_killed:
            source, carried = mixed(tmp_path, weights), []
            source.load(number)
    source.add_samples(carried)
    first = max(played, default=-1) + 1
    played |= {group[0].group_index for group in source.get_samples(first - len(played))}
    assert played == set(range(first))
    straight = ids(mixed(tmp_path, weights).get_samples(first))
    counts = [sum(set_of(task_id) == which for task_id in straight) for which in range(len(weights))]
    assert all(abs(count - first * w / sum(weights)) < 1 for count, w in zip(counts, weights, strict=True))


def test_tasks_that_are_quarantined_leave_their_turn_to_the_next(tmp_path):
    """A set with one task left plays that one in all of its share; one with none is left out."""
    source = mixed(tmp_path, [1.0, 0.02])
    for task in ("a-0", "a-1"):
        source.quarantine(task)
    assert {task for task in ids(source.get_samples(400)) if set_of(task) == 1} == {"a-2"}
    source.quarantine("a-2")
    assert {set_of(task) for task in ids(source.get_samples(400))} == {0}
    for number in range(7):
        source.quarantine(f"task-{number}")
    with pytest.raises(UserError, match="infrastructure failed on all 10 tasks"):
        source.get_samples(1)


def test_a_run_is_resumed_with_its_weights(tmp_path):
    mixed(tmp_path, [1, 2]).save(0)
    mixed(tmp_path, [1, 2]).load(0)
    with pytest.raises(UserError, match="other tasks, weights"):
        mixed(tmp_path, [1, 3]).load(0)
    with pytest.raises(UserError, match="holds 1 numbers for 2 task sets"):
        TaskDataSource(make_args(tmp_path, swe_tasks=MIXED[:2], swe_weights=[1.0]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(0, 7), st.integers(0, 2))
def test_a_resumed_run_goes_on_exactly_where_it_was(tmp_path, sizes, stop, requeued):
    straight = TaskDataSource(make_args(tmp_path))
    source = TaskDataSource(make_args(tmp_path))
    for number, size in enumerate(sizes):
        expected, groups = straight.get_samples(size), source.get_samples(size)
        straight.add_samples(expected[:requeued])
        source.add_samples(groups[:requeued])
        assert groups == expected
        source.save(number)
        if number == stop:
            source = TaskDataSource(make_args(tmp_path))
            source.load(number)
    assert source.get_samples(5) == straight.get_samples(5)


def test_a_state_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    source = TaskDataSource(make_args(tmp_path))
    source.save(0)
    before = (tmp_path / "rollout" / "task_data_source_0.json").read_bytes()
    source.get_samples(1)
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        source.save(0)
    assert (tmp_path / "rollout" / "task_data_source_0.json").read_bytes() == before


def test_resuming_from_what_is_not_there_or_not_ours(tmp_path):
    source = TaskDataSource(make_args(tmp_path))
    with pytest.raises(UserError, match="no data source state"):
        source.load(3)
    source.save(3)
    for changes in [{"rollout_seed": 6}, {"n_samples_per_prompt": 3}, {"rollout_shuffle": False}]:
        with pytest.raises(UserError, match="other tasks, weights, seed or shuffling"):
            TaskDataSource(make_args(tmp_path, **changes)).load(3)
    for text in ("{", "{}", "[]", '{"fingerprint": "x", "position": "1"}'):
        (tmp_path / "rollout" / "task_data_source_3.json").write_text(text)
        with pytest.raises(UserError, match="damaged"):
            source.load(3)


def test_a_fresh_start_loads_nothing(tmp_path):
    source = TaskDataSource(make_args(tmp_path))
    source.load()
    source.load(-1)
    TaskDataSource(make_args(tmp_path, load=None)).load(5)
    TaskDataSource(make_args(tmp_path, save=None)).save(5)
    assert source.get_samples(1)[0][0].index == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"swe_tasks": None}, "args.swe_tasks is missing: set it in the recipe, or in the file that SLiME's"),
        ({"n_samples_per_prompt": 0}, "n_samples_per_prompt must be int of at least 1, got 0"),
        ({"n_samples_per_prompt": "8"}, "n_samples_per_prompt must be int, got '8'"),
        ({"rollout_seed": None}, "args.rollout_seed is missing: .* --rollout-seed"),
        ({"rollout_shuffle": "yes"}, "rollout_shuffle must be bool"),
    ],
)
def test_a_missing_or_wrong_argument_is_named(tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        TaskDataSource(make_args(tmp_path, **changes))


def test_a_sample_without_a_task():
    with pytest.raises(UserError, match="must be a JSON object, got None"):
        task_of(Sample())
